//! Which objects are to be looked at: keyed, each once, never the same key twice at a time, a bounded number at once.
//!
//! There is no dispatcher: whoever adds a key starts the work on it at once when there is room, so nothing waits for a
//! timer or another task's turn.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use crate::key::Key;

/// Pause after the first failure of a key; doubled by each further one.
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
/// Longest pause between two tries of a failing key.
const BACKOFF_LONGEST: Duration = Duration::from_secs(1000);
/// Longest pause when the object changed during the failing try.
const BACKOFF_LONGEST_CHANGED: Duration = Duration::from_secs(1);

/// What became of one look at an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing to do until something changes.
    Settled,
    /// Look again after this time, or when something changes.
    Again(Duration),
    /// Failed: look again after a pause that grows.
    Failed,
}

type Worker = Box<dyn Fn(Key) -> BoxFuture<'static, Outcome> + Send + Sync>;

pub(crate) struct Queue {
    worker: OnceLock<Worker>,
    limit: usize,
    state: Mutex<State>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    started: bool,
    stopping: bool,
    waiting: VecDeque<Key>,
    waits: HashSet<Key>,
    /// The keys being worked on; `true` when one was added again meanwhile.
    running: HashMap<Key, bool>,
    failures: HashMap<Key, u32>,
    timers: HashMap<Key, AbortHandle>,
}

impl Queue {
    /// At most `limit` keys are worked on at a time.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let state = Mutex::new(State::default());
        Arc::new(Queue { worker: OnceLock::new(), limit: limit.max(1), state, tasks: TaskTracker::new() })
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
            let Some(key) = state.take_waiting() else { break };
            self.spawn(key);
        }
    }

    /// Asks for a look at the object. It is safe to call from anywhere, any number of times.
    pub(crate) fn add(self: &Arc<Self>, key: Key) {
        let mut state = self.state();
        if let Some(again) = state.running.get_mut(&key) {
            *again = true;
        } else if state.started
            && !state.stopping
            && state.running.len() < self.limit
            && !state.waits.contains(&key)
        {
            state.running.insert(key.clone(), false);
            self.spawn(key);
        } else if state.waits.insert(key.clone()) {
            state.waiting.push_back(key);
        }
    }

    /// Starts nothing more and waits for what runs.
    pub(crate) async fn stop(&self) {
        {
            let mut state = self.state();
            state.stopping = true;
            for (_, timer) in state.timers.drain() {
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
                let outcome = worker(key.clone()).await;
                next = queue.finish(key, outcome);
            }
        });
    }

    /// Takes note of the outcome and says which key this task works on next.
    fn finish(self: &Arc<Self>, key: Key, outcome: Outcome) -> Option<Key> {
        let mut state = self.state();
        let changed = state.running.remove(&key).unwrap_or(false);
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
            _ if changed => {
                if state.waits.insert(key.clone()) {
                    state.waiting.push_back(key);
                }
            }
            Outcome::Again(after) => self.add_after(&mut state, key, after),
            Outcome::Settled => {}
        }
        state.take_waiting()
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
    fn take_waiting(&mut self) -> Option<Key> {
        let key = self.waiting.pop_front()?;
        self.waits.remove(&key);
        self.running.insert(key.clone(), false);
        Some(key)
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

    #[tokio::test]
    async fn a_key_is_worked_on_once_at_a_time_and_again_when_it_changed() {
        let queue = Queue::new(4);
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
        let queue = Queue::new(2);
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
        let queue = Queue::new(1);
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
}
