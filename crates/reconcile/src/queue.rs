//! Work queue: reconciles each added key once, never the same key twice at a time, and a bounded number of keys at once.
//!
//! There is no dispatcher task: adding a key starts its reconcile at once when there is room, so nothing waits for a timer
//! or for the turn of another task.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::key::Key;
use crate::outcome::Outcome;

/// Pauses before a failed key is reconciled again. The default is that of controller-runtime.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// Pause after the first failure of a key. Each further failure doubles it.
    pub first: Duration,
    /// Maximum pause.
    pub longest: Duration,
    /// Maximum pause when the key was added again during the failed reconcile.
    pub longest_changed: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            first: Duration::from_millis(5),
            longest: Duration::from_secs(1000),
            longest_changed: Duration::from_secs(1),
        }
    }
}

/// Receiver of what happens in a queue. `()` ignores it.
pub trait Metrics: Send + Sync + 'static {
    /// A key was added that was not waiting yet.
    fn added(&self) {}
    /// A reconcile began after its key had waited so long.
    fn began(&self, _waited: Duration) {}
    /// A reconcile ended.
    fn ended(&self, _outcome: Outcome, _took: Duration) {}
    /// Number of waiting keys, on [`Queue::measure`].
    fn waiting(&self, _count: usize) {}
    /// Ages of the reconciles in progress, on [`Queue::measure`].
    fn in_progress(&self, _ages: impl Iterator<Item = Duration>) {}
}

impl Metrics for () {}

type Worker<K> = Box<dyn Fn(K) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// Work queue, and the tasks that reconcile its keys.
pub struct Queue<K = Key, M = ()> {
    worker: OnceLock<Worker<K>>,
    limit: usize,
    backoff: Backoff,
    state: Mutex<State<K>>,
    tasks: TaskTracker,
    metrics: M,
}

struct State<K> {
    started: bool,
    stopping: bool,
    waiting: VecDeque<K>,
    /// Start of the wait of each key in `waiting`.
    waits: HashMap<K, Instant>,
    running: HashMap<K, Run>,
    failures: HashMap<K, u32>,
    timers: BTreeMap<K, Timer>,
}

/// Later addition of a key.
struct Timer {
    due: Instant,
    task: AbortHandle,
}

/// Reconcile in progress.
struct Run {
    since: Instant,
    /// True if the key was added again meanwhile.
    again: bool,
}

