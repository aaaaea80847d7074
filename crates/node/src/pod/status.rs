//! The status of a Pod as the API shows it: a pure function of what the node knows.

use hutch_api::condition::{ISOLATION_OF_POD, POLICY_ENFORCED_OF_POD};
use hutch_api::late_env;
use hutch_api::sleep::{FROZEN_MESSAGE, FROZEN_OF_POD, FROZEN_REASON, PAGED_OUT_MESSAGE, PAGED_OUT_REASON};
use hutch_api::state::{RESTORE_FAILED, RESTORED_POD, STARTED_ANEW};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{Phase, Plan};
use super::state::{Ended, Life, Role, State};
use crate::admission::Isolation;
use crate::live::Enforced;
use crate::shared::HOST_IP;

/// The conditions that a node owns; others on the object stay as they are.
const OWN_CONDITIONS: [&str; 9] = [
    "PodScheduled",
    "Initialized",
    "ContainersReady",
    "Ready",
    late_env::CONDITION,
    FROZEN_OF_POD,
    POLICY_ENFORCED_OF_POD,
    ISOLATION_OF_POD,
    RESTORED_POD,
];
/// Maximum bytes of the messages of all containers of a Pod that have ended, as of a kubelet.
const MESSAGES_BYTES: usize = 12 << 10;
/// Maximum characters of the reason why a snapshot is not restored.
const UNRESTORED_CHARS: usize = 1024;

/// Input of a status beside the containers.
#[derive(Debug, Clone)]
pub(crate) struct Facts<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) pod_ip: Option<&'a str>,
    pub(crate) start_time: Timestamp,
    pub(crate) now: Timestamp,
    /// The conditions that were written last, whose times stay while their status does.
    pub(crate) previous: &'a [PodCondition],
    /// Reason of the condition about variables of a claim.
    pub(crate) late_env: Option<&'static str>,
    /// Effect of its policies.
    pub(crate) enforced: Option<Enforced>,
    /// Isolation, once its handler is chosen.
    pub(crate) isolation: Option<Isolation>,
    /// Set while its processes are frozen.
    pub(crate) frozen: Option<Frozen>,
    /// Snapshot with which its containers have begun, as its condition shows it.
    pub(crate) restored: Option<&'a str>,
    /// Reason why its containers have begun without their snapshot.
    pub(crate) anew: Option<&'a str>,
}

impl<'a> Facts<'a> {
    /// Returns the facts of a Pod of which nothing else is known.
    pub(crate) fn of(pod: &'a Pod, start_time: Timestamp, now: Timestamp) -> Facts<'a> {
        Facts {
            pod,
            pod_ip: None,
            start_time,
            now,
            previous: &[],
            late_env: None,
            enforced: None,
            isolation: None,
            frozen: None,
            restored: None,
            anew: None,
        }
    }
}

/// State of a Pod whose processes are frozen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frozen {
    pub(crate) since: Timestamp,
    /// True if their memory was written to swap.
    pub(crate) paged_out: bool,
}

