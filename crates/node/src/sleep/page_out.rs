//! Writing the memory of a frozen Pod to swap.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hutch_api::annotation;
use hutch_api::sleep::{Act, IdleTimes, Input, Phase};
use hutch_jail::{PageOut, PageOutEnd, Swap};
use k8s_openapi::api::core::v1::Pod;

use super::sleeper::Sleeper;
use crate::config::ContainerChange;
use crate::live::Live;
use crate::shared::Shared;

/// Reason of the events.
pub(super) const REASON: &str = "CannotPageOut";
/// Interval at which a machine without free swap is checked again.
const SWAP_INTERVAL: Duration = Duration::from_secs(60);
/// Wait for the end of an earlier write that was given up.
const AGAIN: Duration = Duration::from_millis(50);
/// Memory that may stay in RAM without a word, in bytes: a Pod of a few small processes that share their pages.
const LITTLE: u64 = 16 << 20;

/// Progress of a Pod's page-outs.
#[derive(Default)]
pub(super) struct PageOutState {
    /// It was tried since the last freeze.
    tried: bool,
    /// Problem to report.
    problem: Arc<Mutex<Option<String>>>,
}

impl PageOutState {
    /// The Pod is not frozen.
    pub(super) fn awake(&mut self) {
        self.tried = false;
    }
}

impl Sleeper {
    /// Reports problems of page-outs, among them an annotation without effect.
    pub(super) fn warn_about_page_out(&mut self, pod: &Pod, times: &IdleTimes) {
        if let Some(why) = times.page_out_after.and_then(|_| self.without_page_out()) {
            let key = annotation::PAGE_OUT_AFTER;
            self.warn(pod, REASON, format!("{key} has no effect, idle memory stays in RAM: {why}"));
        }
        let problem = self.page_out.problem.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(problem) = problem {
            self.warn(pod, REASON, problem);
        }
    }

    /// Begins to write the memory of the frozen Pod to swap when that is due. Returns the time until the next reconcile, if
    /// there is to be one.
    pub(super) fn page_out_when_due(&mut self, times: &IdleTimes) -> Option<Duration> {
        let after = times.page_out_after?;
        let left = after.saturating_sub(self.live.gate.idle_for().unwrap_or_default());
        if !left.is_zero() {
            return Some(left);
        }
        let is_done = self.page_out.tried || *self.live.gate.phases().borrow() != Phase::Frozen;
        if is_done || self.without_page_out().is_some() {
            return None;
        }
        if let Some(why) = lacks(Swap::of_this_machine()) {
            let pod = self.live.pod();
            self.warn(&pod, REASON, format!("Its idle memory stays in RAM: {why}"));
            return Some(SWAP_INTERVAL);
        }
        if self.live.gate.step(Input::LongQuiet) != Act::PageOut {
            return Some(AGAIN);
        }
        self.page_out.tried = true;
        let (node, live, problem) = (self.node.clone(), self.live.clone(), self.page_out.problem.clone());
        // Not awaited: a request may wait for a report of the sleeper.
        tokio::spawn(async move {
            let report = |found| *problem.lock().unwrap_or_else(PoisonError::into_inner) = found;
            live.finish_page_out(&node, report).await;
        });
        None
    }

    fn without_page_out(&self) -> Option<&'static str> {
        without_page_out(&self.live)
    }
}

impl Live {
    /// Writes the memory to swap after [`Act::PageOut`], until the Pod is to be thawed. `report` receives the problem that users
    /// should know before the phase changes.
    pub(super) async fn finish_page_out(
        self: &Arc<Live>,
        node: &Shared,
        report: impl FnOnce(Option<String>),
    ) {
        let result = self.page_out(node).await;
        let found = problem_of(&result);
        let is_complete = found.is_none() && result.is_ok_and(|done| done.end == PageOutEnd::Complete);
        if is_complete {
            self.record_page_out();
        }
        report(found);
        self.gate.step(Input::PagedOut(is_complete));
    }

