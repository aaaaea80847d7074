//! Bodies whose bytes are counted.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::Line;
use super::standing::Watch;
use crate::body::Body;
use crate::headers::{fields_bytes, misleads};
use crate::refusal::Reason;
use crate::sandbox::Sandbox;

/// Body of an answer, which keeps the place of its request until its end.
pub(super) struct Placing {
    pub(super) body: Incoming,
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) _place: Option<OwnedSemaphorePermit>,
}

impl http_body::Body for Placing {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.sandbox.counters().received(frame.data_ref().map_or(0, Bytes::len));
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of a body that were sent, and the maximum. The maximum changes with the rules that allow the request.
pub(super) struct Limit {
    sent: AtomicU64,
    most: AtomicU64,
}

impl Limit {
    pub(super) fn new(most: u64) -> Limit {
        Limit { sent: AtomicU64::new(0), most: AtomicU64::new(most) }
    }

    /// Sets the maximum.
    pub(super) fn set(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Counts bytes. Returns false if they are more than the maximum.
    fn sends(&self, bytes: usize) -> bool {
        let before = self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        before.saturating_add(bytes as u64) <= self.most.load(Ordering::Relaxed)
    }
}

/// Body of a request, up to its limit and the budget.
pub(super) struct Metered {
    pub(super) body: Body,
    pub(super) limit: Arc<Limit>,
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) line: Arc<Line>,
    /// Set if its rules have conditions.
    pub(super) watch: Option<Watch>,
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => frame,
            other => return other,
        };
        let length = frame.data_ref().map_or(0, Bytes::len) + frame.trailers_ref().map_or(0, fields_bytes);
        // Before its limit, which it may change.
        let denied = this.watch.as_mut().and_then(Watch::denied);
        let counted = match denied {
            Some(reason) => Err(reason),
            None if this.limit.sends(length) => {
                this.sandbox.counters().sent(length);
                // By the budgets of the present rules.
                this.sandbox.usage.sent(&this.sandbox.rules().levels, length)
            }
            None => Err(Reason::Ambiguous("its body is longer than a rule allows".to_owned())),
        };
        match counted {
            // Trailers that some servers read as headers of another meaning are left out.
            Ok(()) if frame.trailers_ref().and_then(misleads).is_some() => {
                Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))))
            }
            Ok(()) => Poll::Ready(Some(Ok(frame))),
            Err(reason) => {
                let error = reason.to_string();
                this.line.end(&this.sandbox, reason);
                Poll::Ready(Some(Err(error.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
