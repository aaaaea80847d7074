//! Records of what a sandbox does. Where that is wanted, the log has a record on its disk before what it allows happens.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hutch_policy::{Destination, HostName, Opinion};

use crate::ends::{Ended, Ends};
use crate::ground::Ground;
use crate::pending::Pending;
use crate::record::{Asked, Record};
use crate::refusal::Reason;

/// Maximum time until a record is on the disk.
const WRITE: Duration = Duration::from_secs(10);

/// Content of a record.
pub(crate) enum Entry<'a> {
    /// Decision about a connection or a request.
    Decided(&'a Record<'a>),
    /// The value of this credential is sent.
    Used(&'a str, &'a Destination),
    /// A name has got an address.
    Named(&'a HostName),
    /// Connections have ended.
    Ended(Ended),
}

/// Receives each record. With a number it is to be written first, and [`Records::answer`] says whether it is.
pub(crate) type Sink = Box<dyn Fn(Entry<'_>, Option<u64>) + Send + Sync>;

/// Records of a sandbox. Without a sink, none are made.
#[derive(Default)]
pub(crate) struct Records {
    /// With true, connections, requests and uses wait for the disk.
    sink: OnceLock<(Sink, bool)>,
    pending: Pending<bool>,
    /// Names that have an address and no record yet for which their answers wait.
    unwritten: Mutex<HashSet<HostName>>,
    ends: Mutex<Ends>,
}

impl Drop for Records {
    fn drop(&mut self) {
        if let Some((sink, _)) = self.sink.get() {
            let sums = self.ends.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            sums.into_iter().for_each(|ended| sink(Entry::Ended(ended), None));
        }
    }
}

impl Records {
    /// Sets the receiver, once. With `durable`, what is allowed waits until it is on the disk.
    pub(crate) fn set(&self, sink: Sink, durable: bool) {
        let _ = self.sink.set((sink, durable));
    }

    /// Returns true if a record is to be written before what it allows happens.
    pub(crate) fn come_first(&self) -> bool {
        self.sink.get().is_some_and(|(_, durable)| *durable)
    }

    /// Takes the answer to a record that waits.
    pub(crate) fn answer(&self, number: u64, written: bool) {
        self.pending.answer(number, written);
    }

    /// Returns by which opinion something is allowed, if that is recorded.
    pub(crate) fn ground(&self, opinions: &[Opinion<'_>]) -> Option<Ground> {
        self.sink.get().and_then(|_| Ground::first(opinions))
    }

    /// Records that something is refused, or would have been.
    pub(crate) fn refused(&self, destination: &str, asked: Option<&Asked<'_>>, reason: &Reason) {
        if let Some((sink, _)) = self.sink.get() {
            sink(Entry::Decided(&Record::refused(destination, asked, reason)), None);
        }
    }

    /// Records that something is allowed.
    ///
    /// # Errors
    /// It must be written first, and cannot.
    pub(crate) async fn allowed(
        &self,
        destination: &Destination,
        asked: Option<&Asked<'_>>,
        ground: Option<&Ground>,
    ) -> Result<(), Reason> {
        let Some(sink) = self.sink.get() else { return Ok(()) };
        let destination = destination.to_string();
        self.write(sink, Entry::Decided(&Record::allowed(&destination, asked, ground))).await
    }

    /// Records that the values of these credentials are sent.
    ///
    /// # Errors
    /// As [`Records::allowed`].
    pub(crate) async fn uses(
        &self,
        credentials: &BTreeSet<String>,
        destination: &Destination,
    ) -> Result<(), Reason> {
        let Some(sink) = self.sink.get() else { return Ok(()) };
        for credential in credentials {
            self.write(sink, Entry::Used(credential, destination)).await?;
        }
        Ok(())
    }

    /// Records that a query has given a name its address. Where records are to be written first, its answers wait for
    /// [`Records::resolved`].
    pub(crate) fn named(&self, name: &HostName) {
        match self.sink.get() {
            Some((_, true)) => drop(self.unwritten().insert(name.clone())),
            Some((sink, false)) => sink(Entry::Named(name), None),
            None => {}
        }
    }

    /// Records that a name has got its address for a connection, which has a record of its own. Nothing waits, except the
    /// answers to later queries.
    pub(crate) fn named_by_client(&self, name: &HostName) {
        if let Some((sink, durable)) = self.sink.get() {
            sink(Entry::Named(name), None);
            if *durable {
                self.unwritten().insert(name.clone());
            }
        }
    }

    /// Returns true if the answers to queries for a name wait for its record.
    pub(crate) fn is_unwritten(&self, name: &HostName) -> bool {
        self.unwritten().contains(name)
    }

    /// Records a name whose answer waits.
    ///
    /// # Errors
    /// As [`Records::allowed`].
    pub(crate) async fn resolved(&self, name: &HostName) -> Result<(), Reason> {
        let Some(sink) = self.sink.get() else { return Ok(()) };
        self.write(sink, Entry::Named(name)).await?;
        self.unwritten().remove(name);
        Ok(())
    }

    /// Records that a connection has ended. Nothing waits for that.
    pub(crate) fn ended(&self, ended: impl FnOnce() -> Ended) {
        let Some((sink, _)) = self.sink.get() else { return };
        let due = self.ends.lock().unwrap_or_else(PoisonError::into_inner).add(ended(), Instant::now());
        due.into_iter().for_each(|ended| sink(Entry::Ended(ended), None));
    }

    fn unwritten(&self) -> MutexGuard<'_, HashSet<HostName>> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(&self, (sink, durable): &(Sink, bool), entry: Entry<'_>) -> Result<(), Reason> {
        if !durable {
            sink(entry, None);
            return Ok(());
        }
        match self.pending.ask(WRITE, |number| sink(entry, Some(number))).await {
            Some(true) => Ok(()),
            Some(false) | None => Err(Reason::Unrecorded),
        }
    }
}

/// An open connection. Its end is recorded when it is dropped, as cut off unless it was [`Open::closed`].
pub(crate) struct Open<'a> {
    records: &'a Records,
    destination: &'a Destination,
    received: AtomicU64,
    sent: AtomicU64,
    reset: AtomicBool,
}