    /// Writes the memory of all containers to swap, until the Pod is to be thawed.
    async fn page_out(self: &Arc<Live>, node: &Shared) -> Result<PageOut, String> {
        let mut phases = self.gate.phases();
        let mut sum = PageOut { end: PageOutEnd::Interrupted, before_bytes: 0, after_bytes: 0 };
        tokio::select! {
            permitted = self.permitted_all(ContainerChange::PagedOut) => permitted?,
            _ = phases.wait_for(|phase| *phase != Phase::PagingOut) => return Ok(sum),
        }
        let _turn = tokio::select! {
            turn = node.page_out.acquire() => turn.map_err(|error| error.to_string())?,
            _ = phases.wait_for(|phase| *phase != Phase::PagingOut) => return Ok(sum),
        };
        let containers = self.containers();
        let work = tokio::task::spawn_blocking(move || {
            let going = || *phases.borrow() == Phase::PagingOut;
            for running in containers {
                let done = running.container.page_out(&going)?;
                sum.end = done.end;
                sum.before_bytes += done.before_bytes;
                sum.after_bytes += done.after_bytes;
                if done.end != PageOutEnd::Complete {
                    break;
                }
            }
            Ok(sum)
        });
        let result = work.await.map_err(|error| error.to_string()).flatten();
        tracing::debug!(pod = self.id.name, ?result, "wrote memory to swap");
        result
    }

    fn record_page_out(&self) {
        if let Some(journal) = self.journal.get() {
            let change = ContainerChange::PagedOut;
            let containers = self.containers();
            containers
                .iter()
                .for_each(|running| journal.happened(&self.id.uid, &running.blueprint.name, change));
        }
    }
}

/// Returns why the memory of a Pod cannot be written to swap, on any machine.
pub(super) fn without_page_out(live: &Live) -> Option<&'static str> {
    live.containers().iter().find_map(|running| running.container.without_page_out())
}

/// Returns why nothing can be written to swap.
pub(super) fn lacks(swap: Swap) -> Option<&'static str> {
    match swap {
        Swap { total_bytes: 0, .. } => Some("this machine has no swap"),
        Swap { free_bytes: 0, .. } => Some("the swap of this machine is full"),
        Swap { .. } => None,
    }
}

/// Returns the problem that users should know: much memory stays in RAM.
fn problem_of(result: &Result<PageOut, String>) -> Option<String> {
    let mebibytes = |bytes: u64| bytes >> 20;
    match result {
        Err(error) => Some(format!("Its idle memory stays in RAM: {error}")),
        Ok(PageOut { end: PageOutEnd::Interrupted, .. }) => None,
        Ok(PageOut { end: PageOutEnd::OutOfTime, .. }) => {
            Some("Its idle memory was not written to swap in time, and a part of it stays in RAM".into())
        }
        Ok(PageOut { end: PageOutEnd::Complete, before_bytes, after_bytes }) => {
            (*after_bytes > LITTLE && *after_bytes > before_bytes / 2).then(|| {
                format!(
                    "{} MiB of its {} MiB stay in RAM: they are locked or shared by processes, or swap is full",
                    mebibytes(*after_bytes),
                    mebibytes(*before_bytes)
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_without_free_swap_is_named() {
        let swap = |total_bytes, free_bytes| lacks(Swap { total_bytes, free_bytes });
        assert_eq!(swap(0, 0), Some("this machine has no swap"));
        assert_eq!(swap(9, 0), Some("the swap of this machine is full"));
        assert_eq!(swap(9, 1), None);
    }

    #[test]
    fn memory_that_stays_in_ram_is_reported() {
        let of = |end, before: u64, after: u64| {
            problem_of(&Ok(PageOut { end, before_bytes: before << 20, after_bytes: after << 20 }))
        };
        assert_eq!(of(PageOutEnd::Complete, 200, 3), None);
        assert_eq!(of(PageOutEnd::Complete, 20, 12), None, "a little is no problem");
        assert_eq!(of(PageOutEnd::Interrupted, 200, 200), None, "a request came");
        assert!(of(PageOutEnd::Complete, 200, 150).unwrap().starts_with("150 MiB of its 200 MiB"));
        assert!(of(PageOutEnd::OutOfTime, 200, 3).unwrap().contains("in time"));
        assert!(problem_of(&Err("no".into())).unwrap().ends_with("RAM: no"));
    }
}
