//! Tracks client activity: open requests, and the end of the last one.
//!
//! A process with an attached client is an open request and counts; a detached one does not. Health and
//! activity probes do not count, nor do requests without the token.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use hyper::{Request, Response};
use serde::Serialize;

use crate::answer::Body;
use crate::content::Content;
use crate::server::Door;

/// Activity of all ports. Clones share it.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    begun: Instant,
    open: AtomicUsize,
    /// Milliseconds from `begun` to the last start or end of a request.
    last: AtomicU64,
}

/// Response of the activity probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Whole seconds since the last open request; 0 while one is open. Since the start if there was none.
    pub idle_seconds: u64,
    /// Open requests.
    pub requests: usize,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity(Arc::new(Inner {
            begun: Instant::now(),
            open: AtomicUsize::new(0),
            last: AtomicU64::new(0),
        }))
    }
}

impl Activity {
    /// Returns the current activity.
    pub fn told(&self) -> Told {
        let requests = self.0.open.load(Ordering::Relaxed);
        let last = Duration::from_millis(self.0.last.load(Ordering::Relaxed));
        let idle = self.0.begun.elapsed().saturating_sub(last);
        Told { idle_seconds: if requests > 0 { 0 } else { idle.as_secs() }, requests }
    }

    fn touch(&self) {
        let now = u64::try_from(self.0.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last.fetch_max(now, Ordering::Relaxed);
    }

    fn open(&self) -> Open {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Open(self.clone())
    }
}

/// Request, until its response has been sent or abandoned.
struct Open(Activity);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.touch();
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// [`Door`] whose requests are counted.
#[derive(Debug, Clone)]
pub struct Counted<D> {
    door: D,
    activity: Activity,
}

impl<D> Counted<D> {
    /// Counts the requests that `door` counts as use.
    pub fn new(door: D, activity: Activity) -> Counted<D> {
        Counted { door, activity }
    }
}

impl<D: Door> Door for Counted<D> {
    async fn answer(&self, request: Request<Content>) -> Response<Body> {
        if !self.door.is_use(&request) {
            return self.door.answer(request).await;
        }
        let open = self.activity.open();
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
    _open: Open,
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
