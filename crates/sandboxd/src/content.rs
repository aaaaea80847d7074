//! Body of a request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Maximum bytes that are still read when a request was answered before all of it arrived...
const LINGER_SIZE: usize = 16 << 20;
/// ...and maximum time for that. A client that is cut off while it sends receives no response.
const LINGER_LIMIT: Duration = Duration::from_secs(5);

/// Body of a request. If it is dropped before its end, the rest is read and discarded, within bounds.
#[derive(Debug)]
pub struct Content(Option<Incoming>);

impl Content {
    pub(crate) fn new(incoming: Incoming) -> Content {
        Content(Some(incoming))
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(incoming) => Pin::new(incoming).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let Some(mut incoming) = self.0.take().filter(|incoming| !incoming.is_end_stream()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let reading = async move {
            let mut read = 0;
            while let Some(Ok(frame)) = incoming.frame().await {
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > LINGER_SIZE {
                    return;
                }
            }
        };
        runtime.spawn(tokio::time::timeout(LINGER_LIMIT, reading));
    }
}
