//! State of a Pod's gate: who does something in the Pod, and whether its processes run or are frozen. What acts on it is
//! in [`crate::sleep`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hutch_activity::Activity;
use hutch_api::sleep::{Act, Input, Machine, Phase};
use tokio::sync::{Notify, watch};

/// Time after which it is reported that a Pod is no longer frozen. The caller that woke it is served meanwhile: the reports would
/// take the processors for some milliseconds.
const CALLER_FIRST: Duration = Duration::from_millis(20);

/// Resolves after a change of phase that is to be reported; fails when the gate is gone.
pub(crate) async fn reportable(phases: &mut watch::Receiver<Phase>) -> Result<(), watch::error::RecvError> {
    phases.changed().await?;
    let is_frozen = phases.borrow().is_frozen();
    if !is_frozen {
        tokio::time::sleep(CALLER_FIRST).await;
    }
    Ok(())
}

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
    /// It was frozen before its time.
    ahead: AtomicBool,
    /// A suspend is being decided here: every caller waits for a report.
    guarded: AtomicBool,
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
            ahead: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
            urgent: Notify::new(),
            reported: watch::channel(false).0,
        }
    }
}

impl Gate {
    /// A panic while the lock was held leaves whole values, so the lock stays usable.
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn step(&self, input: Input) -> Act {
        self.advance(&mut self.machine(), input)
    }

    /// Begins to freeze it before its time, unless it was used within `idle`.
    pub(crate) fn freeze_ahead(&self, idle: Duration) -> Act {
        let mut machine = self.machine();
        // A visitor is counted after it has touched the gate, and leaves after it has done so again.
        if machine.inside() > 0 || self.activity.idle() < idle {
            return Act::Nothing;
        }
        let act = self.advance(&mut machine, Input::Quiet);
        if act == Act::Freeze {
            self.ahead.store(true, Ordering::Relaxed);
        }
        act
    }

    /// Returns true while it is frozen before its time.
    pub(crate) fn is_ahead(&self) -> bool {
        let machine = self.machine();
        machine.phase().is_frozen() && self.ahead.load(Ordering::Relaxed)
    }

    fn advance(&self, machine: &mut Machine, input: Input) -> Act {
        let act = machine.step(input);
        let phase = match machine.phase() {
            Phase::Running => Phase::Idle,
            phase => phase,
        };
        if phase != Phase::Freezing && !phase.is_frozen() {
            self.ahead.store(false, Ordering::Relaxed);
        }
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

    /// Returns true if the Sandbox may be about to be suspended: the last report is old, or the node itself decides it.
    pub(crate) fn is_late(&self) -> bool {
        self.is_guarded() || self.now() >= self.late.load(Ordering::Relaxed)
    }

    /// Has every caller from now on wait until its own report is written, until the result is dropped. A caller that
    /// entered before shows in [`Gate::idle_for`].
    pub(crate) fn guard(&self) -> Guard<'_> {
        self.guarded.store(true, Ordering::Relaxed);
        // A caller that enters after this takes the lock after it, and sees the value.
        drop(self.machine());
        Guard(self)
    }

    /// Returns true while every caller waits for a report.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Relaxed)
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
        let machine = *self.machine();
        (machine.inside() == 0).then(|| self.activity.idle())
    }
}

/// Every caller waits for a report while this lives.
pub(crate) struct Guard<'a>(&'a Gate);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.guarded.store(false, Ordering::Relaxed);
        // Those that wait without need.
        self.0.reported.send_modify(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_in_use_is_not_frozen_before_its_time() {
        let gate = Gate::default();
        let no_time = Duration::ZERO;
        gate.touch();
        assert_eq!(gate.freeze_ahead(Duration::from_secs(3600)), Act::Nothing, "it was used in that time");
        assert_eq!(gate.step(Input::Enter), Act::Admit);
        assert_eq!(gate.freeze_ahead(no_time), Act::Nothing, "an operation is in progress");
        gate.step(Input::Leave);
        assert_eq!(gate.freeze_ahead(no_time), Act::Freeze);
        gate.step(Input::Stopped(true));
        assert!(gate.is_ahead());
        assert_eq!(gate.step(Input::Enter), Act::Thaw);
        gate.step(Input::Going(true));
        assert_eq!(gate.step(Input::Again), Act::Admit);
        gate.step(Input::Leave);
        assert_eq!(gate.step(Input::Quiet), Act::Freeze);
        gate.step(Input::Stopped(true));
        assert!(!gate.is_ahead(), "it is frozen in its time now");
    }

    #[tokio::test(start_paused = true)]
    async fn caller_that_wakes_a_pod_is_served_before_that_is_reported() {
        let (phase, mut phases) = watch::channel(Phase::Idle);
        for (next, wait) in [(Phase::Frozen, Duration::ZERO), (Phase::Resuming, CALLER_FIRST)] {
            phase.send_replace(next);
            let began = tokio::time::Instant::now();
            reportable(&mut phases).await.unwrap();
            assert_eq!(began.elapsed(), wait, "{next:?}");
        }
        drop(phase);
        assert!(reportable(&mut phases).await.is_err());
    }

    #[tokio::test]
    async fn guard_makes_callers_wait_and_its_end_lets_them_enter() {
        let gate = Gate::default();
        assert!(!gate.is_late());
        let mut reported = gate.reported.subscribe();
        let guard = gate.guard();
        assert!(gate.is_late());
        drop(guard);
        assert!(!gate.is_late());
        reported.changed().await.unwrap();
        assert!(!*reported.borrow());
    }
}
