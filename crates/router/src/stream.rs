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
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// How long one direction of an upgraded connection goes on when the other has ended. A side that has gone for good
/// looks the same as one that only has nothing more to say.
const HALF_CLOSED_LIMIT: Duration = Duration::from_secs(300);

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
    let (mut from_client, mut to_client) = tokio::io::split(TokioIo::new(client));
    let (mut from_backend, mut to_backend) = tokio::io::split(TokioIo::new(backend));
    let mut up = std::pin::pin!(one_way(&mut from_client, &mut to_backend));
    let mut down = std::pin::pin!(one_way(&mut from_backend, &mut to_client));
    let ended = tokio::select! {
        first = up.as_mut() => tokio::time::timeout(HALF_CLOSED_LIMIT, down).await.map(|second| first.and(second)),
        first = down.as_mut() => tokio::time::timeout(HALF_CLOSED_LIMIT, up).await.map(|second| first.and(second)),
    };
    if let Ok(Err(error)) = ended {
        tracing::debug!(%error, "an upgraded connection ended early");
    }
}

/// Copies until the end of one side and passes the end on.
async fn one_way(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    let copied = tokio::io::copy(from, to).await;
    let _ = to.shutdown().await;
    copied.map(|_| ())
}
