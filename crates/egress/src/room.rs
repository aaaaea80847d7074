//! Memory for bodies that a sandbox makes the proxy hold.
//!
//! Bytes take room before they are held, and give it back when the last copy of them is dropped: also those that wait in a
//! buffer to be sent. A body that finds no room waits, for a bounded time. So that bodies that wait for each other all end, one
//! of each kind has room for a whole one, and a body holds room of each kind only once, in the order of [`Kind`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Full};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::body::{Body, full};
use crate::refusal::Reason;

const KIB: usize = 1 << 10;
/// Maximum KiB that all bodies together hold, beside one of each kind.
const SHARED: usize = 6 << 10;
/// Bytes by which the memory for a body grows, at least and at most.
const STEP: usize = 4 << 10;
const LONG_STEP: usize = 1 << 20;
/// Bytes of a body in parts for which no room is taken.
const SMALL: usize = 4 << 10;
/// Maximum time for which a body waits for room. The bodies that have it may be those of slow clients and servers.
const WAIT: Duration = Duration::from_secs(60);

/// A body found no room in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl From<NoRoom> for Reason {
    fn from(_: NoRoom) -> Reason {
        Reason::NoRoom
    }
}

/// Kind of a body that is held. Who holds room of one kind may wait for room of a later one, and of no other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Request,
    /// A request that is read once more, whose first bytes may still be held.
    Again,
    /// A request with the values of credentials in it.
    Filled,
    Answer,
}

/// Room for the bodies of one sandbox.
#[derive(Debug)]
pub(crate) struct Room {
    shared: Arc<Semaphore>,
    /// Place of the one body of each kind that may be whole in any case.
    whole: [Arc<Semaphore>; 4],
}

impl Default for Room {
    fn default() -> Room {
        let whole = [(); 4].map(|()| Arc::new(Semaphore::new(1)));
        Room { shared: Arc::new(Semaphore::new(SHARED)), whole }
    }
}

/// Room that is taken.
#[derive(Debug, Default)]
struct Taken {
    shared: Option<OwnedSemaphorePermit>,
    whole: Option<OwnedSemaphorePermit>,
}

impl Taken {
    /// Returns how many KiB are missing for so many bytes.
    fn missing(&self, bytes: usize) -> u32 {
        let taken = self.shared.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        u32::try_from(bytes.div_ceil(KIB).saturating_sub(taken)).unwrap_or(u32::MAX)
    }

    fn add(&mut self, more: OwnedSemaphorePermit) {
        match &mut self.shared {
            Some(shared) => shared.merge(more),
            shared => *shared = Some(more),
        }
    }

    /// Gives back what is not needed for so many bytes.
    fn shrink(&mut self, bytes: usize) {
        let Some(shared) = &mut self.shared else { return };
        drop(shared.split(shared.num_permits().saturating_sub(bytes.div_ceil(KIB))));
    }

    /// Takes room for so many bytes of a body of this kind. Waits for it.
    async fn grow(&mut self, room: &Room, kind: Kind, bytes: usize) {
        let missing = self.missing(bytes);
        if missing == 0 || self.whole.is_some() {
            return;
        }
        // What is too long for the shared room would keep it from all others while it waits.
        let fits = bytes <= SHARED * KIB;
        // Both are never closed.
        tokio::select! {
            biased;
            Ok(more) = room.shared.clone().acquire_many_owned(missing), if fits => self.add(more),
            Ok(whole) = room.whole[kind as usize].clone().acquire_owned() => {
                *self = Taken { shared: None, whole: Some(whole) };
            }
            else => {}
        }
    }
}

/// Bytes with the room that they take.
struct Owned<T> {
    bytes: T,
    _taken: Arc<Taken>,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Owned<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Bytes that are held.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    pub(crate) bytes: Bytes,
    taken: Arc<Taken>,
}

