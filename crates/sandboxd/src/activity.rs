//! Counts the requests of clients as activity, until their responses are sent or abandoned.
//!
//! A process with an attached client is an open request and counts; a detached one does not. Health and
//! activity probes do not count, nor do requests without the token.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hutch_activity::{Activity, Use};
use hyper::body::{Frame, SizeHint};
use hyper::{Request, Response};

use crate::answer::Body;
use crate::content::Content;
use crate::server::Door;

/// [`Door`] whose requests are counted.
#[derive(Debug, Clone)]
pub struct Counted<D> {
    door: D,
    activity: Arc<Activity>,
}

impl<D> Counted<D> {
    /// Counts the requests that `door` counts as use.
    pub fn new(door: D, activity: Arc<Activity>) -> Counted<D> {
        Counted { door, activity }
    }
}

impl<D: Door> Door for Counted<D> {
    async fn answer(&self, request: Request<Content>) -> Response<Body> {
        if !self.door.is_use(&request) {
            return self.door.answer(request).await;
        }
        let open = self.activity.begin();
        let response = self.door.answer(request).await;
        response.map(|body| Sent { body, _open: open }.boxed_unsync())
    }

    fn is_use(&self, request: &Request<Content>) -> bool {
        self.door.is_use(request)
    }
}

/// Response body that keeps its request open until it is sent.
struct Sent {
    body: Body,
    _open: Use,
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
