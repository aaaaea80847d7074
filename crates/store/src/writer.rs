use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use tokio::sync::{mpsc, oneshot};

use crate::disk::Disk;
use crate::state::State;
use crate::value::{Entry, Event, Value};
use crate::{BATCH_WRITES, Error};

/// What is asked of the writer.
pub(crate) enum Request<V: Value> {
    Write(Write<V>),
    /// Answered when everything before it is on disk and the file is closed.
    Close(oneshot::Sender<()>),
}

/// One change of one key.
pub(crate) struct Write<V: Value> {
    pub(crate) collection: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) change: Change<V>,
    pub(crate) answer: oneshot::Sender<Result<Arc<Entry<V>>, Error>>,
}

pub(crate) enum Change<V: Value> {
    Create(V::Draft),
    Update { expected: u64, draft: V::Draft },
    Delete { expected: u64, last: V::Draft },
}

type Answer<V> = (oneshot::Sender<Result<Arc<Entry<V>>, Error>>, Arc<Entry<V>>);

/// Collection and name.
type Key = (Box<str>, Box<str>);

/// The changes of one group commit.
struct Batch<V: Value> {
    revision: u64,
    events: Vec<(Box<str>, Event<V>)>,
    answers: Vec<Answer<V>>,
    /// What the keys touched by this batch are after it.
    pending: HashMap<Key, Option<Arc<Entry<V>>>>,
}

/// Runs until the last handle is gone or the store is closed.
pub(crate) fn run<V: Value>(
    mut disk: Disk,
    state: Arc<RwLock<State<V>>>,
    mut queue: mpsc::Receiver<Request<V>>,
) {
    while let Some(first) = queue.blocking_recv() {
        let mut batch = Batch::new(state.read().expect("a holder of the lock never panics").revision);
        let mut close = None;
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(request) = next {
            match request {
                Request::Write(write) => batch.add(&state, write),
                Request::Close(done) => {
                    close = Some(done);
                    break;
                }
            }
            taken += 1;
            next = if taken < BATCH_WRITES { queue.try_recv().ok() } else { None };
        }
        batch.finish(&mut disk, &state);
        if let Some(done) = close {
            queue.close();
            drop(disk);
            // The closer may have given up waiting; the file is closed all the same.
            let _ = done.send(());
            return;
        }
    }
}

impl<V: Value> Batch<V> {
    fn new(revision: u64) -> Self {
        Batch { revision, events: Vec::new(), answers: Vec::new(), pending: HashMap::new() }
    }

    fn current(&self, state: &RwLock<State<V>>, key: &Key) -> Option<Arc<Entry<V>>> {
        if let Some(pending) = self.pending.get(key) {
            return pending.clone();
        }
        let state = state.read().expect("a holder of the lock never panics");
        state.existing(&key.0)?.live.get(&*key.1).cloned()
    }

    /// Checks a write against what is there after the ones before it, and takes it in or answers it.
    fn add(&mut self, state: &RwLock<State<V>>, write: Write<V>) {
        if write.answer.is_closed() {
            return; // Whoever asked is gone before it began.
        }
        let key = (write.collection, write.name);
        let event = match (self.current(state, &key), write.change) {
            (None, Change::Create(draft)) => Ok(Event::Created(self.seal(&key.1, None, draft))),
            (Some(_), Change::Create(_)) => Err(Error::Exists),
            (None, _) => Err(Error::NotFound),
            (Some(before), Change::Update { expected, .. } | Change::Delete { expected, .. })
                if before.revision != expected =>
            {
                Err(Error::Conflict { current: before.revision })
            }
            (Some(before), Change::Update { draft, .. }) => {
                let now = self.seal(&key.1, Some(&before), draft);
                Ok(Event::Updated { before, now })
            }
            (Some(before), Change::Delete { last, .. }) => {
                let last = self.seal(&key.1, Some(&before), last);
                Ok(Event::Deleted { before, last })
            }
        };
        match event {
            Ok(event) => {
                let entry = event.entry().clone();
                let live = (!matches!(event, Event::Deleted { .. })).then(|| entry.clone());
                self.events.push((key.0.clone(), event));
                self.answers.push((write.answer, entry));
                self.pending.insert(key, live);
            }
            Err(error) => {
                // Nobody to tell when the caller is gone.
                let _ = write.answer.send(Err(error));
            }
        }
    }

    fn seal(&mut self, name: &str, before: Option<&Arc<Entry<V>>>, draft: V::Draft) -> Arc<Entry<V>> {
        self.revision += 1;
        let revision = self.revision;
        let (name, created) = match before {
            Some(entry) => (entry.name.clone(), entry.created),
            None => (name.into(), revision),
        };
        Arc::new(Entry { name, revision, created, value: V::seal(draft, revision) })
    }

    /// Commits, makes visible, answers; in this order.
    fn finish(self, disk: &mut Disk, state: &RwLock<State<V>>) {
        if self.events.is_empty() {
            return;
        }
        if let Err(error) = disk.commit(&self.events) {
            tracing::error!(%error, writes = self.events.len(), "the store could not commit");
            for (answer, _) in self.answers {
                let _ = answer.send(Err(error.again()));
            }
            return;
        }
        {
            let mut state = state.write().expect("a holder of the lock never panics");
            let mut touched: Vec<Box<str>> = Vec::new();
            for (collection, event) in self.events {
                state.apply(&collection, event);
                if !touched.contains(&collection) {
                    touched.push(collection);
                }
            }
            state.ring(touched.iter().map(|name| &**name));
        }
        for (answer, entry) in self.answers {
            let _ = answer.send(Ok(entry));
        }
    }
}
