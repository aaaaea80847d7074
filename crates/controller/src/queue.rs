//! Which objects are to be looked at: keyed, each once, never the same key twice at a time, a bounded number at once.
//!
//! There is no dispatcher: whoever adds a key starts the work on it at once when there is room, so nothing waits for a
//! timer or another task's turn.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use crate::key::Key;
use crate::metrics::QueueMetrics;
use crate::outcome::Outcome;

/// Pause after the first failure of a key; doubled by each further one.
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
/// Longest pause between two tries of a failing key.
const BACKOFF_LONGEST: Duration = Duration::from_secs(1000);
/// Longest pause when the object changed during the failing try.
const BACKOFF_LONGEST_CHANGED: Duration = Duration::from_secs(1);

type Worker = Box<dyn Fn(Key) -> BoxFuture<'static, Outcome> + Send + Sync>;

pub(crate) struct Queue {
    worker: OnceLock<Worker>,
    limit: usize,
    state: Mutex<State>,
    tasks: TaskTracker,
    metrics: QueueMetrics,
}

#[derive(Default)]
struct State {
    started: bool,
    stopping: bool,
    waiting: VecDeque<Key>,
    /// The same keys, and since when they wait.
    waits: HashMap<Key, Instant>,
    running: HashMap<Key, Run>,
    failures: HashMap<Key, u32>,
    timers: BTreeMap<Key, AbortHandle>,
}

/// A key that is being worked on.
struct Run {
    since: Instant,
    /// Whether it was added again meanwhile.
    again: bool,
}

impl Queue {
    /// At most `limit` keys are worked on at a time.
    pub(crate) fn new(limit: usize, metrics: QueueMetrics) -> Arc<Self> {
        let state = Mutex::new(State::default());
        let (worker, tasks) = (OnceLock::new(), TaskTracker::new());
        Arc::new(Queue { worker, limit: limit.max(1), state, tasks, metrics })
    }

    /// Brings the metrics up to date that go on by themselves.
    pub(crate) fn measure(&self) {
        let state = self.state();
        self.metrics.waiting(state.waiting.len());
        self.metrics.under_way(state.running.values().map(|run| run.since.elapsed()));
    }

