//! Bodies of requests and answers.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

/// Body of a request or an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Returns a body of these bytes.
pub(crate) fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Returns the answer to a HEAD request: in HTTP/2, a body would be a fault of the protocol.
pub(crate) fn without_body(response: http::Response<Body>) -> http::Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = http_body::Body::size_hint(&body).exact() {
        parts.headers.insert(http::header::CONTENT_LENGTH, length.into());
    }
    http::Response::from_parts(parts, full(Bytes::new()))
}

/// Body of a request that is sent on, and of which the rest can be taken back.
#[derive(Clone, Default)]
pub(crate) struct Lending(Arc<Mutex<Option<Incoming>>>);

impl Lending {
    /// Returns the body, as it is sent on.
    pub(crate) fn lend(&self, body: Incoming) -> Body {
        *self.body() = Some(body);
        self.clone().boxed_unsync()
    }

    /// Returns the rest of the body. What was lent fails from now on.
    pub(crate) fn take_back(&self) -> Option<Incoming> {
        self.body().take()
    }

    fn body(&self) -> MutexGuard<'_, Option<Incoming>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl http_body::Body for Lending {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self.body() {
            Some(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            None => Poll::Ready(Some(Err("the rest of it was taken back".into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body().as_ref().is_some_and(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body().as_ref().map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

/// Body that keeps something until it has been sent.
pub(crate) struct Keeping<T> {
    pub(crate) body: Body,
    pub(crate) _kept: T,
}

impl<T: Unpin> http_body::Body for Keeping<T> {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
