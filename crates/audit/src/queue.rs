//! Bounded queue between callers and the writer.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use crate::Error;
use crate::event::Record;

/// Maximum bytes of records that wait, or are being written.
pub(crate) const QUEUE_MAX: usize = 8 << 20;
/// Bytes for which the writer does not wait for more.
const ENOUGH: usize = 256 << 10;

/// Answer to a caller that waits for the disk.
pub(crate) type Answer = oneshot::Sender<Result<(), Error>>;

/// A record that waits.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) record: Record,
    /// Receives the outcome, if the caller waits for it.
    pub(crate) answer: Option<Answer>,
    /// Bytes that it takes of the queue.
    held: usize,
}

impl Item {
    /// Returns a record of a caller.
    pub(crate) fn new(record: Record, answer: Option<Answer>) -> Item {
        Item { held: record.as_bytes().len(), record, answer }
    }

    /// Returns a record of the writer, which takes nothing of the queue.
    pub(crate) fn of_writer(record: Record) -> Item {
        Item { record, answer: None, held: 0 }
    }

    /// Returns the bytes that it takes of the queue.
    pub(crate) fn bytes(&self) -> usize {
        self.held
    }
}

#[derive(Debug, Default)]
struct Inner {
    items: VecDeque<Item>,
    /// Time of the first item that no caller waits for.
    since: Option<Instant>,
    /// Bytes of items, also of those that the writer has taken.
    bytes: usize,
    /// Items with an answer.
    strict: usize,
    /// The items wait for no others.
    flushed: bool,
    lost: u64,
    closed: bool,
}

/// Queue of one writer.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    filled: Condvar,
    room: Notify,
    bound: usize,
}

/// Content of the queue for the writer.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) items: Vec<Item>,
    /// Records that were lost since the last time.
    pub(crate) lost: u64,
    /// No more records follow.
    pub(crate) closed: bool,
}