    /// Begins to work; what was added before has waited for this.
    pub(crate) fn start(
        self: &Arc<Self>,
        worker: impl Fn(Key) -> BoxFuture<'static, Outcome> + Send + Sync + 'static,
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

    /// Asks for a look at the object. It is safe to call from anywhere, any number of times.
    pub(crate) fn add(self: &Arc<Self>, key: Key) {
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

    /// Starts nothing more and waits for what runs.
    pub(crate) async fn stop(&self) {
        {
            let mut state = self.state();
            state.stopping = true;
            for (_, timer) in std::mem::take(&mut state.timers) {
                timer.abort();
            }
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn spawn(self: &Arc<Self>, key: Key) {
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

    /// Takes note of the outcome and says which key this task works on next.
    fn finish(self: &Arc<Self>, key: Key, outcome: Outcome) -> Option<Key> {
        let mut state = self.state();
        let changed = state.running.remove(&key).is_some_and(|run| run.again);
        if state.stopping {
            return None;
        }
        if let Some(timer) = state.timers.remove(&key) {
            timer.abort();
        }
        if outcome != Outcome::Failed {
            state.failures.remove(&key);
        }
        match outcome {
            Outcome::Failed => {
                let pause = state.backoff(&key, changed);
                self.add_after(&mut state, key, pause);
            }
            _ if changed => state.wait(key),
            Outcome::Again(after) => self.add_after(&mut state, key, after),
            Outcome::Settled => {}
        }
        self.take_waiting(&mut state)
    }

    fn take_waiting(&self, state: &mut State) -> Option<Key> {
        let key = state.waiting.pop_front()?;
        let since = state.waits.remove(&key);
        self.begin(state, key.clone(), since.map(|since| since.elapsed()).unwrap_or_default());
        Some(key)
    }

    fn begin(&self, state: &mut State, key: Key, waited: Duration) {
        state.running.insert(key, Run { since: Instant::now(), again: false });
        self.metrics.began(waited);
    }

    fn add_after(self: &Arc<Self>, state: &mut State, key: Key, after: Duration) {
        let (queue, timed) = (self.clone(), key.clone());
        let timer = tokio::spawn(async move {
            tokio::time::sleep(after).await;
            queue.state().timers.remove(&timed);
            queue.add(timed);
        });
        state.timers.insert(key, timer.abort_handle());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The key waits, at the end unless it does already.
    fn wait(&mut self, key: Key) {
        if let Entry::Vacant(free) = self.waits.entry(key.clone()) {
            free.insert(Instant::now());
            self.waiting.push_back(key);
        }
    }

    fn backoff(&mut self, key: &Key, changed: bool) -> Duration {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        let pause = BACKOFF_FIRST.saturating_mul(1_u32 << (*failures).min(24));
        *failures = failures.saturating_add(1);
        pause.min(if changed { BACKOFF_LONGEST_CHANGED } else { BACKOFF_LONGEST })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use tokio::sync::mpsc;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("d", name)
    }

    fn queue(limit: usize) -> Arc<Queue> {
        Queue::new(limit, crate::metrics::Metrics::new().queue("test", limit))
    }

    #[tokio::test]
    async fn a_key_is_worked_on_once_at_a_time_and_again_when_it_changed() {
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

    #[tokio::test]
    async fn no_more_than_the_limit_and_nothing_before_the_start() {
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

    #[tokio::test]
    async fn failures_wait_longer_each_time_and_requests_in_time_come_back() {
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
            pauses.iter().zip(least).all(|(pause, least)| *pause >= least && *pause < least + 1000),
            "{pauses:?}"
        );
    }

    #[tokio::test]
    async fn what_a_queue_tells_of_itself() {
        let metrics = crate::metrics::Metrics::new();
        let queue = Queue::new(1, metrics.queue("test", 1));
        for name in ["a", "b", "b", "c"] {
            queue.add(key(name));
        }
        queue.measure();
        let told = |line: &str| {
            let text = metrics.text();
            assert!(text.contains(line), "{line} is not in\n{text}");
        };
        told(r#"workqueue_depth{controller="test",name="test",priority="0"} 3"#);
        let (done, mut runs) = mpsc::unbounded_channel();
        queue.start(move |key| {
            done.send(()).ok();
            async move {
                match key.name.as_str() {
                    "a" => Outcome::Failed,
                    "b" => Outcome::Again(Duration::from_secs(3600)),
                    _ => Outcome::Settled,
                }
            }
            .boxed()
        });
        for _ in 0..4 {
            runs.recv().await.unwrap();
        }
        queue.stop().await;
        queue.measure();
        for line in [
            r#"workqueue_depth{controller="test",name="test",priority="0"} 0"#,
            r#"controller_runtime_reconcile_total{controller="test",result="success"} 1"#,
            r#"controller_runtime_reconcile_total{controller="test",result="requeue_after"} 1"#,
            r#"controller_runtime_reconcile_total{controller="test",result="error"} 2"#,
            r#"controller_runtime_reconcile_errors_total{controller="test"} 2"#,
            r#"controller_runtime_active_workers{controller="test"} 0"#,
            r#"controller_runtime_max_concurrent_reconciles{controller="test"} 1"#,
            r#"workqueue_adds_total{controller="test",name="test"} 4"#,
            r#"workqueue_retries_total{controller="test",name="test"} 2"#,
            r#"workqueue_queue_duration_seconds_count{controller="test",name="test"} 4"#,
            r#"workqueue_work_duration_seconds_count{controller="test",name="test"} 4"#,
        ] {
            told(line);
        }
    }
}
