use std::sync::{Arc, RwLock};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use crate::disk::Disk;
use crate::sequence::{Request, Write};
use crate::state::State;
use crate::value::{Event, Value};
use crate::{BATCH_WRITES, Error};

/// The changes of one group commit.
struct Batch<V> {
    events: Vec<(Box<str>, Event<V>)>,
    answers: Vec<oneshot::Sender<Result<(), Error>>>,
}

/// Brings the queue to disk until the last handle is gone or the store is closed.
pub(crate) fn run<V: Value>(
    mut disk: Disk,
    durable: &RwLock<State<V>>,
    ahead: &Arc<RwLock<State<V>>>,
    mut queue: UnboundedReceiver<Request<V>>,
) {
    while let Some(first) = queue.blocking_recv() {
        let mut batch = Batch { events: Vec::new(), answers: Vec::new() };
        let mut close = None;
        let mut next = Some(first);
        while let Some(request) = next {
            match request {
                Request::Write(write) => batch.add(write),
                Request::Close(done) => {
                    close = Some(done);
                    break;
                }
            }
            next = if batch.events.len() < BATCH_WRITES { queue.try_recv().ok() } else { None };
        }
        match disk.commit(&batch.events) {
            Ok(()) => batch.publish(durable),
            Err(error) => {
                tracing::error!(%error, writes = batch.events.len(), "the store could not commit");
                close = take_back(batch, &error, durable, ahead, &mut queue).or(close);
            }
        }
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
    fn add(&mut self, write: Write<V>) {
        self.events.push((write.collection, write.event));
        self.answers.push(write.answer);
    }

    /// Makes visible what is on disk, then answers.
    fn publish(self, durable: &RwLock<State<V>>) {
        {
            let mut state = durable.write().expect("a holder of the lock never panics");
            let mut touched: Vec<Box<str>> = Vec::new();
            for (collection, event) in self.events {
                state.apply(&collection, event);
                if !touched.contains(&collection) {
                    touched.push(collection);
                }
            }
            state.ring(touched.iter().map(|name| &**name));
        }
        for answer in self.answers {
            // Those who run ahead do not wait for it.
            let _ = answer.send(Ok(()));
        }
    }

    fn refuse(self, error: &Error) {
        for answer in self.answers {
            let _ = answer.send(Err(error.again()));
        }
    }
}

/// Refuses a batch and all that was sequenced after it and may build on it. Those who run ahead see the disk's state again.
fn take_back<V: Value>(
    mut batch: Batch<V>,
    error: &Error,
    durable: &RwLock<State<V>>,
    ahead: &Arc<RwLock<State<V>>>,
    queue: &mut UnboundedReceiver<Request<V>>,
) -> Option<oneshot::Sender<()>> {
    let mut close = None;
    {
        // With this lock nothing comes to the end of the queue.
        let mut ahead = ahead.write().expect("a holder of the lock never panics");
        while let Ok(request) = queue.try_recv() {
            match request {
                Request::Write(write) => batch.add(write),
                Request::Close(done) => close = Some(done),
            }
        }
        let durable = durable.read().expect("a holder of the lock never panics");
        ahead.reset(&durable);
        durable.ring(std::iter::empty());
    }
    batch.refuse(error);
    close
}