impl<'a> Open<'a> {
    pub(crate) fn new(records: &'a Records, destination: &'a Destination) -> Open<'a> {
        let (received, sent, reset) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(true));
        Open { records, destination, received, sent, reset }
    }

    /// Counts bytes that the sandbox receives.
    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that it sends.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes that both sides have ended.
    pub(crate) fn closed(&self) {
        self.reset.store(false, Ordering::Relaxed);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.records.ended(|| Ended {
            destination: self.destination.to_string(),
            connections: 1,
            received: self.received.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            reset: self.reset.load(Ordering::Relaxed),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn durable_record_is_written_before_what_it_allows() {
        let (records, numbers) = (Arc::new(Records::default()), Arc::new(Mutex::new(Vec::new())));
        let destination: Destination = "a.example:443".parse().unwrap();
        // Without a sink nothing is held back.
        assert_eq!(records.allowed(&destination, None, None).await, Ok(()));
        let (answering, seen) = (records.clone(), numbers.clone());
        let sink: Sink = Box::new(move |entry, number| {
            let used = matches!(entry, Entry::Used(..));
            seen.lock().unwrap().push((used, number));
            if let Some(number) = number {
                // The log takes decisions, and no uses.
                let answering = answering.clone();
                tokio::spawn(async move { answering.answer(number, !used) });
            }
        });
        records.set(sink, true);
        assert_eq!(records.allowed(&destination, None, None).await, Ok(()));
        let used = ["github".to_owned()].into();
        assert_eq!(records.uses(&used, &destination).await, Err(Reason::Unrecorded));
        records.refused("a.example:443", None, &Reason::TooMany);
        assert_eq!(*numbers.lock().unwrap(), [(false, Some(0)), (true, Some(1)), (false, None)]);
    }
}
