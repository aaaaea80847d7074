//! When somebody outside last wanted something: requests that are open, and when the last one ended.
//!
//! A process that a client is attached to is an open request, so it counts; a detached one does not. Questions whether the
//! program lives or is in use count for nothing, and neither does whoever does not say the token.

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

/// What was asked for at all doors. Clones are one.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    begun: Instant,
    open: AtomicUsize,
    /// Milliseconds from `begun` to when a request last began or ended.
    last: AtomicU64,
}

/// What is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Whole seconds since a request was open; 0 while one is. Since the start, when there was none.
    pub idle_seconds: u64,
    /// Requests that are open.
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
    /// As of now.
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

/// A request, until its answer has been sent or given up.
struct Open(Activity);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.touch();
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A door whose requests are counted.
#[derive(Debug, Clone)]
pub struct Counted<D> {
    door: D,
    activity: Activity,
}

impl<D> Counted<D> {
    /// Counts what `door` counts as use.
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

/// The body of an answer to a request that is open until it is sent.
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
