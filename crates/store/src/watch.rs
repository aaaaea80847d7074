use std::collections::VecDeque;
use std::sync::{Arc, RwLock};

use tokio::sync::watch;

use crate::state::State;
use crate::{Error, Event, Value};

/// Events handed over per look at the window, so that the lock is held shortly.
const TAKE: usize = 128;

/// A cursor into the events of a collection. Dropping it ends the watch.
pub struct Watch<V> {
    state: Arc<RwLock<State<V>>>,
    collection: Box<str>,
    prefix: Box<str>,
    /// Everything up to here was seen.
    seen: u64,
    bell: watch::Receiver<u64>,
    ready: VecDeque<Event<V>>,
}

impl<V: Value> Watch<V> {
    pub(crate) fn new(
        state: Arc<RwLock<State<V>>>,
        collection: &str,
        prefix: &str,
        after: u64,
    ) -> Result<Self, Error> {
        let bell = {
            let mut guard = state.write().expect("a holder of the lock never panics");
            let collection = guard.collection(collection);
            if after < collection.compacted() {
                return Err(Error::Compacted { asked: after, oldest: collection.compacted() });
            }
            collection.bell()
        };
        Ok(Watch {
            state,
            collection: collection.into(),
            prefix: prefix.into(),
            seen: after,
            bell,
            ready: VecDeque::new(),
        })
    }

    /// The next event. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Compacted`] when the reader was so slow that events were dropped, [`Error::Closed`] when the
    /// store was closed.
    pub async fn next(&mut self) -> Result<Event<V>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            // Marked before looking, so that what comes after the look rings again.
            self.bell.borrow_and_update();
            self.fill()?;
            if self.ready.is_empty() && self.bell.changed().await.is_err() {
                return Err(Error::Closed);
            }
        }
    }

    /// Every event up to this revision was returned by [`Watch::next`], as far as this watch has looked.
    pub fn seen(&self) -> u64 {
        match self.ready.front() {
            Some(event) => event.revision() - 1,
            None => self.seen,
        }
    }

    fn fill(&mut self) -> Result<(), Error> {
        let guard = self.state.read().expect("a holder of the lock never panics");
        let Some(collection) = guard.existing(&self.collection) else { return Ok(()) };
        if self.seen < collection.compacted() {
            return Err(Error::Compacted { asked: self.seen, oldest: collection.compacted() });
        }
        for event in collection.events_after(self.seen) {
            if self.ready.len() == TAKE {
                return Ok(());
            }
            self.seen = event.revision();
            if event.entry().name.starts_with(&*self.prefix) {
                self.ready.push_back(event.clone());
            }
        }
        // A watch may stand at a revision of the future (a list of another life of the store); it stays there.
        self.seen = self.seen.max(guard.revision);
        Ok(())
    }
}