/// The status. Times have whole seconds, as the API has them.
pub(crate) fn status(states: &[State], plan: &Plan, facts: &Facts<'_>) -> PodStatus {
    let most = MESSAGES_BYTES / states.len().max(1);
    let list = |roles: &[Role]| {
        let chosen = states.iter().enumerate().filter(|(_, s)| roles.contains(&s.role));
        let all: Vec<_> =
            chosen.map(|(i, s)| container(s, plan.backing_off.contains(&i), facts, most)).collect();
        (!all.is_empty()).then_some(all)
    };
    PodStatus {
        phase: Some(plan.phase.name().into()),
        conditions: Some(conditions(states, plan, facts)),
        container_statuses: list(&[Role::Main]),
        init_container_statuses: list(&[Role::Init, Role::Sidecar]),
        ephemeral_container_statuses: list(&[Role::Ephemeral]),
        host_ip: Some(HOST_IP.into()),
        host_ips: Some(vec![HostIP { ip: HOST_IP.into() }]),
        pod_ip: facts.pod_ip.map(Into::into),
        pod_ips: facts.pod_ip.map(|ip| vec![PodIP { ip: ip.into() }]),
        start_time: Some(whole(facts.start_time)),
        qos_class: Some(qos_class(facts.pod).into()),
        observed_generation: facts.pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// The status of a Pod for which the node has no room now.
pub(crate) fn unscheduled(message: &str, facts: &Facts<'_>) -> PodStatus {
    let problem = ("Unschedulable", Some(message.to_owned()));
    PodStatus {
        phase: Some(Phase::Pending.name().into()),
        conditions: Some(vec![condition("PodScheduled", Some(problem), facts)]),
        qos_class: Some(qos_class(facts.pod).into()),
        observed_generation: facts.pod.metadata.generation,
        ..PodStatus::default()
    }
}

fn whole(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The status of a container, whose message has at most so many bytes.
fn container(state: &State, backing_off: bool, facts: &Facts<'_>, most: usize) -> ContainerStatus {
    let id = facts.pod.metadata.uid.as_deref().unwrap_or("");
    let id = |life: u32| format!("hutch://{id}/{}/{life}", state.name);
    let ever_started = !matches!(state.life, Life::Waiting { .. } | Life::Starting) || state.last.is_some();
    let before = state.restarts.saturating_sub(1);
    let mut last = state.last.as_ref().map(|ended| terminated(ended, id(before), most));
    let current = match &state.life {
        Life::Waiting { reason, message } => waiting(reason, message.clone()),
        Life::Starting => waiting("ContainerCreating", None),
        Life::Running { since } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(whole(*since)) }),
            ..ContainerState::default()
        },
        Life::Ended(ended) if backing_off => {
            last = Some(terminated(ended, id(state.restarts), most));
            let wait = state.restart_at(ended).duration_since(ended.at).as_secs();
            let message = format!("back-off {wait}s restarting failed container={}", state.name);
            waiting("CrashLoopBackOff", Some(message))
        }
        Life::Ended(ended) => terminated(ended, id(state.restarts), most),
    };
    let finished_init = state.role == Role::Init && matches!(&state.life, Life::Ended(e) if e.code == 0);
    ContainerStatus {
        name: state.name.clone(),
        image: state.image.clone(),
        image_id: state.image_id.clone(),
        container_id: ever_started.then(|| id(state.restarts)),
        ready: state.ready || finished_init,
        started: Some(state.started),
        restart_count: i32::try_from(state.restarts).unwrap_or(i32::MAX),
        state: Some(current),
        last_state: last,
        ..ContainerStatus::default()
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.into()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn terminated(ended: &Ended, id: String, most: usize) -> ContainerState {
    let mut message = ended.message.clone();
    if let Some(message) = &mut message {
        message.truncate(message.floor_char_boundary(most));
    }
    let terminated = ContainerStateTerminated {
        container_id: Some(id),
        exit_code: ended.code,
        signal: ended.signal,
        reason: Some(ended.reason.clone()),
        message,
        started_at: ended.started.map(whole),
        finished_at: Some(whole(ended.at)),
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

fn conditions(states: &[State], plan: &Plan, facts: &Facts<'_>) -> Vec<PodCondition> {
    let unready = states.iter().filter(|s| matches!(s.role, Role::Sidecar | Role::Main) && !s.ready);
    let unready: Vec<&str> = unready.map(|s| s.name.as_str()).collect();
    let containers_ready = plan.initialized && unready.is_empty() && plan.phase == Phase::Running;
    let not_ready = || match plan.phase {
        Phase::Succeeded => ("PodCompleted", None),
        Phase::Failed => ("PodFailed", None),
        _ => ("ContainersNotReady", Some(format!("containers with unready status: [{}]", unready.join(" ")))),
    };
    let existing = facts.pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
    let gates = facts.pod.spec.as_ref().and_then(|s| s.readiness_gates.as_deref()).unwrap_or(&[]);
    let open = |kind: &str| existing.iter().any(|c| c.type_ == kind && c.status == "True");
    let shut = gates.iter().find(|gate| !open(&gate.condition_type));
    let uninitialized = || {
        let names: Vec<&str> = states
            .iter()
            .filter(|s| matches!(s.role, Role::Init | Role::Sidecar))
            .filter(|s| !matches!(&s.life, Life::Ended(e) if e.code == 0))
            .map(|s| s.name.as_str())
            .collect();
        (
            "ContainersNotInitialized",
            Some(format!("containers with incomplete status: [{}]", names.join(" "))),
        )
    };
    let mut own = vec![
        condition("PodScheduled", None, facts),
        condition("Initialized", (!plan.initialized).then(uninitialized), facts),
        condition("ContainersReady", (!containers_ready).then(not_ready), facts),
    ];
    let ready = match (containers_ready, shut) {
        (true, None) => None,
        (true, Some(gate)) => Some((
            "ReadinessGatesNotReady",
            Some(format!(
                "corresponding condition of pod readiness gate {:?} does not exist or is not True.",
                gate.condition_type
            )),
        )),
        (false, _) => Some(not_ready()),
    };
    let is_ready = ready.is_none();
    own.push(condition("Ready", ready, facts));
    own.extend(own_conditions(facts));
    own.extend(restored(states, is_ready, facts));
    own.extend(existing.iter().filter(|c| !OWN_CONDITIONS.contains(&c.type_.as_str())).cloned());
    own
}

/// Returns the conditions that Kubernetes does not have.
fn own_conditions(facts: &Facts<'_>) -> Vec<PodCondition> {
    let mut own = Vec::new();
    own.extend(facts.late_env.map(|reason| {
        let pending = (reason == late_env::PENDING).then_some((reason, None));
        PodCondition { reason: Some(reason.into()), ..condition(late_env::CONDITION, pending, facts) }
    }));
    own.extend(facts.enforced.as_ref().map(|Enforced { holds, reason, message }| {
        let problem = (!holds).then_some((*reason, None));
        let (reason, message) = (Some((*reason).to_owned()), Some(message.clone()));
        PodCondition { reason, message, ..condition(POLICY_ENFORCED_OF_POD, problem, facts) }
    }));
    own.extend(facts.isolation.as_ref().map(|Isolation { reason, message }| {
        let (reason, message) = (Some((*reason).to_owned()), Some(message.clone()));
        PodCondition { reason, message, ..condition(ISOLATION_OF_POD, None, facts) }
    }));
    own.extend(facts.frozen.map(|Frozen { since, paged_out }| {
        let (reason, message) =
            if paged_out { (PAGED_OUT_REASON, PAGED_OUT_MESSAGE) } else { (FROZEN_REASON, FROZEN_MESSAGE) };
        PodCondition {
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: Some(whole(since)),
            ..condition(FROZEN_OF_POD, None, facts)
        }
    }));
    own
}

/// Returns the condition that the Pod has begun with a snapshot, from the first time on at which it is Ready: until then a new
/// life of the node begins with the snapshot again. Or the condition that it has not, and why.
fn restored(states: &[State], is_ready: bool, facts: &Facts<'_>) -> Option<PodCondition> {
    let not = |reason: &'static str, why: &str| {
        let why = why.chars().take(UNRESTORED_CHARS).collect();
        Some(condition(RESTORED_POD, Some((reason, Some(why))), facts))
    };
    if let Some(why) = facts.anew {
        return not(STARTED_ANEW, why);
    }
    let waits = |state: &State| match &state.life {
        Life::Waiting { reason, message } if *reason == RESTORE_FAILED => message.clone(),
        _ => None,
    };
    if let Some(why) = states.iter().find_map(waits) {
        return not(RESTORE_FAILED, &why);
    }
    let snapshot = facts.restored?;
    let before = facts.previous.iter().any(|one| one.type_ == RESTORED_POD && one.status == "True");
    let message = Some(snapshot.to_owned());
    (is_ready || before).then(|| PodCondition { message, ..condition(RESTORED_POD, None, facts) })
}

/// True, or false for a reason. The transition time is kept while the status is the same.
fn condition(kind: &str, problem: Option<(&str, Option<String>)>, facts: &Facts<'_>) -> PodCondition {
    let status = if problem.is_none() { "True" } else { "False" };
    let before = facts.previous.iter().find(|c| c.type_ == kind && c.status == status);
    let since = before.and_then(|c| c.last_transition_time.clone()).unwrap_or_else(|| whole(facts.now));
    let (reason, message) =
        problem.map_or((None, None), |(reason, message)| (Some(reason.to_owned()), message));
    PodCondition {
        type_: kind.into(),
        status: status.into(),
        reason,
        message,
        last_transition_time: Some(since),
        observed_generation: facts.pod.metadata.generation,
        ..PodCondition::default()
    }
}

/// Kubernetes' quality-of-service class of a Pod.
fn qos_class(pod: &Pod) -> &'static str {
    let containers =
        pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    let (mut any, mut guaranteed) = (false, true);
    for resources in containers.map(|c| c.resources.as_ref()) {
        let get = |limits: bool, kind: &str| {
            let list = resources.and_then(|r| if limits { r.limits.as_ref() } else { r.requests.as_ref() });
            list.and_then(|list| list.get(kind))
        };
        for kind in ["cpu", "memory"] {
            any |= get(true, kind).is_some() || get(false, kind).is_some();
            let limit = get(true, kind);
            guaranteed &= limit.is_some() && get(false, kind).is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, guaranteed) {
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
        (false, _) => "BestEffort",
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{RestartPolicy, plan};
    use hutch_api::state::restored_from;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn condition_of<'a>(status: &'a PodStatus, kind: &str) -> &'a PodCondition {
        status.conditions.as_ref().unwrap().iter().find(|c| c.type_ == kind).unwrap()
    }

    #[test]
    fn pod_shows_its_snapshot_from_the_first_time_on_at_which_it_is_ready() {
        let pod = Pod::default();
        let mut states = vec![State::new("c", Role::Main, "hutch/host")];
        states[0].has_readiness_probe = true;
        states[0].begin();
        states[0].run(at(2));
        let mut previous = Vec::new();
        for (ready, expected) in [(false, false), (true, true), (false, true)] {
            states[0].ready = ready;
            let now = plan(&states, RestartPolicy::Always, at(3));
            let facts = Facts { previous: &previous, restored: Some("uid"), ..Facts::of(&pod, at(1), at(3)) };
            let status = status(&states, &now, &facts);
            assert_eq!(
                restored_from(status.conditions.as_deref().unwrap_or_default()).is_some(),
                expected,
                "{ready}"
            );
            previous = status.conditions.unwrap();
        }
        let shown = previous.iter().find(|one| one.type_ == RESTORED_POD).unwrap();
        assert_eq!(shown.message.as_deref(), Some("uid"));
    }

    #[test]
    fn pod_shows_why_it_has_not_begun_with_its_snapshot() {
        let pod = Pod::default();
        let mut states = vec![State::new("c", Role::Main, "hutch/host")];
        states[0].wait(RESTORE_FAILED, "x".repeat(2000), at(9));
        let shown = |states: &[State], anew| {
            let facts = Facts { anew, ..Facts::of(&pod, at(1), at(3)) };
            let status = status(states, &plan(states, RestartPolicy::Always, at(3)), &facts);
            let found = status.conditions.unwrap().into_iter().find(|one| one.type_ == RESTORED_POD);
            found.map(|one| (one.status, one.reason.unwrap(), one.message.unwrap()))
        };
        let (of, is) = (|text: &str| text.to_owned(), |text: &str| Some(text.to_owned()));
        assert_eq!(
            shown(&states, None),
            Some((of("False"), of(RESTORE_FAILED), "x".repeat(UNRESTORED_CHARS)))
        );
        states[0].begin();
        assert_eq!(shown(&states, None), None);
        states[0].run(at(2));
        let anew = shown(&states, Some("why"));
        assert_eq!(
            anew.map(|(status, reason, why)| format!("{status} {reason} {why}")),
            is("False StartedAnew why")
        );
    }

    #[test]
    fn a_pod_is_ready_when_its_containers_are() {
        let pod = Pod::default();
        let facts =
            |now, previous| Facts { pod_ip: Some("10.89.0.1"), previous, ..Facts::of(&pod, at(1), at(now)) };
        let mut states = vec![State::new("c", Role::Main, "hutch/host")];
        states[0].has_readiness_probe = true;
        states[0].begin();
        states[0].run(at(2));
        let now = |states: &[State]| plan(states, RestartPolicy::Always, at(3));
        let first = status(&states, &now(&states), &facts(3, &[]));
        assert_eq!(first.phase.as_deref(), Some("Running"));
        assert_eq!(condition_of(&first, "Ready").status, "False");
        assert_eq!(
            condition_of(&first, "Ready").message.as_deref(),
            Some("containers with unready status: [c]")
        );
        states[0].ready = true;
        let previous = first.conditions.clone().unwrap();
        let second = status(&states, &now(&states), &facts(9, &previous));
        assert_eq!(condition_of(&second, "Ready").status, "True");
        assert_eq!(condition_of(&second, "Ready").last_transition_time, Some(Time(at(9))));
        assert_eq!(
            condition_of(&second, "Initialized").last_transition_time,
            Some(Time(at(3))),
            "it did not change"
        );
        assert_eq!(second.pod_ip.as_deref(), Some("10.89.0.1"));
        assert_eq!(second.qos_class.as_deref(), Some("BestEffort"));
    }

    #[test]
    fn unschedulable_pod_is_pending_with_its_message() {
        let mut pod = Pod::default();
        pod.metadata.generation = Some(1);
        let facts = Facts::of(&pod, at(1), at(5));
        let got = unscheduled("0/1 nodes are available: 1 Insufficient cpu.", &facts);
        assert_eq!((got.phase.as_deref(), got.start_time.as_ref()), (Some("Pending"), None));
        assert_eq!(got.observed_generation, Some(1));
        let scheduled = condition_of(&got, "PodScheduled");
        assert_eq!(
            (scheduled.status.as_str(), scheduled.reason.as_deref(), scheduled.message.as_deref()),
            ("False", Some("Unschedulable"), Some("0/1 nodes are available: 1 Insufficient cpu."))
        );
    }

    #[test]
    fn a_crash_loop_shows_the_wait_and_the_last_end() {
        let pod = Pod::default();
        let mut states = vec![State::new("c", Role::Main, "hutch/host")];
        for _ in 0..2 {
            states[0].begin();
            states[0].run(at(2));
            let ended = Ended {
                code: 3,
                signal: None,
                reason: "Error".into(),
                message: None,
                started: Some(at(2)),
                at: at(4),
            };
            states[0].end(ended);
        }
        let facts = Facts::of(&pod, at(1), at(5));
        let got = status(&states, &plan(&states, RestartPolicy::OnFailure, at(5)), &facts);
        let of_last = |got: &PodStatus| {
            let container = &got.container_statuses.as_ref().unwrap()[0];
            container
                .last_state
                .as_ref()
                .and_then(|s| s.terminated.as_ref()?.message.clone())
                .unwrap_or_default()
        };
        let Life::Ended(ended) = &mut states[0].life else { panic!("it has ended") };
        ended.message = Some("x".repeat(5000));
        states.extend((0..5).map(|_| State::new("d", Role::Ephemeral, "hutch/host")));
        let many = status(&states, &plan(&states, RestartPolicy::OnFailure, at(5)), &facts);
        assert_eq!(of_last(&many).len(), 2048, "a share of what the Pod may have");
        assert_eq!(many.ephemeral_container_statuses.map(|list| list.len()), Some(5));
        let container = &got.container_statuses.unwrap()[0];
        let waiting = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
        assert_eq!(container.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 3);
        assert_eq!(container.restart_count, 1);
        assert_eq!(got.phase.as_deref(), Some("Running"));
    }
}
