//! Looks now and then whether a Pod is idle, freezes it, and reports how long ago it was used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_api::condition::is_pod_ready;
use hutch_api::label;
use hutch_api::sleep::{IdleTimes, LEAST, report_every};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::page_out::PageOutState;
use super::report::{Report, Written};
use crate::config::ContainerChange;
use crate::container::Running;
use crate::gate::reportable;
use crate::live::Live;
use crate::shared::Shared;

/// CPU time that an idle Pod may use, in thousandths of a CPU: what timers and servers that wait for requests need.
const IDLE_CPU_MILLIS: u64 = 20;
/// The shortest time over which CPU time is counted: a probe in a shorter one would look like work.
pub(super) const CPU_WINDOW: Duration = Duration::from_secs(1);
/// The longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Least time between two reports of activity while each caller waits for its own.
const REPORT_EACH: Duration = Duration::from_millis(1);
/// Wait before the next reconcile of a Pod that was just being probed.
const AGAIN: Duration = Duration::from_millis(20);

/// Follows a Pod until it is aborted.
pub(crate) async fn run(node: Arc<Shared>, live: Arc<Live>) {
    let mut sleeper = Sleeper::new(node, live);
    let mut updates = sleeper.live.updates.subscribe();
    let mut phases = sleeper.live.gate.phases();
    loop {
        updates.mark_unchanged();
        phases.mark_unchanged();
        // On the heap, so that the task of a Pod that never sleeps, as most, is a small one.
        let pause = Box::pin(sleeper.reconcile()).await;
        tokio::select! {
            changed = updates.changed() => if changed.is_err() { return },
            changed = reportable(&mut phases) => if changed.is_err() { return },
            () = sleeper.live.gate.report_wanted() => {}
            () = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

pub(super) struct Sleeper {
    pub(super) node: Arc<Shared>,
    pub(super) live: Arc<Live>,
    cpu: Cpu,
    /// Text of the last warning of each reason.
    warned: BTreeMap<&'static str, String>,
    report: Option<Report>,
    pub(super) page_out: PageOutState,
}

impl Sleeper {
    fn new(node: Arc<Shared>, live: Arc<Live>) -> Sleeper {
        let (warned, page_out) = (BTreeMap::new(), PageOutState::default());
        Sleeper { node, live, cpu: Cpu::default(), warned, report: None, page_out }
    }

    /// Does what is due; returns the time until the next reconcile, if there is to be one.
    async fn reconcile(&mut self) -> Option<Duration> {
        let pod = self.live.pod();
        if pod.labels().contains_key(label::WARM_POOL_SANDBOX) {
            // It must be available at once for a claim, and counts as idle from then on.
            self.live.gate.touch();
            self.live.gate.needs_no_report();
            return None;
        }
        let times = IdleTimes::read([pod.annotations()]).unwrap_or_else(|error| {
            self.warn(&pod, "InvalidSleep", format!("It never sleeps: {error}"));
            IdleTimes::default()
        });
        let frozen = self.live.gate.phases().borrow().is_frozen();
        self.warn_about_page_out(&pod, &times);
        if frozen && !self.may_stay_frozen(&times) {
            // This is reported as a change of phase, so the next reconcile follows at once.
            return self.live.wake().await.then_some(AGAIN);
        }
        let Some(shortest) = [times.freeze_after, times.suspend_after].into_iter().flatten().min() else {
            // Reports from the time when it could sleep are withdrawn.
            self.report_to_sandbox(&times, frozen).await;
            return None;
        };
        let pause = (shortest / 4).clamp(LEAST / 4, LONGEST_PAUSE);
        if self.report.is_none() {
            self.report = Report::of(&self.node.client, &pod).await;
        }
        let cpu_left = if frozen { Duration::ZERO } else { self.count_cpu().await };
        self.report_to_sandbox(&times, frozen).await;
        if frozen {
            return self.page_out_when_due(&times);
        }
        self.page_out.awake();
        let Some(after) = times.freeze_after else { return Some(pause) };
        let left = match self.live.gate.idle_for() {
            // A request that lasts, or a probe that is over at once.
            None => return Some(pause),
            Some(idle) => after.saturating_sub(idle),
        };
        let left = left.max(cpu_left);
        if !left.is_zero() || !is_pod_ready(&pod) {
            return Some(left.clamp(AGAIN, pause));
        }
        self.freeze(&pod).await;
        Some(pause)
    }

    /// Returns true if the current idle time has passed too: it may have been made longer, or removed, since. It need not have
    /// passed if the node was short of memory.
    fn may_stay_frozen(&self, times: &IdleTimes) -> bool {
        let idle = self.live.gate.idle_for();
        let is_ahead = times.page_out_after.is_some() && self.live.gate.is_ahead();
        times.freeze_after.is_some_and(|after| is_ahead || idle.is_none_or(|idle| idle >= after))
    }

    /// Counts CPU time as activity; returns the time until it can be measured again.
    async fn count_cpu(&mut self) -> Duration {
        let left = self.cpu.since.map_or(Duration::ZERO, |since| CPU_WINDOW.saturating_sub(since.elapsed()));
        if !left.is_zero() {
            return left;
        }
        let first = self.cpu.since.is_none();
        if self.cpu.was_used(&self.live).await {
            self.live.gate.touch();
        }
        if first { CPU_WINDOW } else { Duration::ZERO }
    }

    async fn freeze(&mut self, pod: &Pod) {
        if self.live.containers().iter().any(|running| !running.container.is_freezable()) {
            let text = "It is not frozen: it runs since before it was to be, or the machine has no freezer";
            self.warn(pod, "CannotFreeze", text.into());
        } else if let Err(why) = self.live.permitted_all(ContainerChange::Frozen).await {
            self.warn(pod, "CannotFreeze", format!("It is not frozen: {why}"));
        } else if !self.live.freeze().await {
            self.warn(pod, "CannotFreeze", "It was not frozen: a process did not stop in time".into());
        } else {
            return;
        }
        // To be tried again after as long.
        self.live.gate.touch();
    }

    /// Complains once.
    pub(super) fn warn(&mut self, pod: &Pod, reason: &'static str, text: String) {
        if self.warned.get(reason) != Some(&text) {
            self.node.events.warning(pod, reason, text.clone());
            self.warned.insert(reason, text);
        }
    }

    /// Writes to the Sandbox what has changed, seldom.
    async fn report_to_sandbox(&mut self, times: &IdleTimes, frozen: bool) {
        let gate = &self.live.gate;
        let Some(report) = &mut self.report else { return gate.needs_no_report() };
        let idle = gate.idle_for().unwrap_or_default();
        let ago = SignedDuration::try_from(idle).unwrap_or_default();
        let active = Timestamp::now().checked_sub(ago).unwrap_or_default();
        let every = times
            .suspend_after
            .map(|after| if gate.is_guarded() { REPORT_EACH } else { report_every(after) });
        let written = report.write(&self.node.client, frozen, every.map(|every| (active, every))).await;
        match (times.suspend_after, written) {
            (None, _) => gate.needs_no_report(),
            (Some(after), Written::Active { suspended }) => gate.was_reported(suspended, after / 2),
            // It was late already; the next one who comes tries again.
            (Some(_), Written::Failed) => gate.was_reported(false, Duration::ZERO),
            (Some(_), Written::NoActivity) => {}
        }
    }
}

/// CPU time of the containers of a Pod at the last look, by name, in microseconds.
#[derive(Default)]
pub(super) struct Cpu {
    since: Option<Instant>,
    used: BTreeMap<String, u64>,
}

impl Cpu {
    /// Returns true if it used more since the last call than an idle Pod does.
    pub(super) async fn was_used(&mut self, live: &Arc<Live>) -> bool {
        let containers = live.containers();
        let read = tokio::task::spawn_blocking(move || {
            let used = |running: &Arc<Running>| {
                Some((running.blueprint.name.clone(), running.container.stats()?.cpu_micros))
            };
            containers.iter().filter_map(used).collect::<BTreeMap<_, _>>()
        });
        let Ok(now) = read.await else { return false };
        let before = std::mem::replace(&mut self.used, now);
        let Some(since) = self.since.replace(Instant::now()) else { return false };
        // A container that began anew counts from zero.
        let more =
            |(name, micros): (&String, &u64)| micros.saturating_sub(before.get(name).copied().unwrap_or(0));
        let used: u64 = self.used.iter().map(more).sum();
        let passed = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        used.saturating_mul(1000) > passed.saturating_mul(IDLE_CPU_MILLIS)
    }
}