impl Queue {
    pub(crate) fn new(bound: usize) -> Queue {
        Queue { inner: Mutex::default(), filled: Condvar::new(), room: Notify::new(), bound }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record. Returns it if there is no room, or the queue is closed.
    pub(crate) fn push(&self, item: Item) -> Result<(), (Item, Error)> {
        let mut inner = self.inner();
        if inner.closed {
            return Err((item, Error::Closed));
        }
        // One record always fits.
        if inner.bytes > 0 && inner.bytes + item.bytes() > self.bound {
            return Err((item, Error::Full));
        }
        inner.bytes += item.bytes();
        let wakes = inner.since.is_none() || item.answer.is_some() || inner.bytes >= ENOUGH;
        inner.strict += usize::from(item.answer.is_some());
        inner.since.get_or_insert_with(Instant::now);
        inner.items.push_back(item);
        drop(inner);
        if wakes {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Adds a record as soon as there is room.
    pub(crate) async fn push_within(&self, mut item: Item, limit: Duration) -> Result<(), Error> {
        let until = tokio::time::Instant::now() + limit;
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match self.push(item) {
                Ok(()) => return Ok(()),
                Err((back, Error::Full)) => item = back,
                Err((_, error)) => return Err(error),
            }
            if tokio::time::timeout_at(until, room).await.is_err() {
                return Err(Error::Full);
            }
        }
    }

    /// Waits until there is room for a record.
    pub(crate) async fn room(&self, limit: Duration) -> Result<(), Error> {
        let until = tokio::time::Instant::now() + limit;
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.inner().bytes + crate::event::EVENT_MAX <= self.bound {
                return Ok(());
            }
            tokio::time::timeout_at(until, room).await.map_err(|_| Error::Full)?;
        }
    }

    /// Counts records that are lost.
    pub(crate) fn lose(&self, count: u64) {
        let mut inner = self.inner();
        inner.lost = inner.lost.saturating_add(count);
        drop(inner);
        self.filled.notify_one();
    }

    /// Takes no more records.
    pub(crate) fn close(&self) {
        self.inner().closed = true;
        self.filled.notify_one();
        self.room.notify_waiters();
    }

    /// Ends the wait of the records for others.
    pub(crate) fn flush(&self) {
        let mut inner = self.inner();
        inner.flushed = inner.since.is_some();
        drop(inner);
        self.filled.notify_one();
    }

    /// Waits until `until`, or until there are records: those for which a caller waits at once, others after `group`. While
    /// the disk fails (`failing`), only a record for which a caller waits ends the wait.
    pub(crate) fn take(&self, until: Option<Instant>, group: Duration, failing: bool) -> Taken {
        let mut inner = self.inner();
        loop {
            let now = Instant::now();
            let due = match inner.since {
                Some(since) if !failing => Some(since + group),
                _ => None,
            };
            let is_ready = inner.strict > 0
                || inner.closed
                || (!failing && inner.bytes >= ENOUGH && !inner.items.is_empty())
                || (!failing && (inner.flushed || inner.lost > 0));
            let wake = [due, until].into_iter().flatten().min();
            if is_ready || wake.is_some_and(|wake| wake <= now) {
                break;
            }
            inner = match wake {
                Some(wake) => {
                    self.filled.wait_timeout(inner, wake - now).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.filled.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let items = std::mem::take(&mut inner.items).into();
        (inner.since, inner.strict, inner.flushed) = (None, 0, false);
        Taken { items, lost: std::mem::take(&mut inner.lost), closed: inner.closed }
    }

    /// Ends the queue with its writer: callers that wait get no outcome, which they take as [`Error::Closed`].
    pub(crate) fn abandon(&self) {
        self.close();
        self.inner().items.clear();
    }

    /// Frees the room of records that the writer has finished.
    pub(crate) fn release(&self, bytes: usize) {
        let mut inner = self.inner();
        inner.bytes = inner.bytes.saturating_sub(bytes);
        drop(inner);
        self.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(bytes: usize) -> Item {
        let text = format!(r#"{{"class_uid":0,"time":0,"metadata":{{}},"x":"{}"}}"#, "x".repeat(bytes - 47));
        Item::new(Record::from_bytes(text.into_bytes()).unwrap(), None)
    }

    #[tokio::test]
    async fn full_queue_holds_callers_back_until_the_writer_releases() {
        let queue = Queue::new(250);
        queue.push(item(100)).unwrap();
        queue.push(item(100)).unwrap();
        assert!(matches!(queue.push(item(100)), Err((_, Error::Full))));
        let late = queue.push_within(item(100), Duration::from_millis(5)).await;
        assert!(matches!(late, Err(Error::Full)));
        let taken = queue.take(None, Duration::ZERO, false);
        assert_eq!((taken.items.len(), taken.closed), (2, false));
        // Taken is not finished.
        assert!(matches!(queue.push(item(100)), Err((_, Error::Full))));
        let waiting = queue.push_within(item(100), Duration::from_secs(60));
        let release = async { queue.release(100) };
        let (pushed, ()) = tokio::join!(waiting, release);
        pushed.unwrap();
        queue.close();
        assert!(matches!(queue.push(item(100)), Err((_, Error::Closed))));
        assert!(queue.take(None, Duration::from_secs(60), false).closed);
    }

    #[test]
    fn records_without_a_waiting_caller_are_grouped() {
        let queue = Queue::new(QUEUE_MAX);
        queue.push(item(100)).unwrap();
        let began = Instant::now();
        queue.take(None, Duration::from_millis(20), false);
        assert!(began.elapsed() >= Duration::from_millis(20));
        let (answer, _outcome) = oneshot::channel();
        queue.push(Item { answer: Some(answer), ..item(100) }).unwrap();
        let began = Instant::now();
        queue.take(None, Duration::from_secs(600), true);
        assert!(began.elapsed() < Duration::from_secs(600));
    }

    #[test]
    fn flushed_records_wait_for_no_others() {
        let (queue, forever) = (Queue::new(QUEUE_MAX), Duration::from_secs(1 << 30));
        queue.push(item(100)).unwrap();
        queue.flush();
        assert_eq!(queue.take(None, forever, false).items.len(), 1);
        // There is nothing to flush, and the next record waits.
        queue.flush();
        queue.push(item(100)).unwrap();
        assert_eq!(queue.take(Some(Instant::now()), forever, false).items.len(), 1);
        assert!(!queue.inner().flushed);
    }
}
