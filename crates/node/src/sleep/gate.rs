//! Who is in a Pod, and whether its processes go or stand still.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hutch_api::sleep::{Act, Input, Machine, Phase};
use hutch_kubelet::StreamError;
use tokio::sync::{Notify, watch};

use crate::live::Live;

/// How long somebody waits for a report. Then the API has more serious troubles than a Sandbox that falls asleep.
const REPORT_LIMIT: Duration = Duration::from_secs(5);

/// The gate of one Pod.
pub(crate) struct Gate {
    machine: Mutex<Machine>,
    /// Told at every change but that between running and idle: both show as idle.
    phase: watch::Sender<Phase>,
    /// Freezing and thawing happen one after the other.
    freezer: tokio::sync::Mutex<()>,
    began: Instant,
    /// Milliseconds from `began` to when something was last done inside.
    active: AtomicU64,
    /// Milliseconds from `began` after which whoever comes in waits until that is reported.
    late: AtomicU64,
    /// Somebody waits for a report.
    urgent: Notify,
    /// Told after each report: whether the Sandbox turned out to be suspended.
    reported: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            machine: Mutex::default(),
            phase: watch::channel(Phase::Idle).0,
            freezer: tokio::sync::Mutex::default(),
            began: Instant::now(),
            active: AtomicU64::new(0),
            late: AtomicU64::new(u64::MAX),
            urgent: Notify::new(),
            reported: watch::channel(false).0,
        }
    }
}

impl Gate {
    pub(super) fn step(&self, input: Input) -> Act {
        // A panic while the lock was held leaves whole values, so the lock stays usable.
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let act = machine.step(input);
        let phase = match machine.phase() {
            Phase::Running => Phase::Idle,
            phase => phase,
        };
        // Under the lock, so that changes are told in their order.
        self.phase.send_if_modified(|told| std::mem::replace(told, phase) != phase);
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
        self.active.fetch_max(self.now(), Ordering::Relaxed);
    }

    /// Whether the last report is so old that the Sandbox may be about to be suspended.
    fn is_late(&self) -> bool {
        self.now() >= self.late.load(Ordering::Relaxed)
    }

    /// A report was written or could not be; the next one that somebody waits for is due after so long.
    pub(super) fn was_reported(&self, suspended: bool, next: Duration) {
        let next = u64::try_from(next.as_millis()).unwrap_or(u64::MAX);
        self.late.store(self.now().saturating_add(next), Ordering::Relaxed);
        self.reported.send_replace(suspended);
    }

    /// Nobody has to wait for reports.
    pub(super) fn needs_no_report(&self) {
        self.late.store(u64::MAX, Ordering::Relaxed);
        self.reported.send_replace(false);
    }

    /// Resolves when somebody waits for a report.
    pub(super) async fn report_wanted(&self) {
        self.urgent.notified().await;
    }

    /// How long nothing was done inside; nothing while somebody is there.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let machine = *self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let active = Duration::from_millis(self.active.load(Ordering::Relaxed));
        (machine.inside() == 0).then(|| self.began.elapsed().saturating_sub(active))
    }
}

/// Somebody does something in a Pod. It stays awake meanwhile.
pub(crate) struct Busy {
    live: Arc<Live>,
    counts: bool,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if self.counts {
            self.live.gate.touch();
        }
        self.live.gate.step(Input::Leave);
    }
}

/// A place in the queue.
struct Waiting<'a>(&'a Gate);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.step(Input::GiveUp);
    }
}

fn gone(live: &Live) -> StreamError {
    StreamError::Unavailable(format!("pod {} is ending", live.id.name))
}

impl Live {
    /// Comes in, after the Pod was thawed if it was frozen; that it goes on is confirmed then. When the last report is
    /// old, this one comes first: of a suspend and a report one is written before the other, and the other fails.
    ///
    /// # Errors
    /// The Pod is ending, or could not be thawed.
    pub(crate) async fn enter(self: &Arc<Live>) -> Result<Busy, StreamError> {
        let busy = self.pass().await?;
        let mut reported = self.gate.reported.subscribe();
        if !self.gate.is_late() {
            return Ok(busy);
        }
        self.gate.urgent.notify_one();
        if let Ok(Ok(())) = tokio::time::timeout(REPORT_LIMIT, reported.changed()).await
            && *reported.borrow()
        {
            return Err(gone(self));
        }
        Ok(busy)
    }

    /// Thaws the Pod because it is not to be frozen any more. False: it is ending.
    pub(super) async fn wake(self: &Arc<Live>) -> bool {
        self.pass().await.is_ok()
    }

