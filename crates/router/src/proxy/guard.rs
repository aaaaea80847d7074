//! Keeps the Sandbox awake while its response is in progress.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hutch_kubelet::Hold;

/// Body of a response, and the guard of its request. Dropped at the end of the response, or when the client leaves.
///
/// A connection that switches protocols has no guard: only the bytes that pass through it count as activity.
pub(crate) struct Guarded {
    body: Body,
    _hold: Hold,
}

impl Guarded {
    pub(crate) fn new(body: Body, hold: Hold) -> Guarded {
        Guarded { body, _hold: hold }
    }
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body::Body as _;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn sandbox_is_held_until_the_body_is_dropped() {
        let held = Arc::new(());
        let body = Guarded::new(Body::from("text"), Box::new(held.clone()));
        assert_eq!(body.size_hint().exact(), Some(4));
        assert_eq!(Arc::strong_count(&held), 2);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "text");
        assert_eq!(Arc::strong_count(&held), 1);
        drop(Guarded::new(Body::from("not collected"), Box::new(held.clone())));
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
