//! One Pod: a task that brings it to the state in its spec and reports its status to the API server.

mod beginning;
mod blueprint;
mod ephemeral;
mod evict;
mod finish;
mod image;
mod late_env;
mod plan;
mod prepare;
mod probe;
mod publish;
mod restore;
mod start;
mod state;
mod status;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use hutch_api::sleep::Phase;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::admission::Choice;
use crate::container::{KILLED, MainExit, Running, code_of};
use crate::files::Files;
use crate::gate::reportable;
use crate::live::{Live, Update};
use crate::out_of_memory;
use crate::runtime::PodSandbox;
use crate::shared::Shared;
use crate::snapshot::Restoring;
use crate::volumes::Prepared;
use plan::{Plan, RestartPolicy, plan};
use probe::{Finding, Kind};
use state::{Ended, Life, Role, State};
use status::Frozen;

/// Maximum queued events of a Pod's containers.
const HAPPENINGS: usize = 64;

/// Why a container is killed whose image was changed.
const CHANGED: &str = "its image was changed";

/// Something that happened to a container in one of its lives.
struct Happening {
    index: usize,
    life: u32,
    what: What,
}

enum What {
    Ended(MainExit),
    Probed(Kind, Finding),
}

/// Running parts of one container.
#[derive(Default)]
struct Slot {
    running: Option<Arc<Running>>,
    /// Probes and the task that waits for the end; ended with the container.
    tasks: JoinSet<()>,
    /// Why it is being killed, when the node does that.
    killed_for: Option<&'static str>,
    /// Which variables it has beside those of the Pod's spec.
    late: late_env::Late,
    /// Its rules for files.
    files: Arc<Files>,
    /// Keeps its image from being removed.
    image: hutch_image::Hold,
    /// It has begun with the snapshot of the Pod.
    restored: bool,
    /// Failed restores, up to a bound.
    failed_restores: i32,
}

/// A Pod under way.
struct Worker {
    node: Arc<Shared>,
    live: Arc<Live>,
    pod: Arc<Pod>,
    spec: PodSpec,
    policy: RestartPolicy,
    choice: Choice,
    address: Ipv4Addr,
    volumes: BTreeMap<String, Prepared>,
    /// The sandbox that its containers share; `None` if a service of this process answers for it.
    sandbox: Option<Arc<dyn PodSandbox>>,
    /// Snapshot with which its containers begin, until the Pod was Ready.
    restoring: Option<Arc<Restoring>>,
    /// Snapshot with which they have begun, as the condition of the Pod shows it.
    restored: Option<String>,
    /// Reason why they have begun without their snapshot.
    anew: Option<String>,
    /// Descriptions in the order of `states`: init containers first, ephemeral ones last.
    containers: Vec<Container>,
    states: Vec<State>,
    slots: Vec<Slot>,
    start_time: Timestamp,
    /// The status that was last written.
    written: Option<PodStatus>,
    /// A status that waits a little, because a container is about to be ready.
    eager_until: Option<Instant>,
    /// When a write that failed is tried again.
    rewrite_at: Option<Instant>,
    /// When variables that could not be given are tried again.
    late_env_at: Option<Instant>,
    happenings: mpsc::Receiver<Happening>,
    report: mpsc::Sender<Happening>,
    updates: watch::Receiver<Update>,
    /// Follows whether the processes are frozen.
    phases: watch::Receiver<Phase>,
    frozen: Option<Frozen>,
    /// The task that freezes the Pod.
    sleeper: JoinSet<()>,
}

/// Why the work on a Pod is over.
enum Outcome {
    /// It is to be ended.
    Deleted,
    /// The API server does not know it any more.
    Gone,
    /// The node stops.
    Stopping,
    /// It is to be ended for its use of the disk, with this message.
    Evicted(String),
}

