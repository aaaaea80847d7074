//! Request body that records its progress, and fails when it grows too long or arrives too slowly.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::pace::Limits;
use crate::refusal::Refusal;

/// Time of the last progress of a request, while its body is being sent.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Moved>);

struct Moved {
    last: Mutex<Instant>,
    cut: OnceLock<Refusal>,
}

impl Progress {
    pub(crate) fn now() -> Progress {
        Progress(Arc::new(Moved { last: Mutex::new(Instant::now()), cut: OnceLock::new() }))
    }

    /// Returns after so long without progress.
    pub(crate) async fn stalled(&self, limit: Duration) {
        loop {
            let until = *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Returns the reason why the body was cut off, if it was.
    pub(crate) fn cut(&self) -> Option<Refusal> {
        self.0.cut.get().cloned()
    }

    /// Wraps the body: it records every piece, yields `most` bytes at most, and fails if its length was
    /// declared and it arrives slower than the limits allow.
    pub(crate) fn watch(&self, body: Body, most: u64, limits: &Limits) -> Body {
        let declared = body.size_hint().exact().is_some_and(|length| length > 0);
        let wait = declared.then(|| Wait::new(limits));
        Body::new(Watched { body, left: most, progress: self.clone(), wait })
    }
}

struct Watched {
    body: Body,
    left: u64,
    progress: Progress,
    wait: Option<Wait>,
}

impl Watched {
    fn end(&self, why: Refusal, text: &'static str) -> axum::Error {
        let _ = self.progress.0.cut.set(why);
        axum::Error::new(std::io::Error::other(text))
    }
}

/// Time spent waiting for a body, and bytes received meanwhile. The time that the Sandbox takes does not
/// count.
struct Wait {
    window: Duration,
    least: u64,
    came: u64,
    waited: Duration,
    since: Option<Instant>,
    /// Fires at the end of the window, or earlier.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Wait {
    fn new(limits: &Limits) -> Wait {
        let (window, least) = (limits.body, limits.body_least);
        Wait { window, least, came: 0, waited: Duration::ZERO, since: None, timer: None }
    }

    fn note(&mut self, bytes: u64) {
        self.came += bytes;
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
    }

    /// Returns true if too few bytes arrived in a whole window; otherwise registers a wakeup for its end.
    fn in_vain(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            let since = *self.since.get_or_insert_with(Instant::now);
            let until = since + self.window.saturating_sub(self.waited);
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
            if timer.as_mut().poll(context).is_pending() {
                return false;
            }
            if Instant::now() < until {
                timer.as_mut().reset(until);
                continue;
            }
            if self.came < self.least {
                return true;
            }
            (self.came, self.waited, self.since, self.timer) = (0, Duration::ZERO, None, None);
        }
    }
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
        } else if self.wait.as_mut().is_some_and(|wait| wait.in_vain(context)) {
            return Poll::Ready(Some(Err(self.end(Refusal::TooSlow, "the body arrives too slowly"))));
        }
        if let Poll::Ready(Some(Ok(piece))) = &frame {
            let length = piece.data_ref().map_or(0, |data| data.len() as u64);
            let Some(left) = self.left.checked_sub(length) else {
                return Poll::Ready(Some(Err(self.end(Refusal::TooLarge, "the body is too long"))));
            };
            self.left = left;
            if let Some(wait) = &mut self.wait {
                wait.note(length);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    /// Body of so many pieces with a pause before each; its length is declared if `declared`.
    struct Slow {
        pieces: u64,
        piece: usize,
        pause: Duration,
        timer: Pin<Box<Sleep>>,
        declared: bool,
    }

    impl http_body::Body for Slow {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            if self.pieces == 0 {
                return Poll::Ready(None);
            }
            std::task::ready!(self.timer.as_mut().poll(context));
            let next = Instant::now() + self.pause;
            self.timer.as_mut().reset(next);
            self.pieces -= 1;
            Poll::Ready(Some(Ok(Frame::data(vec![0; self.piece].into()))))
        }

        fn size_hint(&self) -> SizeHint {
            match self.declared {
                true => SizeHint::with_exact(self.pieces * self.piece as u64),
                false => SizeHint::default(),
            }
        }
    }

    const WINDOW: Duration = Duration::from_millis(200);
    const LIMITS: Limits = Limits {
        head: WINDOW,
        idle: WINDOW,
        stall: WINDOW,
        body: WINDOW,
        // Bytes of one piece, so that a piece in each window is enough.
        body_least: 4096,
    };

    /// Returns how many bytes pass, and why the body was cut off. The reader pauses between the pieces.
    async fn pass(body: Slow, taking: Duration) -> (usize, Option<Refusal>) {
        let progress = Progress::now();
        let mut body = progress.watch(Body::new(body), u64::MAX, &LIMITS);
        let mut length = 0;
        while let Some(Ok(frame)) = body.frame().await {
            length += frame.data_ref().map_or(0, Bytes::len);
            tokio::time::sleep(taking).await;
        }
        (length, progress.cut())
    }

    fn slow(pieces: u64, piece: usize, pause: Duration, declared: bool) -> Slow {
        Slow { pieces, piece, pause, timer: Box::pin(tokio::time::sleep(pause)), declared }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_declared_bodies_fail_and_streams_may_pause() {
        let (at_once, often, rarely) = (Duration::ZERO, WINDOW / 20, WINDOW * 2);
        assert_eq!(pass(slow(60, 4096, often, true), at_once).await, (60 * 4096, None));
        let (came, why) = pass(slow(1000, 1, often, true), at_once).await;
        assert!(came < 1000 && why == Some(Refusal::TooSlow), "{came} {why:?}");
        assert_eq!(pass(slow(1, 1, rarely, true), at_once).await, (0, Some(Refusal::TooSlow)));
        assert_eq!(pass(slow(3, 1, rarely, false), at_once).await, (3, None));
    }

    #[tokio::test(start_paused = true)]
    async fn time_of_the_sandbox_does_not_count() {
        let long = WINDOW * 2;
        let mut body = slow(4, 1, Duration::ZERO, true);
        body.timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(pass(body, long).await, (4, None), "it was never waited for");
    }
}
