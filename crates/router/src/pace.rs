//! How slow a client may be: between requests and in the head of one.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Looks, within the time that an answer may wait to be taken, whether one waits for longer.
const LOOKS: u32 = 4;
/// What stands for an answer of which nothing waits to be taken.
const NOTHING: u64 = u64::MAX;

/// How slow the other sides of the router may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From the first byte of a client's request to the last one of its head; and a TLS handshake.
    pub head: Duration,
    /// A client's connection without a request.
    pub idle: Duration,
    /// Without a byte being taken by a client or a sandbox, while there are bytes for it.
    pub stall: Duration,
    /// How long a request's body of a declared length is waited for before it is seen whether it comes.
    pub body: Duration,
    /// Bytes of it that have to come in each such time. A body without a declared length is a stream: it may pause.
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

/// What the connection is doing, told by who answers its requests.
pub(crate) struct Activity {
    /// Requests whose answers have not been sent.
    current: AtomicUsize,
    /// Requests that came.
    begun: AtomicUsize,
    /// It does not carry HTTP any more.
    free: AtomicBool,
    /// It carries HTTP/2, where bytes come outside of requests.
    multiplexed: AtomicBool,
    start: Instant,
    /// When the present piece of each answer on HTTP/2 was offered: see [`Current::offered`].
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
    /// A request has come; it is answered when what is returned is dropped.
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

    /// Ends when an answer on HTTP/2 was not taken for `limit` or somewhat more. A client says there for each answer how
    /// much of it it takes, so that the connection as a whole does not stall.
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

    /// From now on it carries another protocol.
    pub(crate) fn set_free(&self) {
        self.free.store(true, Ordering::Release);
    }

    pub(crate) fn set_multiplexed(&self) {
        self.multiplexed.store(true, Ordering::Release);
    }
}

/// A request in progress.
pub(crate) struct Current {
    activity: Arc<Activity>,
    /// Milliseconds from the start of the connection to when a piece of the answer was offered that was not taken yet.
    offer: Option<Arc<AtomicU64>>,
}

impl Current {
    /// The head or a piece of the answer is there to be taken.
    pub(crate) fn offered(&self) {
        if let Some(offer) = &self.offer {
            let since = u64::try_from(self.activity.start.elapsed().as_millis()).unwrap_or(NOTHING);
            offer.store(since, Ordering::Release);
        }
    }

    /// It was taken: the next one is wanted.
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
    /// Wakes at `until` or earlier: a time that moved on is not told to the timer until it matters. None where another
    /// protocol is spoken.
    reading: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, limits: Limits, activity: Arc<Activity>) -> Paced<S> {
        let until = Instant::now() + limits.idle;
        let reading = Some(Box::pin(tokio::time::sleep_until(until)));
        Paced { stream, limits, activity, phase: Phase::Idle, begun: 0, until, reading }
    }

    /// Brings the phase up to date before a read.
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

    /// Whether the phase is over; if not, wakes when it is.
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
            return Poll::Ready(Err(too_slow("no request came in time")));
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

    /// Whether it goes on for much longer than a short time.
    async fn lasts(paced: &mut Paced<tokio::io::DuplexStream>) -> bool {
        tokio::time::timeout(SHORT * 4, paced.read_u8()).await.is_err()
    }

    #[tokio::test]
    async fn the_head_has_less_time_than_the_pause_before_it_and_an_answer_has_any() {
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
    async fn a_silent_connection_ends_and_one_with_another_protocol_does_not() {
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
    async fn bytes_between_requests_do_not_end_a_multiplexed_connection_early() {
        let (mut client, mut paced, activity) =
            paced(Limits { head: SHORT, idle: LONG, ..Limits::default() });
        activity.set_multiplexed();
        client.write_all(b"p").await.unwrap();
        assert!(paced.read_u8().await.is_ok());
        assert!(lasts(&mut paced).await);
    }
}
