//! The body of a request: it says when it moves, and ends where it grows too long.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

/// When a request last moved: its body is still being sent as long as that goes on.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Moved>);

struct Moved {
    last: Mutex<Instant>,
    too_long: AtomicBool,
}

impl Progress {
    pub(crate) fn now() -> Progress {
        Progress(Arc::new(Moved { last: Mutex::new(Instant::now()), too_long: AtomicBool::new(false) }))
    }

    /// Ends when nothing has moved for that long.
    pub(crate) async fn stalled(&self, limit: Duration) {
        loop {
            let until = *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Whether the body was cut because it was longer than allowed.
    pub(crate) fn too_long(&self) -> bool {
        self.0.too_long.load(Ordering::Relaxed)
    }

    /// The body, which notes every piece that is taken from it and gives `most` bytes at most.
    pub(crate) fn watch(&self, body: Body, most: u64) -> Body {
        Body::new(Watched { body, left: most, progress: self.clone() })
    }
}

struct Watched {
    body: Body,
    left: u64,
    progress: Progress,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            *self.progress.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        if let Poll::Ready(Some(Ok(piece))) = &frame {
            let length = piece.data_ref().map_or(0, |data| data.len() as u64);
            let Some(left) = self.left.checked_sub(length) else {
                self.progress.0.too_long.store(true, Ordering::Relaxed);
                return Poll::Ready(Some(Err(axum::Error::new(std::io::Error::other(
                    "the body is too long",
                )))));
            };
            self.left = left;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
