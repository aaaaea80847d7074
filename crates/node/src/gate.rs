//! State of a Pod's gate: who does something in the Pod, and whether its processes run or are frozen. What acts on it is
//! in [`crate::sleep`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hutch_activity::Activity;
use hutch_api::sleep::{Act, Input, Machine, Phase};
use tokio::sync::{Notify, watch};

/// The gate of one Pod.
pub(crate) struct Gate {
    machine: Mutex<Machine>,
    /// Reports every change but that between running and idle: both show as idle.
    phase: watch::Sender<Phase>,
    /// Freezing and thawing happen one after the other.
    pub(crate) freezer: tokio::sync::Mutex<()>,
    /// The machine counts the operations in progress, because a freeze is refused during one. Here is the time of the last.
    activity: Activity,
    began: Instant,
    /// Milliseconds from `began` after which a caller that enters waits until that is reported.
    late: AtomicU64,
    /// A caller waits for a report.
    pub(crate) urgent: Notify,
    /// The result of each report: whether the Sandbox turned out to be suspended.
    pub(crate) reported: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            machine: Mutex::default(),
            phase: watch::channel(Phase::Idle).0,
            freezer: tokio::sync::Mutex::default(),
            activity: Activity::default(),
            began: Instant::now(),
            late: AtomicU64::new(u64::MAX),
            urgent: Notify::new(),
            reported: watch::channel(false).0,
        }
    }
}

impl Gate {
    pub(crate) fn step(&self, input: Input) -> Act {
        // A panic while the lock was held leaves whole values, so the lock stays usable.
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let act = machine.step(input);
        let phase = match machine.phase() {
            Phase::Running => Phase::Idle,
            phase => phase,
        };
        // Under the lock, so that changes are reported in their order.
        self.phase.send_if_modified(|shown| std::mem::replace(shown, phase) != phase);
        act
    }

    /// Follows the phase; [`Phase::Idle`] stands for awake.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Something was done inside just now.
    pub(crate) fn touch(&self) {
        self.activity.touch();
    }

    /// Returns true if the last report is so old that the Sandbox may be about to be suspended.
    pub(crate) fn is_late(&self) -> bool {
        self.now() >= self.late.load(Ordering::Relaxed)
    }

    /// Records that a report was written or could not be; the next one that a caller waits for is due after so long.
    pub(crate) fn was_reported(&self, suspended: bool, next: Duration) {
        let next = u64::try_from(next.as_millis()).unwrap_or(u64::MAX);
        self.late.store(self.now().saturating_add(next), Ordering::Relaxed);
        self.reported.send_replace(suspended);
    }

    /// Records that no caller has to wait for reports.
    pub(crate) fn needs_no_report(&self) {
        self.late.store(u64::MAX, Ordering::Relaxed);
        self.reported.send_replace(false);
    }

    /// Resolves when a caller waits for a report.
    pub(crate) async fn report_wanted(&self) {
        self.urgent.notified().await;
    }

    /// Returns the time since the last operation inside; `None` during one.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        let machine = *self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        (machine.inside() == 0).then(|| self.activity.idle())
    }
}
