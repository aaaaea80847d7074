//! Trace of a simulation, and its bounds: one that does not end is aborted, and its last lines are printed.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::dice::{FNV_START, fnv};

/// Lines of the trace that a failure shows.
const LINES: usize = 4000;
/// Longest simulated time. The longest storm and the longest wait for rest are together less than half of it.
const LONGEST: Duration = Duration::from_secs(3 * 3600);
/// Longest real time: a hundred times what a simulation takes. One that spins at one moment of its time takes forever.
const LONGEST_REAL: Duration = Duration::from_secs(180);

/// How a simulation ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Hash of all requests and answers.
    pub(crate) hash: u64,
    pub(crate) wrong: Vec<String>,
    pub(crate) lines: Vec<String>,
}

/// Every request that changes something, with its answer, and whatever else is noted.
pub(crate) struct Trace {
    told: Mutex<Report>,
    over: AtomicBool,
}

struct Report {
    hash: u64,
    lines: VecDeque<String>,
}

impl Trace {
    fn new() -> Arc<Self> {
        let told = Mutex::new(Report { hash: FNV_START, lines: VecDeque::new() });
        Arc::new(Trace { told, over: AtomicBool::new(false) })
    }

    pub(crate) fn add(&self, line: String) {
        let mut told = self.told.lock().unwrap();
        told.hash = line.bytes().fold(told.hash, fnv);
        if told.lines.len() == LINES {
            told.lines.pop_front();
        }
        told.lines.push_back(line);
    }

    /// A simulation that was given up does nothing more, so that its thread leaves the processor to others.
    pub(crate) fn rest_if_over(&self) {
        while self.over.load(Ordering::SeqCst) {
            thread::park();
        }
    }

    fn outcome(&self, wrong: Vec<String>) -> Outcome {
        let told = self.told.lock().unwrap();
        Outcome { hash: told.hash, wrong, lines: told.lines.iter().cloned().collect() }
    }
}

/// Runs a simulation, which says what is wrong, in a thread and a runtime of its own and within the bounds.
pub(crate) fn within_bounds<F>(play: impl FnOnce(Arc<Trace>) -> F + Send + 'static) -> Outcome
where
    F: Future<Output = Vec<String>>,
{
    within(LONGEST_REAL, play)
}

/// The part of a simulation in which nothing waits for anything but the simulated time: what it says is wrong, or that
/// it is not over in time.
pub(crate) async fn in_time(play: impl Future<Output = Vec<String>>) -> Vec<String> {
    let over = |_| vec![format!("not over after {LONGEST:?} of its time")];
    tokio::time::timeout(LONGEST, play).await.unwrap_or_else(over)
}

fn within<F>(real: Duration, play: impl FnOnce(Arc<Trace>) -> F + Send + 'static) -> Outcome
where
    F: Future<Output = Vec<String>>,
{
    let (ended, end) = channel();
    let trace = Trace::new();
    let inside = trace.clone();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        // There is no receiver for a simulation that was aborted.
        ended.send(runtime.block_on(play(inside))).ok();
    });
    let wrong = end.recv_timeout(real).unwrap_or_else(|error| {
        trace.over.store(true, Ordering::SeqCst);
        vec![match error {
            RecvTimeoutError::Timeout => format!("not over after {real:?}: something spins"),
            RecvTimeoutError::Disconnected => "it panicked".to_owned(),
        }]
    });
    trace.outcome(wrong)
}

/// A simulation that does not end is aborted with its last lines.
#[test]
fn endless_simulation_is_aborted() {
    let minute = Duration::from_secs(60);
    let idle = within(minute, |trace| {
        in_time(async move {
            loop {
                trace.add("still here".to_owned());
                tokio::time::sleep(LONGEST / 60).await;
            }
        })
    });
    assert_eq!(idle.wrong, ["not over after 10800s of its time"]);
    assert!((60..=61).contains(&idle.lines.len()), "{}", idle.lines.len());
    let spinning = within(Duration::from_millis(200), |trace| async move {
        trace.add("the last that was done".to_owned());
        loop {
            tokio::task::yield_now().await;
            trace.rest_if_over();
        }
    });
    assert_eq!(spinning.wrong, ["not over after 200ms: something spins"]);
    assert_eq!(spinning.lines, ["the last that was done"]);
    let panicking = within(minute, |_| async { panic!("on purpose") });
    assert_eq!(panicking.wrong, ["it panicked"]);
}
