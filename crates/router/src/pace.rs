//! How slow the other side of a connection may be: between requests, in the head of one, in taking an answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The times of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From the first byte of a request to the last one of its head.
    pub(crate) head: Duration,
    /// Without a request.
    pub(crate) idle: Duration,
    /// Without a byte of an answer being taken.
    pub(crate) stall: Duration,
}

/// What the connection is doing, told by who answers its requests.
#[derive(Default)]
pub(crate) struct Activity {
    /// Requests whose answers have not been sent.
    current: AtomicUsize,
    /// Requests that came.
    begun: AtomicUsize,
    /// It does not carry HTTP any more.
    free: AtomicBool,
    /// It carries HTTP/2, where bytes come outside of requests.
    multiplexed: AtomicBool,
}

impl Activity {
    /// A request has come; it is answered when what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Current {
        self.current.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::AcqRel);
        Current(self.clone())
    }

    /// From now on it carries another protocol.
    pub(crate) fn set_free(&self) {
        self.free.store(true, Ordering::Release);
    }

    pub(crate) fn set_multiplexed(&self) {
        self.multiplexed.store(true, Ordering::Release);
    }
}

pub(crate) struct Current(Arc<Activity>);

impl Drop for Current {
    fn drop(&mut self) {
        self.0.current.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A request is being answered.
    Busy,
    Idle,
    Head,
}

/// A connection that fails when the other side is too slow.
pub(crate) struct Paced<S> {
    stream: S,
    limits: Limits,
    activity: Arc<Activity>,
    phase: Phase,
    begun: usize,
    /// When the phase is over, unless it is busy.
    until: Instant,
    /// Wakes at `until` or earlier: a time that moved on is not told to the timer until it matters.
    reading: Pin<Box<Sleep>>,
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, limits: Limits, activity: Arc<Activity>) -> Paced<S> {
        let until = Instant::now() + limits.idle;
        let reading = Box::pin(tokio::time::sleep_until(until));
        Paced { stream, limits, activity, phase: Phase::Idle, begun: 0, until, reading, writing: None }
    }

    /// Brings the phase up to date before a read.
    fn look(&mut self) {
        let begun = self.activity.begun.load(Ordering::Acquire);
        let busy = self.activity.current.load(Ordering::Acquire) > 0;
        if busy || self.activity.free.load(Ordering::Acquire) {
            self.phase = Phase::Busy;
        } else if self.phase == Phase::Busy || begun != self.begun {
            self.phase = Phase::Idle;
            self.until = Instant::now() + self.limits.idle;
        }
        self.begun = begun;
    }

    /// Whether the phase is over; if not, wakes when it is.
    fn over(&mut self, context: &mut Context<'_>) -> bool {
        if self.phase == Phase::Busy {
            return false;
        }
        if self.reading.deadline() > self.until {
            self.reading.as_mut().reset(self.until);
        }
        while self.reading.as_mut().poll(context).is_ready() {
            if Instant::now() >= self.until {
                return true;
            }
            self.reading.as_mut().reset(self.until);
        }
        false
    }
}

fn too_slow(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what.to_owned())
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.look();
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(context, buffer) {
            let more = buffer.filled().len() > before;
            if more && this.phase == Phase::Idle && !this.activity.multiplexed.load(Ordering::Acquire) {
                this.phase = Phase::Head;
                this.until = Instant::now() + this.limits.head;
            }
            return Poll::Ready(read);
        }
        if this.over(context) {
            return Poll::Ready(Err(too_slow("no request came in time")));
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> Paced<S> {
    /// Fails when nothing could be written for too long.
    fn bound<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.writing = None;
            return written;
        }
        let limit = self.limits.stall;
        let writing = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(writing.as_mut().poll(context));
        Poll::Ready(Err(too_slow("the answer was not taken in time")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bound(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.bound(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bound(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bound(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(50);

    fn paced(limits: Limits) -> (tokio::io::DuplexStream, Paced<tokio::io::DuplexStream>, Arc<Activity>) {
        let (client, server) = tokio::io::duplex(64);
        let activity = Arc::new(Activity::default());
        (client, Paced::new(server, limits, activity.clone()), activity)
    }

    /// Whether it goes on for much longer than a short time.
    async fn lasts(paced: &mut Paced<tokio::io::DuplexStream>) -> bool {
        tokio::time::timeout(SHORT * 4, paced.read_u8()).await.is_err()
    }

    #[tokio::test]
    async fn the_head_has_less_time_than_the_pause_before_it_and_an_answer_has_any() {
        let (mut client, mut paced, activity) = paced(Limits { head: SHORT, idle: LONG, stall: LONG });
        assert!(lasts(&mut paced).await, "the pause");
        client.write_all(b"G").await.unwrap();
        assert!(paced.read_u8().await.is_ok());
        let current = activity.begin();
        assert!(lasts(&mut paced).await, "the answer");
        drop(current);
        client.write_all(b"G").await.unwrap();
        assert!(paced.read_u8().await.is_ok(), "the next request");
        assert_eq!(paced.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_silent_connection_ends_and_one_with_another_protocol_does_not() {
        let (_client, mut paced, activity) = paced(Limits { head: LONG, idle: SHORT, stall: LONG });
        assert_eq!(paced.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(activity.begin());
        assert_eq!(
            paced.read_u8().await.unwrap_err().kind(),
            io::ErrorKind::TimedOut,
            "after an answer again"
        );
        activity.set_free();
        assert!(lasts(&mut paced).await);
    }

    #[tokio::test]
    async fn bytes_between_requests_do_not_end_a_multiplexed_connection_early() {
        let (mut client, mut paced, activity) = paced(Limits { head: SHORT, idle: LONG, stall: LONG });
        activity.set_multiplexed();
        client.write_all(b"p").await.unwrap();
        assert!(paced.read_u8().await.is_ok());
        assert!(lasts(&mut paced).await);
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_ends() {
        let (_client, mut paced, _) = paced(Limits { head: LONG, idle: LONG, stall: SHORT });
        assert_eq!(paced.write_all(&[0; 65]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
