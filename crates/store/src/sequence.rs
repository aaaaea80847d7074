use std::sync::{Arc, RwLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::state::State;
use crate::value::{Entry, Event, Value};
use crate::{Error, QUEUE_WRITES};

/// One change of one key.
pub(crate) enum Change<V: Value> {
    Create(V::Draft),
    Update { expected: u64, draft: V::Draft },
    Delete { expected: u64, last: V::Draft },
}

/// Request to the writer.
pub(crate) enum Request<V: Value> {
    Write(Write<V>),
    /// Answered when everything before it is on disk and the file is closed.
    Close(oneshot::Sender<()>),
}

/// A change that has its revision and waits for the disk.
pub(crate) struct Write<V: Value> {
    pub(crate) collection: Box<str>,
    pub(crate) event: Event<V>,
    pub(crate) answer: oneshot::Sender<Result<(), Error>>,
    /// Its place in the queue.
    pub(crate) _room: OwnedSemaphorePermit,
}

type OnDisk = oneshot::Receiver<Result<(), Error>>;

/// Gives writes their order: checks each against what is there after the ones before it, and gives it the next revision.
pub(crate) struct Sequencer<V: Value> {
    /// State after the whole queue is on disk. The holder of its write lock owns the end of the queue.
    state: Arc<RwLock<State<V>>>,
    queue: mpsc::UnboundedSender<Request<V>>,
    /// Bounds the queue.
    room: Arc<Semaphore>,
}

impl<V: Value> Clone for Sequencer<V> {
    fn clone(&self) -> Self {
        Sequencer { state: self.state.clone(), queue: self.queue.clone(), room: self.room.clone() }
    }
}

impl<V: Value> Sequencer<V> {
    pub(crate) fn new(state: State<V>, queue: mpsc::UnboundedSender<Request<V>>) -> Self {
        let room = Arc::new(Semaphore::new(QUEUE_WRITES));
        Sequencer { state: Arc::new(RwLock::new(state)), queue, room }
    }

    pub(crate) fn state(&self) -> &Arc<RwLock<State<V>>> {
        &self.state
    }

    /// Makes a change visible to handles that run ahead. The second part resolves when it is on disk, or failed.
    pub(crate) async fn write(
        &self,
        collection: &str,
        name: &str,
        change: Change<V>,
    ) -> Result<(Arc<Entry<V>>, OnDisk), Error> {
        let room = self.room.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
        let (answer, on_disk) = oneshot::channel();
        let mut state = self.state.write().expect("a holder of the lock never panics");
        let event = accept(&state, collection, name, change)?;
        let entry = event.entry().clone();
        let write = Write { collection: collection.into(), event: event.clone(), answer, _room: room };
        self.queue.send(Request::Write(write)).map_err(|_| Error::Closed)?;
        state.apply(collection, event);
        state.ring(std::iter::once(collection));
        Ok((entry, on_disk))
    }

    /// False when the writer is gone already.
    pub(crate) fn close(&self, done: oneshot::Sender<()>) -> bool {
        let _order = self.state.write().expect("a holder of the lock never panics");
        self.queue.send(Request::Close(done)).is_ok()
    }
}

fn accept<V: Value>(
    state: &State<V>,
    collection: &str,
    name: &str,
    change: Change<V>,
) -> Result<Event<V>, Error> {
    let revision = state.revision + 1;
    let found = state.existing(collection).and_then(|collection| collection.live.get(name)).cloned();
    let replace = |before: &Arc<Entry<V>>, expected: u64, draft: V::Draft| {
        if before.revision != expected {
            return Err(Error::Conflict { current: before.revision });
        }
        let (name, created) = (before.name.clone(), before.created);
        Ok(Arc::new(Entry { name, revision, created, value: V::seal(draft, revision) }))
    };
    match (found, change) {
        (None, Change::Create(draft)) => {
            let value = V::seal(draft, revision);
            Ok(Event::Created(Arc::new(Entry { name: name.into(), revision, created: revision, value })))
        }
        (Some(_), Change::Create(_)) => Err(Error::Exists),
        (None, _) => Err(Error::NotFound),
        (Some(before), Change::Update { expected, draft }) => {
            Ok(Event::Updated { now: replace(&before, expected, draft)?, before })
        }
        (Some(before), Change::Delete { expected, last }) => {
            Ok(Event::Deleted { last: replace(&before, expected, last)?, before })
        }
    }
}
