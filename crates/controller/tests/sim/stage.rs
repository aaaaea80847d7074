//! State that all parts of a simulation share: the time, the active fault, the history of writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::trace::Trace;

/// Fault of every request of a controller for as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// The server does not respond.
    Gone,
    /// Every change is refused with 409.
    Conflicts,
    /// Everything is refused with 429 and a `Retry-After` of a second.
    Busy,
    /// Every request and every answer takes so long.
    Slow(Duration),
    /// Watches get the error that they are too old (410).
    TooOld,
}

pub(crate) struct Stage {
    began: Instant,
    /// Faults happen.
    storm: AtomicBool,
    fault: Mutex<Option<Fault>>,
    /// Number of requests that the fault has hit.
    hits: AtomicU64,
    /// The server does not answer before.
    outage_until: Mutex<Instant>,
    trace: Arc<Trace>,
    /// Successful writes of all.
    writes: AtomicU64,
    deletes: Mutex<Vec<Delete>>,
    /// When two controllers ran, from and to.
    doubled: Mutex<Vec<(Duration, Duration)>>,
}

/// A successful deletion by a controller.
#[derive(Debug, Clone)]
pub(crate) struct Delete {
    pub(crate) path: String,
    /// The uid for which alone it held.
    pub(crate) uid: Option<String>,
}

impl Stage {
    pub(crate) fn new(trace: Arc<Trace>) -> Self {
        let now = Instant::now();
        Stage {
            began: now,
            storm: AtomicBool::new(true),
            fault: Mutex::default(),
            hits: AtomicU64::new(0),
            outage_until: Mutex::new(now),
            trace,
            writes: AtomicU64::new(0),
            deletes: Mutex::default(),
            doubled: Mutex::default(),
        }
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The true time of day.
    pub(crate) fn now(&self) -> Timestamp {
        const START: i64 = 1_900_000_000;
        self.trace.rest_if_over();
        let start = Timestamp::from_second(START).unwrap();
        start + SignedDuration::try_from(self.elapsed()).unwrap()
    }

    pub(crate) fn is_storm(&self) -> bool {
        self.storm.load(Ordering::SeqCst)
    }

    pub(crate) fn calm(&self) {
        self.storm.store(false, Ordering::SeqCst);
        *self.outage_until.lock().unwrap() = self.began;
    }

    /// Sets or ends the fault. Returns the number of requests that the last one has hit.
    pub(crate) fn set_fault(&self, fault: Option<Fault>) -> u64 {
        *self.fault.lock().unwrap() = fault;
        self.note(&format!("fault {fault:?}"));
        self.hits.swap(0, Ordering::SeqCst)
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        *self.fault.lock().unwrap()
    }

    pub(crate) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn outage(&self, length: Duration) {
        *self.outage_until.lock().unwrap() = Instant::now() + length;
    }

    pub(crate) fn is_outage(&self) -> bool {
        *self.outage_until.lock().unwrap() > Instant::now()
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&self, text: &str) {
        self.trace.add(format!("{:>9.3} {text}", self.elapsed().as_secs_f64()));
    }

    pub(crate) fn wrote(&self) {
        self.writes.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    pub(crate) fn deleted(&self, delete: Delete) {
        self.deletes.lock().unwrap().push(delete);
    }

    pub(crate) fn deletes(&self) -> Vec<Delete> {
        self.deletes.lock().unwrap().clone()
    }

    pub(crate) fn doubled(&self, from: Duration) {
        self.doubled.lock().unwrap().push((from, self.elapsed()));
    }

    pub(crate) fn doublings(&self) -> Vec<(Duration, Duration)> {
        self.doubled.lock().unwrap().clone()
    }
}