impl Held {
    /// Returns other bytes, which take the same room.
    pub(crate) fn replaced<T: AsRef<[u8]> + Send + 'static>(&self, bytes: T) -> Held {
        let taken = self.taken.clone();
        Held { bytes: Bytes::from_owner(Owned { bytes, _taken: taken.clone() }), taken }
    }
}

/// Bytes of a body that arrive, and are to be held as a whole.
pub(crate) struct Gathering {
    room: Arc<Room>,
    kind: Kind,
    bytes: Vec<u8>,
    taken: Taken,
}

impl Gathering {
    pub(crate) fn new(room: &Arc<Room>, kind: Kind) -> Gathering {
        Gathering { room: room.clone(), kind, bytes: Vec::new(), taken: Taken::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds bytes that arrived before a deadline, once there is room for them. The wait for room moves the deadline.
    ///
    /// # Errors
    /// There is no room in time.
    pub(crate) async fn push_before(&mut self, deadline: &mut Instant, more: &[u8]) -> Result<(), NoRoom> {
        let since = Instant::now();
        timeout(WAIT, self.push(more)).await.map_err(|_| NoRoom)?;
        *deadline += since.elapsed();
        Ok(())
    }

    async fn push(&mut self, more: &[u8]) {
        let (needed, capacity) = (self.len() + more.len(), self.bytes.capacity());
        if needed > capacity {
            let grown = needed.max(capacity + capacity.clamp(STEP, LONG_STEP));
            self.taken.grow(&self.room, self.kind, grown).await;
            self.bytes.reserve_exact(grown - self.len());
        }
        self.bytes.extend_from_slice(more);
    }

    pub(crate) fn finish(mut self) -> Held {
        self.bytes.shrink_to_fit();
        self.taken.shrink(self.bytes.capacity());
        Held { bytes: Bytes::new(), taken: Arc::new(self.taken) }.replaced(self.bytes)
    }
}

impl Room {
    /// Takes room for so many bytes, which are made then.
    ///
    /// # Errors
    /// It is not free in time.
    pub(crate) async fn take(&self, kind: Kind, bytes: usize) -> Result<Held, NoRoom> {
        let mut taken = Taken::default();
        timeout(WAIT, taken.grow(self, kind, bytes)).await.map_err(|_| NoRoom)?;
        Ok(Held { bytes: Bytes::new(), taken: Arc::new(taken) })
    }

    /// Returns how many KiB are free that all bodies share.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.shared.available_permits()
    }

    /// Takes all the room that a body of a kind can have.
    #[cfg(test)]
    pub(crate) fn fill(&self, kind: Kind) -> impl Send + use<> {
        let all =
            |semaphore: &Arc<Semaphore>, count| semaphore.clone().try_acquire_many_owned(count).unwrap();
        Taken {
            shared: Some(all(&self.shared, u32::try_from(self.free()).unwrap())),
            whole: Some(all(&self.whole[kind as usize], 1)),
        }
    }
}

/// Room for the parts of a body that are held until one is whole.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    room: Arc<Room>,
    taken: Taken,
}

impl Parts {
    pub(crate) fn new(room: &Arc<Room>) -> Parts {
        Parts { room: room.clone(), taken: Taken::default() }
    }

    /// Takes room for so many bytes, or gives some back. Returns false if there is not enough.
    pub(crate) fn hold(&mut self, bytes: usize) -> bool {
        let bytes = bytes.saturating_sub(SMALL);
        self.taken.shrink(bytes);
        match self.taken.missing(bytes) {
            0 => true,
            missing => match self.room.shared.clone().try_acquire_many_owned(missing) {
                Ok(more) => {
                    self.taken.add(more);
                    true
                }
                Err(_) => false,
            },
        }
    }
}

/// Body of a request that is sent on.
pub(crate) enum Sent {
    Whole(Held, Option<HeaderMap>),
    Stream(Body),
}

