//! Entering a Pod, which thaws it, and freezing it.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::sleep::{Act, Input};
use hutch_kubelet::StreamError;

use crate::config::ContainerChange;
use crate::gate::Gate;
use crate::live::Live;

/// Maximum time that a caller waits for a report. After it, the API has more serious troubles than a Sandbox that sleeps.
const REPORT_LIMIT: Duration = Duration::from_secs(5);

/// An operation in a Pod. The Pod stays awake until it is dropped.
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
    /// Enters, after the Pod was thawed if it was frozen; that its processes run is confirmed then. When the last report is
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

    /// Enters without a report, for a suspend.
    ///
    /// # Errors
    /// The Pod is ending, or could not be thawed.
    pub(crate) async fn pass(self: &Arc<Live>) -> Result<Busy, StreamError> {
        self.gate.touch();
        match self.gate.step(Input::Enter) {
            Act::Admit => return Ok(self.busy(true)),
            Act::Refuse => return Err(gone(self)),
            Act::Thaw => self.begin_thaw(),
            Act::Nothing | Act::Wait | Act::Freeze | Act::PageOut | Act::Save => {}
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
                Act::Nothing | Act::Wait | Act::Freeze | Act::PageOut | Act::Save => {}
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
                let busy = self.busy(true);
                // A suspend that is decided meanwhile has not seen it.
                (!self.gate.is_guarded()).then_some(busy)
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
                Act::Nothing | Act::Wait | Act::Freeze | Act::Thaw | Act::PageOut | Act::Save => {
                    phases.changed().await.ok()?
                }
            }
        }
    }

    fn busy(self: &Arc<Live>, counts: bool) -> Busy {
        Busy { live: self.clone(), counts }
    }

    /// Freezes the Pod unless an operation is in progress. Returns false if it could not be frozen.
    pub(super) async fn freeze(self: &Arc<Live>) -> bool {
        if self.gate.step(Input::Quiet) != Act::Freeze {
            return true;
        }
        self.finish_freeze().await
    }

    /// Freezes the processes after [`Act::Freeze`]. Returns false if that failed.
    pub(super) async fn finish_freeze(self: &Arc<Live>) -> bool {
        let live = self.clone();
        // The caller may be dropped; the work comes to its end.
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
            tracing::error!(pod = self.id.name, "a frozen Pod cannot be thawed; its containers are killed");
            self.kill_all();
        }
    }

    /// A container was started: the processes go.
    pub(crate) fn begun(&self) {
        self.gate.touch();
        self.gate.step(Input::Begun);
    }

    /// Before the end of the Pod: admits no operation any more, and returns when its processes run.
    pub(crate) async fn prepare_end(self: &Arc<Live>) {
        if self.gate.step(Input::End) == Act::Thaw {
            self.thaw().await;
        }
    }

    /// Nothing of the Pod runs any more.
    pub(crate) fn over(&self) {
        self.gate.step(Input::Ended);
    }

    /// Freezes or thaws all containers. Returns false if some could not be frozen; the others are then thawed.
    async fn set_frozen(self: &Arc<Live>, frozen: bool) -> bool {
        let _turn = self.gate.freezer.lock().await;
        let containers = self.containers();
        let (name, journal) = (self.id.name.clone(), self.journal.get().cloned());
        let uid = self.id.uid.clone();
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
                // A Pod is frozen whole or not at all. The next caller finds out whether its processes run.
                containers.iter().for_each(|running| drop(running.container.thaw()));
            }
            if let Some(journal) = journal.filter(|_| outcome) {
                let change = if frozen { ContainerChange::Frozen } else { ContainerChange::Thawed };
                containers.iter().for_each(|running| journal.happened(&uid, &running.blueprint.name, change));
            }
            outcome
        });
        work.await.unwrap_or(false)
    }
}
