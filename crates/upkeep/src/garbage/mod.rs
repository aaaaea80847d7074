//! Garbage collection: what has lost its owners goes, in the background, in the foreground or not at all.
//!
//! One task holds the graph, fed by metadata watches of every kind; tasks at objects run beside it, a bounded number
//! at a time and one at a time for each object. Nothing is deleted on the graph's word alone.

mod apply;
mod graph;
mod plan;
mod watch;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::{mpsc, watch as latest};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::apply::{Outcome, Task};
use self::graph::Graph;
use self::watch::{Change, Watches};
use crate::Error;
use crate::kinds::Kinds;

/// Changes that wait for the graph. A watch waits for room, and its server for the watch.
const CHANGES: usize = 1024;
/// Looks at the same time.
const TASKS_MAX: usize = 16;
/// Pause before the first retry; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause before a retry.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// How long the first lists may take before collection begins without the missing ones; what they do not show is
/// then read live, which is only slower.
const FIRST_LISTS: Duration = Duration::from_secs(10);
/// Time after a change of a definition for further ones, before the kinds are listed anew: several come in one
/// manifest.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before the kinds are listed again after a failure.
const DISCOVER_AGAIN: Duration = Duration::from_secs(1);

/// Collects until the task is dropped. `kinds` gets every new set of kinds that is discovered.
pub(crate) async fn run(client: Client, kinds: latest::Sender<Arc<Kinds>>) -> Result<(), Error> {
    let (sender, mut changes) = mpsc::channel(CHANGES);
    let mut watches = Watches::new(client.clone(), sender);
    let first = Arc::clone(&kinds.borrow());
    let mut collector = Collector::new(client.clone(), first);
    watches.follow(&collector.kinds);
    let mut unlisted: HashSet<_> = collector.kinds.preferred.iter().map(|kind| watch::name(kind)).collect();
    let start = Instant::now() + FIRST_LISTS;
    let mut started = false;
    let mut discover = None;
    loop {
        started |= unlisted.is_empty() || Instant::now() >= start;
        if started {
            collector.start_tasks();
        }
        let repetition = collector.next_repetition();
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
                None => return Ok(()),
            },
            Some(ended) = collector.tasks.join_next() => {
                let (uid, outcome) = ended.map_err(Error::Broken)?;
                collector.end_look(uid, outcome);
            }
            () = until(repetition) => collector.repeat(),
            () = until(discover) => discover = match Kinds::discover(&client).await {
                Ok(found) => {
                    collector.kinds = Arc::new(found);
                    for kind in watches.follow(&collector.kinds) {
                        collector.take(Change::Listed(kind, HashSet::new()));
                    }
                    kinds.send_replace(Arc::clone(&collector.kinds));
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, "new kinds are not watched until the next try");
                    Some(Instant::now() + DISCOVER_AGAIN)
                }
            },
            () = tokio::time::sleep_until(start), if !started => {}
        }
    }
}

async fn until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

struct Collector {
    client: Client,
    kinds: Arc<Kinds>,
    graph: Graph,
    /// UIDs to reconcile, each once, oldest first. Bounded by the number of objects.
    queue: VecDeque<String>,
    queued: HashSet<String>,
    tasks: JoinSet<(String, Result<Outcome, Error>)>,
    running: HashSet<String>,
    /// To be repeated: when, and after which pause.
    later: HashMap<String, (Instant, Duration)>,
    pauses: HashMap<String, Duration>,
}

impl Collector {
    fn new(client: Client, kinds: Arc<Kinds>) -> Self {
        Self {
            client,
            kinds,
            graph: Graph::default(),
            queue: VecDeque::new(),
            queued: HashSet::new(),
            tasks: JoinSet::new(),
            running: HashSet::new(),
            later: HashMap::new(),
            pauses: HashMap::new(),
        }
    }

    fn take(&mut self, change: Change) {
        let uids = match change {
            Change::There(object) => self.graph.upsert(object),
            Change::Gone(uid) => self.graph.remove(&uid),
            Change::Listed(kind, uids) => self.graph.retain(&kind, &uids),
            Change::Kinds => Vec::new(),
        };
        uids.into_iter().for_each(|uid| self.enqueue(uid));
    }

    fn enqueue(&mut self, uid: String) {
        if self.queued.insert(uid.clone()) {
            self.queue.push_back(uid);
        }
    }

    fn start_tasks(&mut self) {
        // Those that are being reconciled already wait for the end of that.
        let mut turns = self.queue.len();
        while turns > 0 && self.tasks.len() < TASKS_MAX {
            turns -= 1;
            let Some(uid) = self.queue.pop_front() else { return };
            if self.running.contains(&uid) {
                self.queue.push_back(uid);
                continue;
            }
            self.queued.remove(&uid);
            let Some(object) = self.graph.get(&uid).cloned() else { continue };
            self.running.insert(uid.clone());
            let dependents = self.graph.dependents(&uid);
            let (client, kinds) = (self.client.clone(), Arc::clone(&self.kinds));
            self.tasks.spawn(async move {
                let outcome = apply::reconcile(&client, &kinds, &Task { object, dependents }).await;
                (uid, outcome)
            });
        }
    }

    fn end_look(&mut self, uid: String, outcome: Result<Outcome, Error>) {
        self.running.remove(&uid);
        match outcome {
            Ok(Outcome::Done) => {
                self.pauses.remove(&uid);
            }
            Ok(Outcome::Next(next)) => {
                self.pauses.remove(&uid);
                next.into_iter().for_each(|uid| self.enqueue(uid));
            }
            Ok(Outcome::Again) => self.look_later(uid),
            Err(error) => {
                tracing::warn!(%error, "garbage collection will try again");
                self.look_later(uid);
            }
        }
    }

    fn look_later(&mut self, uid: String) {
        if self.graph.get(&uid).is_none() {
            self.pauses.remove(&uid);
            return;
        }
        let pause = self.pauses.get(&uid).map_or(FIRST_PAUSE, |pause| (*pause * 2).min(LAST_PAUSE));
        self.pauses.insert(uid.clone(), pause);
        self.later.insert(uid, (Instant::now() + pause, pause));
    }

    fn next_repetition(&self) -> Option<Instant> {
        self.later.values().map(|(when, _)| *when).min()
    }

    fn repeat(&mut self) {
        let now = Instant::now();
        let due: Vec<_> =
            self.later.iter().filter(|(_, (when, _))| *when <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            self.later.remove(&uid);
            self.enqueue(uid);
        }
    }
}