/// Works on a Pod until it is gone or the node stops.
pub(crate) async fn run(node: Arc<Shared>, live: Arc<Live>) {
    let mut updates = live.updates.subscribe();
    let pod = live.pod();
    let over = pod
        .status
        .as_ref()
        .and_then(|s| s.phase.as_deref())
        .is_some_and(|p| p == "Succeeded" || p == "Failed");
    let outcome = if pod.metadata.deletion_timestamp.is_some() {
        Outcome::Deleted
    } else if over {
        restore::lives(&live, &pod);
        wait_for_end(&node, &live, &mut updates).await
    } else {
        match prepare::prepare(&node, &live, &mut updates).await {
            Ok(mut worker) => {
                let outcome = worker.work().await;
                worker.end(outcome).await;
                return;
            }
            Err(outcome) => {
                // Until then its claims are in use.
                live.walks.ended().await;
                match outcome {
                    Outcome::Evicted(message) => Box::pin(evict::evict_waiting(&node, &live, message)).await,
                    outcome => outcome,
                }
            }
        }
    };
    finish::leave(&node, &live, outcome).await;
}

/// Waits until a Pod with nothing to do is to be ended. Its folders go before when the disk is full.
async fn wait_for_end(node: &Shared, live: &Live, updates: &mut watch::Receiver<Update>) -> Outcome {
    loop {
        if let Some(outcome) = outcome_of(updates) {
            return outcome;
        }
        tokio::select! {
            () = node.shutdown.wait() => return Outcome::Stopping,
            changed = updates.changed() => if changed.is_err() { return Outcome::Gone },
            _ = live.eviction() => {
                node.remove_folders(&live.uid).await;
                live.eviction_done();
            }
        }
    }
}

/// Returns the outcome if the last news of the API server ends the work.
fn outcome_of(updates: &mut watch::Receiver<Update>) -> Option<Outcome> {
    match &*updates.borrow_and_update() {
        Update::Gone => Some(Outcome::Gone),
        Update::Present(pod) if pod.metadata.deletion_timestamp.is_some() => Some(Outcome::Deleted),
        Update::Present(_) => None,
    }
}

impl Worker {
    async fn work(&mut self) -> Outcome {
        self.take_ephemeral();
        if let Choice::Embedded(kind) = self.choice {
            return self.stand_for(kind).await;
        }
        self.sleeper.spawn(crate::sleep::run(self.node.clone(), self.live.clone()));
        loop {
            if let Some(outcome) = outcome_of(&mut self.updates) {
                return outcome;
            }
            let plan = plan(&self.states, self.policy, Timestamp::now());
            // Its memory is on disk: a second life would change its volumes.
            let is_saved = self.node.snapshots.has_ended(&self.live.id.uid);
            if !plan.start.is_empty() && !is_saved {
                for start in plan.start {
                    if let Some(message) = self.memory_exceeded().await {
                        return Outcome::Evicted(message);
                    }
                    self.start(start).await;
                }
                continue;
            }
            for &index in &plan.stop {
                self.kill(index, "Completed", None);
            }
            if plan.phase.is_final() && !self.anything_runs() {
                self.node.capacity.release(&self.live.id.uid);
            }
            self.give_late_env().await;
            self.publish_when_due(&plan).await;
            let wake = self.wake(&plan);
            tokio::select! {
                () = self.node.shutdown.wait() => return Outcome::Stopping,
                changed = self.updates.changed() => if changed.is_err() { return Outcome::Gone },
                message = self.live.eviction() => match plan.phase.is_final() && !self.anything_runs() {
                    true => {
                        self.node.remove_folders(&self.live.uid).await;
                        self.live.eviction_done();
                    }
                    false => return Outcome::Evicted(message),
                },
                Some(happening) = self.happenings.recv() => self.take(happening),
                changed = reportable(&mut self.phases) => if changed.is_err() { return Outcome::Gone },
                () = sleep_until(wake) => {}
            }
            if let Update::Present(pod) = &*self.updates.borrow() {
                self.pod = pod.clone();
            }
            self.take_images();
            self.take_ephemeral();
            let phase = *self.phases.borrow_and_update();
            let since = self.frozen.map_or_else(Timestamp::now, |frozen| frozen.since);
            self.frozen = phase.is_frozen().then_some(Frozen { since, paged_out: phase == Phase::PagedOut });
        }
    }