impl<K: Clone + Ord + Hash + Send + 'static, M: Metrics> Queue<K, M> {
    /// Returns a queue that reconciles at most `limit` keys at a time, once it is started.
    pub fn new(limit: usize, backoff: Backoff, metrics: M) -> Arc<Self> {
        let state = Mutex::new(State {
            started: false,
            stopping: false,
            waiting: VecDeque::new(),
            waits: HashMap::new(),
            running: HashMap::new(),
            failures: HashMap::new(),
            timers: BTreeMap::new(),
        });
        let (worker, tasks) = (OnceLock::new(), TaskTracker::new());
        Arc::new(Queue { worker, limit: limit.max(1), backoff, state, tasks, metrics })
    }

    /// Updates the metrics that change without an event.
    pub fn measure(&self) {
        let state = self.state();
        self.metrics.waiting(state.waiting.len());
        self.metrics.in_progress(state.running.values().map(|run| run.since.elapsed()));
    }

    /// Starts to reconcile; keys that were added before have waited for this. Called once.
    pub fn start(
        self: &Arc<Self>,
        worker: impl Fn(K) -> BoxFuture<'static, Outcome> + Send + Sync + 'static,
    ) {
        let first = self.worker.set(Box::new(worker)).is_ok();
        debug_assert!(first, "a queue starts once");
        let mut state = self.state();
        state.started = true;
        while state.running.len() < self.limit {
            let Some(key) = self.take_waiting(&mut state) else { break };
            self.spawn(key);
        }
    }

    /// Starts to reconcile and continues until the returned future is dropped, which cancels the reconciles in progress.
    /// Called once, instead of [`Queue::start`].
    pub async fn run<F>(self: Arc<Self>, reconcile: impl Fn(K) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let cancel = CancellationToken::new();
        let _stop = (Stop(self.clone()), cancel.clone().drop_guard());
        self.start(move |key| {
            let (reconcile, cancel) = (reconcile(key), cancel.clone());
            async move { cancel.run_until_cancelled(reconcile).await.unwrap_or(Outcome::Settled) }.boxed()
        });
        futures::future::pending().await
    }

    /// Requests a reconcile of the key. It can be called from anywhere, any number of times.
    pub fn add(self: &Arc<Self>, key: K) {
        let mut state = self.state();
        if let Some(run) = state.running.get_mut(&key) {
            if !std::mem::replace(&mut run.again, true) {
                self.metrics.added();
            }
        } else if state.waits.contains_key(&key) {
        } else if state.started && !state.stopping && state.running.len() < self.limit {
            self.metrics.added();
            self.begin(&mut state, key.clone(), Duration::ZERO);
            self.spawn(key);
        } else {
            self.metrics.added();
            state.wait(key);
        }
    }

    /// Requests a reconcile of the key after this time, unless one is due earlier. Further requests until then are part of it.
    pub fn add_later(self: &Arc<Self>, key: K, after: Duration) {
        let mut state = self.state();
        if state.running.contains_key(&key) {
            drop(state);
            return self.add(key);
        }
        let due = Instant::now() + after;
        let is_earlier = |timer: &Timer| timer.due <= due;
        if !state.stopping
            && !state.waits.contains_key(&key)
            && !state.timers.get(&key).is_some_and(is_earlier)
        {
            self.add_after(&mut state, key, after);
        }
    }

    /// Starts no more reconciles and waits for those in progress.
    pub async fn stop(&self) {
        self.close();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn close(&self) {
        let mut state = self.state();
        state.stopping = true;
        for (_, timer) in std::mem::take(&mut state.timers) {
            timer.task.abort();
        }
    }

    fn spawn(self: &Arc<Self>, key: K) {
        let queue = self.clone();
        self.tasks.spawn(async move {
            let mut next = Some(key);
            while let Some(key) = next {
                let worker = queue.worker.get().expect("set before the first key is run");
                let began = Instant::now();
                let outcome = worker(key.clone()).await;
                queue.metrics.ended(outcome, began.elapsed());
                next = queue.finish(key, outcome);
            }
        });
    }

    /// Records the outcome and returns the key that this task reconciles next.
    fn finish(self: &Arc<Self>, key: K, outcome: Outcome) -> Option<K> {
        let mut state = self.state();
        let changed = state.running.remove(&key).is_some_and(|run| run.again);
        if state.stopping {
            return None;
        }
        if let Some(timer) = state.timers.remove(&key) {
            timer.task.abort();
        }
        if outcome != Outcome::Failed {
            state.failures.remove(&key);
        }
        match outcome {
            Outcome::Failed => {
                let pause = state.pause(&self.backoff, &key, changed);
                self.add_after(&mut state, key, pause);
            }
            _ if changed => state.wait(key),
            Outcome::Again(after) => self.add_after(&mut state, key, after),
            Outcome::Settled => {}
        }
        self.take_waiting(&mut state)
    }

    fn take_waiting(&self, state: &mut State<K>) -> Option<K> {
        let key = state.waiting.pop_front()?;
        let since = state.waits.remove(&key);
        self.begin(state, key.clone(), since.map(|since| since.elapsed()).unwrap_or_default());
        Some(key)
    }

    fn begin(&self, state: &mut State<K>, key: K, waited: Duration) {
        state.running.insert(key, Run { since: Instant::now(), again: false });
        self.metrics.began(waited);
    }

    fn add_after(self: &Arc<Self>, state: &mut State<K>, key: K, after: Duration) {
        let (queue, timed) = (self.clone(), key.clone());
        let timer = tokio::spawn(async move {
            tokio::time::sleep(after).await;
            queue.state().timers.remove(&timed);
            queue.add(timed);
        });
        let timer = Timer { due: Instant::now() + after, task: timer.abort_handle() };
        if let Some(replaced) = state.timers.insert(key, timer) {
            replaced.task.abort();
        }
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the queue when dropped.
struct Stop<K: Clone + Ord + Hash + Send + 'static, M: Metrics>(Arc<Queue<K, M>>);

impl<K: Clone + Ord + Hash + Send + 'static, M: Metrics> Drop for Stop<K, M> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Appends the key unless it is waiting already.
    fn wait(&mut self, key: K) {
        if let Entry::Vacant(free) = self.waits.entry(key.clone()) {
            free.insert(Instant::now());
            self.waiting.push_back(key);
        }
    }

    /// Counts a failure of the key and returns the pause after it.
    fn pause(&mut self, backoff: &Backoff, key: &K, changed: bool) -> Duration {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        let pause = backoff.first.saturating_mul(1_u32 << (*failures).min(24));
        *failures = failures.saturating_add(1);
        pause.min(if changed { backoff.longest_changed } else { backoff.longest })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("d", name)
    }

    fn queue(limit: usize) -> Arc<Queue> {
        Queue::new(limit, Backoff::default(), ())
    }

    #[tokio::test(start_paused = true)]
    async fn key_runs_once_at_a_time_and_again_when_added_meanwhile() {
        let queue = queue(4);
        let (seen, mut runs) = mpsc::unbounded_channel();
        let inside = Arc::new(AtomicUsize::new(0));
        queue.start(move |_| {
            let (seen, inside) = (seen.clone(), inside.clone());
            async move {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                seen.send(()).ok();
                tokio::time::sleep(Duration::from_millis(10)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Outcome::Settled
            }
            .boxed()
        });
        queue.add(key("a"));
        runs.recv().await.unwrap();
        for _ in 0..5 {
            queue.add(key("a"));
        }
        runs.recv().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(runs.try_recv().is_err(), "five additions during a run are one more run");
    }

    #[tokio::test(start_paused = true)]
    async fn limit_holds_and_nothing_runs_before_start_or_after_stop() {
        let queue = queue(2);
        let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let done = Arc::new(AtomicUsize::new(0));
        for n in 0..6 {
            queue.add(key(&n.to_string()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (at_once, peak, count) = (inside.clone(), most.clone(), done.clone());
        queue.start(move |_| {
            let (inside, most, done) = (at_once.clone(), peak.clone(), count.clone());
            async move {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
                Outcome::Settled
            }
            .boxed()
        });
        assert_eq!(done.load(Ordering::SeqCst), 0);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!((most.load(Ordering::SeqCst), done.load(Ordering::SeqCst)), (2, 6));
        queue.stop().await;
        queue.add(key("late"));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(done.load(Ordering::SeqCst), 6, "stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_requeues_wait_their_time() {
        let queue = queue(1);
        let (seen, mut runs) = mpsc::unbounded_channel();
        let tries = Arc::new(AtomicUsize::new(0));
        queue.start(move |_| {
            let (seen, tries) = (seen.clone(), tries.clone());
            async move {
                seen.send(tokio::time::Instant::now()).ok();
                match tries.fetch_add(1, Ordering::SeqCst) {
                    0..3 => Outcome::Failed,
                    3 => Outcome::Again(Duration::from_millis(70)),
                    _ => Outcome::Settled,
                }
            }
            .boxed()
        });
        queue.add(key("a"));
        let mut at = Vec::new();
        for _ in 0..5 {
            at.push(runs.recv().await.unwrap());
        }
        let pauses: Vec<_> = at.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
        let least = [5, 10, 20, 70];
        assert!(
            pauses.iter().zip(least).all(|(pause, least)| *pause >= least && *pause <= least + 1),
            "{pauses:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn later_additions_are_one_reconcile_at_the_earliest_time() {
        let queue = queue(1);
        let (seen, mut runs) = mpsc::unbounded_channel();
        queue.start(move |_| {
            seen.send(tokio::time::Instant::now()).ok();
            futures::future::ready(Outcome::Settled).boxed()
        });
        let start = tokio::time::Instant::now();
        for seconds in [100, 10, 50, 10] {
            queue.add_later(key("a"), Duration::from_secs(seconds));
        }
        let took = (runs.recv().await.unwrap() - start).as_secs();
        assert!((9..20).contains(&took), "{took} s");
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert!(runs.try_recv().is_err(), "all are one");
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_run_cancels_reconciles_and_retries() {
        let queue = queue(2);
        let (seen, mut runs) = mpsc::unbounded_channel();
        let guard = Arc::new(());
        let held = guard.clone();
        let running = tokio::spawn(queue.clone().run(move |key: Key| {
            let (seen, held) = (seen.clone(), held.clone());
            async move {
                seen.send(()).ok();
                if key.name == "fails" {
                    return Outcome::Failed;
                }
                let _held = held;
                futures::future::pending().await
            }
        }));
        queue.add(key("stays"));
        queue.add(key("fails"));
        for _ in 0..3 {
            runs.recv().await.unwrap();
        }
        running.abort();
        running.await.unwrap_err();
        queue.tasks.close();
        queue.tasks.wait().await;
        assert_eq!(Arc::strong_count(&guard), 2, "only the reconcile function itself holds it");
        while runs.try_recv().is_ok() {}
        queue.add(key("late"));
        tokio::time::sleep(Duration::from_secs(2000)).await;
        assert!(runs.try_recv().is_err(), "stopped");
    }
}