    async fn pass(self: &Arc<Live>) -> Result<Busy, StreamError> {
        self.gate.touch();
        match self.gate.step(Input::Enter) {
            Act::Admit => return Ok(self.busy(true)),
            Act::Refuse => return Err(gone(self)),
            Act::Thaw => self.begin_thaw(),
            Act::Nothing | Act::Wait | Act::Freeze => {}
        }
        let waiting = Waiting(&self.gate);
        let mut phases = self.gate.phases();
        loop {
            phases.mark_unchanged();
            match self.gate.step(Input::Again) {
                Act::Admit => {
                    std::mem::forget(waiting);
                    return Ok(self.busy(true));
                }
                Act::Refuse => {
                    std::mem::forget(waiting);
                    return Err(gone(self));
                }
                Act::Thaw => self.begin_thaw(),
                Act::Nothing | Act::Wait | Act::Freeze => {}
            }
            if phases.changed().await.is_err() {
                return Err(gone(self));
            }
        }
    }

    /// Comes in if nothing stands in the way at this moment.
    pub(super) fn enter_now(self: &Arc<Live>) -> Option<Busy> {
        if self.gate.is_late() {
            return None;
        }
        match self.gate.step(Input::Visit) {
            Act::Admit => {
                self.gate.touch();
                Some(self.busy(true))
            }
            _ => None,
        }
    }

    /// Comes in when the Pod is awake; it is not woken for it and does not count as in use. For probes. Nothing: it ends.
    pub(crate) async fn visit(self: &Arc<Live>) -> Option<Busy> {
        let mut phases = self.gate.phases();
        loop {
            phases.mark_unchanged();
            match self.gate.step(Input::Visit) {
                Act::Admit => return Some(self.busy(false)),
                Act::Refuse => return None,
                Act::Nothing | Act::Wait | Act::Freeze | Act::Thaw => phases.changed().await.ok()?,
            }
        }
    }

    fn busy(self: &Arc<Live>, counts: bool) -> Busy {
        Busy { live: self.clone(), counts }
    }

    /// Freezes the Pod unless somebody is in it. False: it could not be frozen.
    pub(super) async fn freeze(self: &Arc<Live>) -> bool {
        if self.gate.step(Input::Quiet) != Act::Freeze {
            return true;
        }
        let live = self.clone();
        // Whoever asked may go away; what was begun comes to its end.
        let done = tokio::spawn(async move {
            let stopped = live.set_frozen(true).await;
            if live.gate.step(Input::Stopped(stopped)) == Act::Thaw {
                live.thaw().await;
            }
            stopped
        });
        done.await.unwrap_or(false)
    }

    fn begin_thaw(self: &Arc<Live>) {
        let live = self.clone();
        tokio::spawn(async move { live.thaw().await });
    }

    async fn thaw(self: &Arc<Live>) {
        let going = self.set_frozen(false).await;
        tracing::debug!(pod = self.id.name, going, "thawed");
        self.gate.step(Input::Going(going));
        if !going {
            tracing::error!(pod = self.id.name, "a frozen Pod does not go on; its containers are killed");
            self.kill_all();
        }
    }

    /// A container was started: the processes go.
    pub(crate) fn begun(&self) {
        self.gate.touch();
        self.gate.step(Input::Begun);
    }

    /// Before the end of the Pod: lets nobody in any more, and returns when its processes go.
    pub(crate) async fn prepare_end(self: &Arc<Live>) {
        if self.gate.step(Input::End) == Act::Thaw {
            self.thaw().await;
        }
    }

    /// Nothing of the Pod runs any more.
    pub(crate) fn over(&self) {
        self.gate.step(Input::Ended);
    }

    /// Stops all containers, or lets them go on. False: not all did, and then all that could were let go on.
    async fn set_frozen(self: &Arc<Live>, frozen: bool) -> bool {
        let _turn = self.gate.freezer.lock().await;
        let containers = self.containers();
        let name = self.id.name.clone();
        let work = tokio::task::spawn_blocking(move || {
            let mut outcome = true;
            for running in &containers {
                let set = if frozen { running.container.freeze() } else { running.container.thaw() };
                if let Err(error) = set {
                    tracing::warn!(pod = name, error, frozen, "failed to freeze or thaw a container");
                    outcome = false;
                }
            }
            if frozen && !outcome {
                // A Pod is frozen whole or not at all. Whoever comes next finds out whether its processes run.
                containers.iter().for_each(|running| drop(running.container.thaw()));
            }
            outcome
        });
        work.await.unwrap_or(false)
    }
}
