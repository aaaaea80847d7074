//! Garbage collection: an object that has lost its owners is deleted, in the background, in the foreground or not at all.
//!
//! Metadata watches of every kind feed a graph. A work queue reconciles its objects by UID: an owner can be of any kind and
//! has no other key. Nothing is deleted because of the graph alone. The graph takes the place of the informer cache:
//! the kinds are only known at run time, and of each object it keeps its edges alone.

mod apply;
mod graph;
mod plan;
mod watch;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hutch_reconcile::outcome::Outcome;
use hutch_reconcile::queue::{Backoff, Queue};
use kube::Client;
use tokio::sync::{mpsc, oneshot, watch as latest};
use tokio::time::Instant;

use self::apply::Task;
use self::graph::Graph;
use self::watch::{Change, Watches};
use crate::Error;
use crate::kinds::Kinds;

/// Maximum changes that wait for the graph. A watch waits for room, and its server for the watch.
const CHANGES: usize = 1024;
/// Maximum number of concurrent reconciles.
const RECONCILES: usize = 16;
/// Pauses before retries. An object that changed meanwhile is reconciled at once.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(20),
    longest: Duration::from_secs(30),
    longest_changed: Duration::ZERO,
};
/// Maximum wait for the first lists. After it, collection begins without the missing ones: owners that they do not show
/// are read live, which is only slower.
const FIRST_LISTS: Duration = Duration::from_secs(10);
/// Wait for further changes after a change of a definition, before the kinds are listed again: one manifest has several.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before the kinds are listed again after a failure.
const DISCOVER_AGAIN: Duration = Duration::from_secs(1);

/// Collects until the task is dropped. `kinds` gets every new set of kinds that is discovered.
pub(crate) async fn run(client: Client, kinds: latest::Sender<Arc<Kinds>>) -> Result<(), Error> {
    let queue = Queue::new(RECONCILES, BACKOFF, ());
    let collector = Arc::new(Collector {
        client,
        kinds: kinds.subscribe(),
        graph: Mutex::default(),
        queue: Arc::downgrade(&queue),
    });
    let (listed, first_lists) = oneshot::channel();
    let follow = follow(collector.clone(), kinds, listed);
    let collect = async {
        // An error means that the time is over.
        let _ = tokio::time::timeout(FIRST_LISTS, first_lists).await;
        queue.run(move |uid| collector.clone().reconcile(uid)).await;
    };
    tokio::select! {
        () = follow => {}
        () = collect => {}
    }
    Ok(())
}

/// Keeps the graph and the kinds like the server's state. Sends `listed` when every kind has been listed once.
async fn follow(collector: Arc<Collector>, kinds: latest::Sender<Arc<Kinds>>, listed: oneshot::Sender<()>) {
    let (sender, mut changes) = mpsc::channel(CHANGES);
    let mut watches = Watches::new(collector.client.clone(), sender);
    let first = Arc::clone(&kinds.borrow());
    watches.follow(&first);
    let mut unlisted: HashSet<_> = first.preferred.iter().map(|kind| watch::name(kind)).collect();
    let mut listed = Some(listed);
    let mut discover = None;
    loop {
        if unlisted.is_empty()
            && let Some(listed) = listed.take()
        {
            // Without a receiver, the time is over.
            let _ = listed.send(());
        }
        tokio::select! {
            change = changes.recv() => match change {
                Some(Change::Kinds) => {
                    discover.get_or_insert(Instant::now() + GATHER);
                }
                Some(change) => {
                    if let Change::Listed(kind, _) = &change {
                        unlisted.remove(&watch::name(kind));
                    }
                    collector.take(change);
                }
                // Cannot be: `watches` holds a sender.
                None => return,
            },
            () = until(discover) => discover = match Kinds::discover(&collector.client).await {
                Ok(found) => {
                    let found = Arc::new(found);
                    for kind in watches.follow(&found) {
                        collector.take(Change::Listed(kind, HashSet::new()));
                    }
                    kinds.send_replace(found);
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, "new kinds are not watched until the next try");
                    Some(Instant::now() + DISCOVER_AGAIN)
                }
            },
        }
    }
}

async fn until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// State that the watches and the reconciles share.
struct Collector {
    client: Client,
    kinds: latest::Receiver<Arc<Kinds>>,
    graph: Mutex<Graph>,
    /// Weak, since the queue holds the collector.
    queue: Weak<Queue<String>>,
}

impl Collector {
    fn take(&self, change: Change) {
        let uids = match change {
            Change::There(object) => self.graph().upsert(object),
            Change::Gone(uid) => self.graph().remove(&uid),
            Change::Listed(kind, uids) => self.graph().retain(&kind, &uids),
            Change::Kinds => Vec::new(),
        };
        self.enqueue(uids);
    }

    fn enqueue(&self, uids: Vec<String>) {
        if let Some(queue) = self.queue.upgrade() {
            uids.into_iter().for_each(|uid| queue.add(uid));
        }
    }

    async fn reconcile(self: Arc<Self>, uid: String) -> Outcome {
        let Some(task) = self.task(&uid) else { return Outcome::Settled };
        let kinds = Arc::clone(&self.kinds.borrow());
        match apply::reconcile(&self.client, &kinds, &task).await {
            Ok(apply::Outcome::Done) => return Outcome::Settled,
            Ok(apply::Outcome::Next(next)) => {
                self.enqueue(next);
                return Outcome::Settled;
            }
            Ok(apply::Outcome::Again) => {}
            Err(error) => tracing::warn!(%error, "garbage collection will try again"),
        }
        if self.graph().get(&uid).is_some() { Outcome::Failed } else { Outcome::Settled }
    }

    fn task(&self, uid: &str) -> Option<Task> {
        let graph = self.graph();
        Some(Task { object: graph.get(uid)?.clone(), dependents: graph.dependents(uid) })
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
