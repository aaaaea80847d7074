//! Bounds on how slow a client may be between requests and in the head of a request.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Number of checks for a stalled response within the stall timeout.
const LOOKS: u32 = 4;
/// Value of an offer when no piece of the response waits for the client.
const NOTHING: u64 = u64::MAX;

/// Timeouts of clients and Sandboxes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum time from the first to the last byte of a request head; and of a TLS handshake.
    pub head: Duration,
    /// Maximum time of a client's connection without a request.
    pub idle: Duration,
    /// Maximum time without progress while bytes wait for a client or a Sandbox.
    pub stall: Duration,
    /// Window in which a request body of declared length must make progress.
    pub body: Duration,
    /// Minimum bytes of the body in each window. A body without a declared length is a stream and may pause.
    pub body_least: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            stall: Duration::from_secs(300),
            body: Duration::from_secs(60),
            body_least: 4 << 10,
        }
    }
}

/// State of a connection, reported by the handler of its requests.
pub(crate) struct Activity {
    /// Requests whose responses are not complete.
    current: AtomicUsize,
    /// Requests received.
    begun: AtomicUsize,
    /// Set once the connection carries another protocol than HTTP.
    free: AtomicBool,
    /// Set for HTTP/2, where bytes also arrive outside of requests.
    multiplexed: AtomicBool,
    start: Instant,
    /// Time when the current piece of each HTTP/2 response was offered: see [`Current::offered`].
    offers: Mutex<Vec<Weak<AtomicU64>>>,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity {
            current: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            free: AtomicBool::new(false),
            multiplexed: AtomicBool::new(false),
            start: Instant::now(),
            offers: Mutex::default(),
        }
    }
}

impl Activity {
    /// Starts a request; dropping the result ends it.
    pub(crate) fn begin(self: &Arc<Self>) -> Current {
        self.current.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::AcqRel);
        let offer = self.multiplexed.load(Ordering::Acquire).then(|| {
            let offer = Arc::new(AtomicU64::new(NOTHING));
            self.offers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&offer));
            offer
        });
        Current { activity: self.clone(), offer }
    }

    /// Returns once an HTTP/2 response has stalled for `limit` or slightly more. HTTP/2 has flow control for
    /// each response, so the connection as a whole does not stall.
    pub(crate) async fn untaken(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit / LOOKS).await;
            let now = self.start.elapsed();
            let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
            offers.retain(|offer| offer.strong_count() > 0);
            let late =
                |since: u64| since != NOTHING && now.saturating_sub(Duration::from_millis(since)) > limit;
            let is_late = |offer: &Weak<AtomicU64>| {
                offer.upgrade().is_some_and(|offer| late(offer.load(Ordering::Acquire)))
            };
            if offers.iter().any(is_late) {
                return;
            }
        }
    }

    /// Marks that the connection now carries another protocol.
    pub(crate) fn set_free(&self) {
        self.free.store(true, Ordering::Release);
    }

    pub(crate) fn set_multiplexed(&self) {
        self.multiplexed.store(true, Ordering::Release);
    }
}

/// Request in progress.
pub(crate) struct Current {
    activity: Arc<Activity>,
    /// Time when the untaken piece of the response was offered, in milliseconds since the start of the
    /// connection.
    offer: Option<Arc<AtomicU64>>,
}

impl Current {
    /// Records that the head or a piece of the response is ready for the client.
    pub(crate) fn offered(&self) {
        if let Some(offer) = &self.offer {
            let since = u64::try_from(self.activity.start.elapsed().as_millis()).unwrap_or(NOTHING);
            offer.store(since, Ordering::Release);
        }
    }

    /// Records that the client took it and the next piece is due.
    pub(crate) fn taken(&self) {
        if let Some(offer) = &self.offer {
            offer.store(NOTHING, Ordering::Release);
        }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        self.activity.current.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A request is in progress.
    Busy,
    Idle,
    Head,
}

/// Connection that fails when the other side is too slow.
pub(crate) struct Paced<S> {
    stream: S,
    limits: Limits,
    activity: Arc<Activity>,
    phase: Phase,
    begun: usize,
    /// End of the phase, unless it is `Busy`.
    until: Instant,
    /// Fires at `until` or earlier: a later `until` resets the timer only when it fires. `None` after a
    /// switch of protocols.
    reading: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, limits: Limits, activity: Arc<Activity>) -> Paced<S> {
        let until = Instant::now() + limits.idle;
        let reading = Some(Box::pin(tokio::time::sleep_until(until)));
        Paced { stream, limits, activity, phase: Phase::Idle, begun: 0, until, reading }
    }

    /// Updates the phase before a read.
    fn look(&mut self) {
        let begun = self.activity.begun.load(Ordering::Acquire);
        let busy = self.activity.current.load(Ordering::Acquire) > 0;
        if self.activity.free.load(Ordering::Acquire) {
            self.phase = Phase::Busy;
            self.reading = None;
        } else if busy {
            self.phase = Phase::Busy;
        } else if self.phase == Phase::Busy || begun != self.begun {
            self.phase = Phase::Idle;
            self.until = Instant::now() + self.limits.idle;
        }
        self.begun = begun;
    }

    /// Returns true if the phase is over; otherwise registers a wakeup for its end.
    fn over(&mut self, context: &mut Context<'_>) -> bool {
        let Some(reading) = self.reading.as_mut().filter(|_| self.phase != Phase::Busy) else { return false };
        if reading.deadline() > self.until {
            reading.as_mut().reset(self.until);
        }
        while reading.as_mut().poll(context).is_ready() {
            if Instant::now() >= self.until {
                return true;
            }
            reading.as_mut().reset(self.until);
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
            return Poll::Ready(Err(too_slow("no request arrived in time")));
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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

    /// Returns true if the connection lasts much longer than `SHORT`.
    async fn lasts(paced: &mut Paced<tokio::io::DuplexStream>) -> bool {
        tokio::time::timeout(SHORT * 4, paced.read_u8()).await.is_err()
    }

    #[tokio::test]
    async fn heads_time_out_and_requests_in_progress_do_not() {
        let (mut client, mut paced, activity) =
            paced(Limits { head: SHORT, idle: LONG, ..Limits::default() });
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
    async fn idle_http_times_out_and_upgraded_connections_do_not() {
        let (_client, mut paced, activity) = paced(Limits { head: LONG, idle: SHORT, ..Limits::default() });
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
    async fn http2_bytes_between_requests_start_no_head_timeout() {
        let (mut client, mut paced, activity) =
            paced(Limits { head: SHORT, idle: LONG, ..Limits::default() });
        activity.set_multiplexed();
        client.write_all(b"p").await.unwrap();
        assert!(paced.read_u8().await.is_ok());
        assert!(lasts(&mut paced).await);
    }
}
