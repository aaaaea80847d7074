//! Bytes in motion: a body that says when it moves, and two connections that became one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hutch_serve::Shutdown;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::time::Instant;

/// Bytes held for each direction of an upgraded connection.
const JOIN_BUFFER: usize = 16 << 10;

/// When a request last moved: its body is still being sent as long as that goes on.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<Instant>>);

impl Progress {
    pub(crate) fn now() -> Progress {
        Progress(Arc::new(Mutex::new(Instant::now())))
    }

    /// Ends when nothing has moved for that long.
    pub(crate) async fn stalled(&self, limit: Duration) {
        loop {
            let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// The body, which notes every piece that is taken from it.
    pub(crate) fn watch(&self, body: Body) -> Body {
        Body::new(Watched { body, progress: self.clone() })
    }
}

struct Watched {
    body: Body,
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
            *self.progress.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
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

/// Joins two connections after both have switched protocols, until either ends or the shutdown.
pub(crate) fn join(client: OnUpgrade, backend: OnUpgrade, shutdown: Shutdown) {
    tokio::spawn(async move {
        let joined = async {
            let (client, backend) = tokio::try_join!(client, backend)?;
            copy(client, backend).await;
            Ok::<_, hyper::Error>(())
        };
        tokio::select! {
            () = shutdown.wait() => {}
            result = joined => if let Err(error) = result {
                tracing::debug!(%error, "a connection did not switch protocols");
            }
        }
    });
}

async fn copy(client: Upgraded, backend: Upgraded) {
    let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
    if let Err(error) =
        copy_bidirectional_with_sizes(&mut client, &mut backend, JOIN_BUFFER, JOIN_BUFFER).await
    {
        tracing::debug!(%error, "an upgraded connection ended early");
    }
    let _ = client.shutdown().await;
    let _ = backend.shutdown().await;
}