    /// Returns the time of the next reconcile when no event comes before.
    fn wake(&self, plan: &Plan) -> Option<Instant> {
        let planned = plan.wake.map(|at| {
            let left = at.duration_since(Timestamp::now());
            Instant::now() + Duration::try_from(left).unwrap_or(Duration::ZERO)
        });
        [planned, self.eager_until, self.rewrite_at, self.late_env_at].into_iter().flatten().min()
    }

    /// A service of this process answers for the Pod: it is ready when that is.
    async fn stand_for(&mut self, kind: crate::ServiceKind) -> Outcome {
        const FIRST_LOOK: Duration = Duration::from_millis(5);
        const LOOK_EVERY: Duration = Duration::from_secs(1);
        let now = Timestamp::now();
        for state in self.states.iter_mut().filter(|state| state.role != Role::Ephemeral) {
            state.has_readiness_probe = true;
            state.begin();
            state.run(now);
        }
        let mut pause = FIRST_LOOK;
        loop {
            if let Some(outcome) = outcome_of(&mut self.updates) {
                return outcome;
            }
            let ready = self.node.config.services.get(&kind).is_some_and(|service| service.ready());
            if let Update::Present(pod) = &*self.updates.borrow() {
                self.pod = pod.clone();
            }
            self.take_ephemeral();
            for state in self.states.iter_mut().filter(|state| state.role != Role::Ephemeral) {
                state.started = ready;
                state.ready = ready;
            }
            let plan = plan(&self.states, self.policy, Timestamp::now());
            self.publish(&plan).await;
            pause = if ready { LOOK_EVERY } else { (pause * 2).min(LOOK_EVERY) };
            tokio::select! {
                () = self.node.shutdown.wait() => return Outcome::Stopping,
                changed = self.updates.changed() => if changed.is_err() { return Outcome::Gone },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn take(&mut self, happening: Happening) {
        let Happening { index, life, what } = happening;
        if self.states[index].restarts != life || !matches!(self.states[index].life, Life::Running { .. }) {
            return;
        }
        match what {
            What::Ended(exit) => self.ended(index, &exit),
            What::Probed(kind, finding) => self.probed(index, kind, finding),
        }
    }

    fn ended(&mut self, index: usize, exit: &MainExit) {
        let slot = &mut self.slots[index];
        slot.tasks.abort_all();
        slot.running = None;
        let killed_for = slot.killed_for.take();
        let state = &mut self.states[index];
        self.live.ended(&state.name);
        if exit.out_of_memory {
            let text = out_of_memory::message(&state.name);
            self.node.events.container(&self.pod, &state.name, true, out_of_memory::REASON, text);
        }
        let mut ended = ended_by(state, Some(exit), killed_for);
        let policy = self.containers[index].termination_message_policy.as_deref();
        if policy == Some("FallbackToLogsOnError") && ended.message.is_none() {
            ended.message.clone_from(&exit.output);
        }
        let at = ended.at;
        state.end(ended);
        if killed_for == Some(CHANGED) {
            // Whatever its restart policy: its next life has another image.
            state.begin_anew(at);
        }
        let backing_off = plan(&self.states, self.policy, at).backing_off.contains(&index);
        if backing_off {
            let name = self.states[index].name.clone();
            let text = format!(
                "Back-off restarting failed container {name} in pod {}_{}",
                self.live.id.name, self.live.id.uid
            );
            self.node.events.container(&self.pod, &name, true, "BackOff", text);
        }
    }

    fn probed(&mut self, index: usize, kind: Kind, finding: Finding) {
        if finding != Finding::Healthy && self.live.was_paused() {
            // Its processes are paused, and answer no probe.
            return;
        }
        let state = &mut self.states[index];
        match (kind, finding) {
            (_, Finding::Failed(why)) => {
                let (pod, text) = (&self.pod, format!("{} probe failed: {why}", kind.name()));
                self.node.events.container(pod, &state.name, true, "Unhealthy", text);
            }
            (_, Finding::Warned(warning)) => {
                let (pod, text) = (&self.pod, format!("{} probe warning: {warning}", kind.name()));
                self.node.events.container(pod, &state.name, true, "ProbeWarning", text);
            }
            (Kind::Readiness, finding) => state.ready = state.started && finding == Finding::Healthy,
            (Kind::Startup, Finding::Healthy) => {
                state.started = true;
                state.ready = !state.has_readiness_probe;
                self.begin_probes(index, &[Kind::Readiness, Kind::Liveness]);
            }
            (Kind::Liveness, Finding::Healthy) => {}
            (Kind::Startup | Kind::Liveness, Finding::Unhealthy) => {
                let text = format!(
                    "Container {} failed {} probe, will be restarted",
                    state.name,
                    kind.name().to_lowercase()
                );
                self.node.events.container(&self.pod, &state.name, false, "Killing", text);
                let container = &self.containers[index];
                let probe = match kind {
                    Kind::Startup => &container.startup_probe,
                    _ => &container.liveness_probe,
                };
                let grace = probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds);
                self.kill(index, "its probe failed", grace);
            }
        }
    }

    /// Takes the images of the Pod's spec, the one field of a container that can change. A container that runs is started
    /// again with its new image.
    fn take_images(&mut self) {
        let Some(spec) = &self.pod.spec else { return };
        let images: Vec<String> = spec
            .init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
            .map(|container| container.image.clone().unwrap_or_default())
            .collect();
        for (index, image) in images.into_iter().enumerate().take(self.states.len()) {
            let state = &mut self.states[index];
            if state.image == image {
                continue;
            }
            // An init container that is done is not run again.
            let again = state.role != Role::Init;
            state.image.clone_from(&image);
            self.containers[index].image = Some(image);
            if self.slots[index].running.is_some() && again {
                let name = &self.states[index].name;
                let text = format!("Container {name} definition changed, will be restarted");
                self.node.events.container(&self.pod, name, false, "Killing", text);
                self.kill(index, CHANGED, None);
            }
        }
    }

    /// Asks a container to end, and kills it when it does not. `grace` are seconds in place of those of the Pod.
    fn kill(&mut self, index: usize, why: &'static str, grace: Option<i64>) {
        let slot = &mut self.slots[index];
        let Some(running) = slot.running.clone() else { return };
        if slot.killed_for.replace(why).is_some() {
            return;
        }
        let grace = grace.or(self.spec.termination_grace_period_seconds);
        let grace = grace.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(30);
        slot.tasks.spawn(async move {
            running.container.signal(running.blueprint.stop_signal);
            tokio::time::sleep(Duration::from_secs(grace)).await;
            running.container.kill();
        });
    }
}

/// Returns the end of a container. Without an exit, it was killed.
fn ended_by(state: &State, exit: Option<&MainExit>, killed_for: Option<&str>) -> Ended {
    let code = exit.map_or(KILLED, |exit| code_of(&exit.exit));
    let reason = match (exit.is_some_and(|exit| exit.out_of_memory), code) {
        (true, _) => "OOMKilled",
        (false, 0) => "Completed",
        (false, _) => "Error",
    };
    let started = match state.life {
        Life::Running { since } => Some(since),
        _ => None,
    };
    let signal = match exit.map(|exit| &exit.exit) {
        Some(hutch_kubelet::Exit::Signal(signal)) => Some(*signal),
        _ => None,
    };
    // The reason of the node stands first: code inside must not take its place.
    let messages = killed_for.into_iter().chain(exit.and_then(|exit| exit.message.as_deref()));
    let message = Some(messages.collect::<Vec<_>>().join("\n")).filter(|message| !message.is_empty());
    Ended { code, signal, reason: reason.to_owned(), message, started, at: Timestamp::now() }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use hutch_kubelet::Exit;

    use super::*;

    #[test]
    fn reason_of_the_node_is_before_the_message_of_the_container() {
        let message = |killed_for: Option<&str>, written: Option<&str>| {
            let message = written.map(Into::into);
            let exit = MainExit { exit: Exit::Code(1), out_of_memory: false, message, output: None };
            ended_by(&State::new("c", Role::Main, "i"), Some(&exit), killed_for).message
        };
        let (why, written) = (Some("its probe failed"), Some("all is well"));
        assert_eq!(message(why, written).as_deref(), Some("its probe failed\nall is well"));
        assert_eq!(message(why, None).as_deref(), why);
        assert_eq!(message(None, written).as_deref(), written);
        assert_eq!(message(None, None), None);
    }
}