impl Sent {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Sent::Whole(held, trailers) => held.bytes.is_empty() && trailers.is_none(),
            Sent::Stream(body) => http_body::Body::is_end_stream(body),
        }
    }

    pub(crate) fn into_body(self) -> Body {
        match self {
            Sent::Stream(body) => body,
            Sent::Whole(held, None) => full(held.bytes),
            Sent::Whole(held, Some(trailers)) => {
                let body = Full::new(held.bytes).map_err(|never| match never {});
                body.with_trailers(async { Some(Ok(trailers)) }).boxed_unsync()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const BODY: usize = 4 << 20;

    async fn gather(room: Arc<Room>, kind: Kind, count: Arc<Mutex<usize>>) -> Held {
        let mut gathering = Gathering::new(&room, kind);
        let piece = vec![1; 16 << 10];
        for _ in 0..BODY / piece.len() {
            gathering.push(&piece).await;
            *count.lock().unwrap() += piece.len();
            // Others have a turn.
            tokio::task::yield_now().await;
        }
        gathering.finish()
    }

    #[tokio::test(start_paused = true)]
    async fn many_large_bodies_hold_bounded_memory_and_all_end() {
        let (room, count) = (Arc::new(Room::default()), Arc::new(Mutex::new(0)));
        let mut all = tokio::task::JoinSet::new();
        for number in 0..100 {
            let kind = if number % 2 == 0 { Kind::Request } else { Kind::Answer };
            all.spawn(gather(room.clone(), kind, count.clone()));
        }
        let (mut ended, mut held, mut sent) = (0, Vec::new(), 0);
        while ended < 100 {
            // Time passes only if no body can do anything.
            while let Ok(Some(one)) = timeout(Duration::from_secs(1), all.join_next()).await {
                ended += 1;
                held.push(one.unwrap());
            }
            let most = (SHARED << 10) + 2 * BODY;
            assert!(
                *count.lock().unwrap() - sent <= most,
                "{} bytes are held",
                *count.lock().unwrap() - sent
            );
            assert!(!held.is_empty(), "all wait for each other");
            sent += held.drain(..1).map(|one| one.bytes.len()).sum::<usize>();
        }
        drop(held);
        assert_eq!(room.free(), SHARED);
    }

    #[tokio::test]
    async fn room_is_free_when_the_last_copy_of_the_bytes_is_dropped() {
        let room = Arc::new(Room::default());
        let mut gathering = Gathering::new(&room, Kind::Request);
        gathering.push(&[1; 100 << 10]).await;
        let held = gathering.finish();
        assert_eq!(room.free(), SHARED - 100);
        let replaced = held.replaced(vec![2; 50]);
        drop(held);
        let mut buffered = replaced.bytes.clone();
        drop(Sent::Whole(replaced, None).into_body());
        let last = buffered.split_off(49);
        drop(buffered);
        assert_eq!(room.free(), SHARED - 100, "one byte waits to be sent");
        drop(last);
        assert_eq!(room.free(), SHARED);
    }

    /// It waited as long as the others had the room.
    #[tokio::test(start_paused = true)]
    async fn body_that_finds_no_room_is_refused_after_a_minute() {
        let room = Arc::new(Room::default());
        let (_taken, since) = (room.fill(Kind::Request), Instant::now());
        let (mut bytes, mut deadline) = (Gathering::new(&room, Kind::Request), since);
        assert_eq!(bytes.push_before(&mut deadline, &[1]).await, Err(NoRoom));
        assert_eq!((since.elapsed(), deadline), (WAIT, since));
        assert_eq!(room.take(Kind::Request, 1).await.err(), Some(NoRoom));
    }

    #[test]
    fn parts_that_find_no_room_are_refused() {
        let room = Arc::new(Room::default());
        let (mut one, mut other) = (Parts::new(&room), Parts::new(&room));
        assert!(one.hold((SHARED << 10) + SMALL) && !other.hold(SMALL + 1) && other.hold(SMALL));
        assert!(one.hold(SMALL + 1));
        assert_eq!(room.free(), SHARED - 1);
        assert!(other.hold(1 << 20));
        drop((one, other));
        assert_eq!(room.free(), SHARED);
    }
}
