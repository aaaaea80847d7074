//! Builds the status of a Sandbox. Pure.

use hutch_api::condition::{
    FALSE, FINISHED, ISOLATION, ISOLATION_OF_POD, POD_SCHEDULED, POLICY_ENFORCED, POLICY_ENFORCED_OF_POD,
    READY, SUSPENDED, TRUE, UNKNOWN, message, reason,
};
use hutch_api::sleep::{
    FROZEN, FROZEN_MESSAGE, FROZEN_OF_POD, FROZEN_REASON, INVALID, INVALID_REASON, PAGED_OUT_MESSAGE,
    PAGED_OUT_REASON,
};
use hutch_api::state::{RESTORE_FAILED, RESTORED, STARTED_ANEW, started_anew, waits};
use hutch_api::{SandboxStatus, label, name_hash};
use jiff::Timestamp;
use kube::ResourceExt;

use super::memory::Memory;
use super::plan::{Part, Stage};
use super::{Located, Observed, memory, sleep};
use crate::condition::{self, Verdict};
use crate::view::PodView;

/// Failures of this pass by part, in the order of the parts.
pub(super) type Problems = [(Part, String)];

/// Returns the whole status after this pass.
pub(super) fn status(
    observed: &Observed,
    stage: Stage,
    problems: &Problems,
    cluster_domain: &str,
    now: Timestamp,
) -> SandboxStatus {
    let mut status = observed.sandbox.status.clone().unwrap_or_default();
    let now = condition::whole_seconds(now);
    let generation = observed.sandbox.metadata.generation;
    let mut conditions = status.conditions.take().unwrap_or_default();
    match stage {
        Stage::Live => {
            live_conditions(observed, problems, &mut conditions, now);
            live_fields(observed, problems, cluster_domain, &mut status);
        }
        Stage::Expiring => expire(&mut conditions, generation, now),
        Stage::Retained | Stage::Deleted => {
            expire(&mut conditions, generation, now);
            status = SandboxStatus::default();
        }
    }
    status.conditions = Some(conditions);
    status
}

/// Returns whether the new status is only an intermediate step to Ready, which the next step replaces. Changes that
/// clients act on are not: readiness, the end, an address, a suspension.
pub(super) fn is_step(current: &SandboxStatus, wanted: &SandboxStatus) -> bool {
    let says = |status: &SandboxStatus, kind: &str| {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        condition::find(conditions, kind).map(|found| (found.status.clone(), found.reason.clone()))
    };
    let starting = |found: &(String, String)| found.1 == reason::DEPENDENCIES_NOT_READY;
    let same = |kind: &str| says(current, kind).is_none_or(|before| Some(before) == says(wanted, kind));
    says(wanted, READY).is_some_and(|ready| starting(&ready))
        && says(current, READY).is_none_or(|ready| starting(&ready))
        && says(wanted, FINISHED).is_none()
        && same(FINISHED)
        && same(SUSPENDED)
        && current.pod_ips == wanted.pod_ips
        && (current.service.is_none() || current.service == wanted.service)
}

type Conditions = Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>;

fn expire(conditions: &mut Conditions, generation: Option<i64>, now: Timestamp) {
    for kind in [POD_SCHEDULED, FROZEN, INVALID, POLICY_ENFORCED, ISOLATION, RESTORED] {
        condition::remove(conditions, kind);
    }
    let verdict = Verdict::new(FALSE, reason::SANDBOX_EXPIRED, message::EXPIRED);
    condition::set(conditions, READY, verdict, generation, now);
}

fn live_conditions(observed: &Observed, problems: &Problems, conditions: &mut Conditions, now: Timestamp) {
    let generation = observed.sandbox.metadata.generation;
    let located = observed.locate();
    let pod_unknown = problems.iter().any(|(part, _)| *part == Part::Pod);
    let owned = match &located {
        Located::Owned(pod) => Some(pod.as_ref()),
        _ => None,
    };
    let mut put = |kind: &str, verdict: Option<Verdict>| match verdict {
        Some(verdict) => condition::set(conditions, kind, verdict, generation, now),
        None => condition::remove(conditions, kind),
    };
    put(SUSPENDED, Some(suspended(observed, &located, pod_unknown)));
    put(FINISHED, owned.and_then(finished).map(|(reason, message)| Verdict::new(TRUE, reason, message)));
    put(POD_SCHEDULED, scheduled(owned, pod_unknown));
    put(READY, Some(ready(observed, &located, owned, problems)));
    put(FROZEN, owned.and_then(frozen));
    put(POLICY_ENFORCED, owned.and_then(|pod| of_node(pod, POLICY_ENFORCED_OF_POD)));
    put(ISOLATION, owned.and_then(|pod| of_node(pod, ISOLATION_OF_POD)));
    let anew = owned.and_then(|pod| started_anew(pod.conditions()));
    put(RESTORED, anew.map(|why| Verdict::new(FALSE, STARTED_ANEW, why)));
    let invalid = sleep::invalid(&observed.sandbox);
    put(INVALID, invalid.map(|text| Verdict::new(TRUE, INVALID_REASON, text)));
}

fn ready(observed: &Observed, located: &Located, owned: Option<&PodView>, problems: &Problems) -> Verdict {
    if let Located::Several(count) = located {
        return Verdict::new(FALSE, reason::MULTIPLE_PODS, message::multiple_pods(*count));
    }
    if !problems.is_empty() {
        let text = problems.iter().map(|(_, problem)| problem.as_str()).collect::<Vec<_>>().join("\n");
        return Verdict::new(FALSE, reason::RECONCILER_ERROR, format!("{}{text}", message::ERROR_SEEN));
    }
    if observed.is_suspended() {
        // Also while a foreign Pod has the name of the Sandbox's.
        let gone = matches!(located, Located::Missing) && memory::of_suspended(observed) != Memory::Writing;
        let text = if gone { message::SUSPENDED } else { message::SUSPENDING };
        return Verdict::new(FALSE, reason::SANDBOX_SUSPENDED, text);
    }
    if let Some((reason, message)) = owned.and_then(finished) {
        return Verdict::new(FALSE, reason, message);
    }
    // In the words of its runtime.
    if let Some(why) = owned.and_then(|pod| waits(pod.conditions())) {
        return Verdict::new(FALSE, RESTORE_FAILED, why);
    }
    let has_service = observed.owned_service().is_some();
    let service_required = observed.sandbox.spec.service.unwrap_or(has_service);
    let (pod_is_ready, mut text) = match memory::is_saving(observed) {
        true => (false, "The memory of its processes is written to the disk".to_owned()),
        false => pod_part(owned),
    };
    if service_required {
        text.push_str(if has_service { message::SERVICE_EXISTS } else { message::SERVICE_DOES_NOT_EXIST });
    }
    if pod_is_ready && (has_service || !service_required) {
        Verdict::new(TRUE, reason::DEPENDENCIES_READY, text)
    } else {
        Verdict::new(FALSE, reason::DEPENDENCIES_NOT_READY, text)
    }
}

fn pod_part(pod: Option<&PodView>) -> (bool, String) {
    let Some(pod) = pod else { return (false, message::POD_DOES_NOT_EXIST.into()) };
    let phase = phase(pod);
    if phase != "Running" {
        return (false, format!("{}{phase}", message::POD_EXISTS_WITH_PHASE));
    }
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    if !conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == TRUE) {
        return (false, message::POD_RUNNING_NOT_READY.into());
    }
    match addresses(pod) {
        Some(_) => (true, message::POD_READY.into()),
        None => (false, message::POD_READY_NO_IPS.into()),
    }
}

fn suspended(observed: &Observed, located: &Located, pod_unknown: bool) -> Verdict {
    if !observed.is_suspended() {
        return Verdict::new(FALSE, reason::NOT_SUSPENDED, message::NOT_SUSPENDED);
    }
    match located {
        _ if pod_unknown => Verdict::new(UNKNOWN, reason::POD_STATE_UNKNOWN, message::POD_STATE_UNKNOWN),
        Located::Several(_) => Verdict::new(UNKNOWN, reason::POD_STATE_UNKNOWN, message::POD_STATE_UNKNOWN),
        Located::Missing => match memory::of_suspended(observed) {
            Memory::AsWanted => Verdict::new(TRUE, reason::POD_TERMINATED, message::POD_TERMINATED),
            Memory::Missing => Verdict::new(TRUE, reason::MEMORY_NOT_KEPT, memory::NOT_KEPT_MESSAGE),
            Memory::Writing => Verdict::new(FALSE, reason::POD_TERMINATING, message::POD_TERMINATING),
        },
        Located::Owned(_) => Verdict::new(FALSE, reason::POD_TERMINATING, message::POD_TERMINATING),
        Located::Foreign(_) => Verdict::new(FALSE, reason::POD_NOT_OWNED, message::POD_NOT_OWNED),
    }
}

fn scheduled(owned: Option<&PodView>, pod_unknown: bool) -> Option<Verdict> {
    let Some(pod) = owned else {
        let verdict = Verdict::new(UNKNOWN, reason::POD_SCHEDULING_UNKNOWN, message::POD_SCHEDULING_UNKNOWN);
        return pod_unknown.then_some(verdict);
    };
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let Some(told) = conditions.find(|condition| condition.type_ == POD_SCHEDULED) else {
        return Some(Verdict::new(UNKNOWN, reason::POD_SCHEDULING_UNKNOWN, message::POD_NOT_REPORTED));
    };
    let fallback = if told.status == TRUE { reason::POD_SCHEDULED } else { reason::POD_SCHEDULING_UNKNOWN };
    let reason = told.reason.as_deref().filter(|reason| condition::is_reason(reason)).unwrap_or(fallback);
    Some(Verdict::new(&told.status, reason, told.message.clone().unwrap_or_default()))
}

/// Returns the condition of a frozen Pod, which is still Ready.
fn frozen(pod: &PodView) -> Option<Verdict> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let told = conditions.find(|condition| condition.type_ == FROZEN_OF_POD && condition.status == TRUE);
    told.map(|told| match told.reason.as_deref() {
        Some(PAGED_OUT_REASON) => Verdict::new(TRUE, PAGED_OUT_REASON, PAGED_OUT_MESSAGE),
        _ => Verdict::new(TRUE, FROZEN_REASON, FROZEN_MESSAGE),
    })
}

/// Returns a condition that the node writes to the Pod.
fn of_node(pod: &PodView, kind: &str) -> Option<Verdict> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let told = conditions.find(|condition| condition.type_ == kind)?;
    let reason = told.reason.as_deref().filter(|reason| condition::is_reason(reason))?;
    Some(Verdict::new(&told.status, reason, told.message.clone().unwrap_or_default()))
}

fn finished(pod: &PodView) -> Option<(&'static str, &'static str)> {
    match phase(pod) {
        "Succeeded" => Some((reason::POD_SUCCEEDED, message::POD_SUCCEEDED)),
        "Failed" => Some((reason::POD_FAILED, message::POD_FAILED)),
        _ => None,
    }
}

fn phase(pod: &PodView) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn addresses(pod: &PodView) -> Option<Vec<String>> {
    let addresses = pod.status.as_ref()?.pod_ips.as_ref()?;
    let addresses: Vec<_> =
        addresses.iter().map(|address| address.ip.clone()).filter(|ip| !ip.is_empty()).collect();
    (!addresses.is_empty()).then_some(addresses)
}

fn live_fields(observed: &Observed, problems: &Problems, cluster_domain: &str, status: &mut SandboxStatus) {
    let sandbox = observed.sandbox.as_ref();
    let located = observed.locate();
    // Once set, the selector stays. A Pod that may not be used does not set it.
    let refused = problems.iter().any(|(part, _)| *part == Part::Pod);
    if matches!(located, Located::Owned(_) | Located::Foreign(_)) && !refused {
        let hash = name_hash(&sandbox.name_any());
        status.selector = Some(format!("{}={hash}", label::SANDBOX_NAME_HASH));
    }
    (status.pod_ips, status.node_name) = match &located {
        Located::Owned(pod) => (addresses(pod), pod.spec.as_ref().and_then(|spec| spec.node_name.clone())),
        _ => (None, None),
    };
    // With several Pods, the Service and its fields in the status do not change.
    if matches!(located, Located::Several(_)) || problems.iter().any(|(part, _)| *part == Part::Service) {
        return;
    }
    let service = observed.owned_service().filter(|_| sandbox.spec.service != Some(false));
    let namespace = sandbox.namespace().unwrap_or_default();
    status.service = service.map(|service| service.name_any());
    status.service_fqdn =
        status.service.as_ref().map(|name| format!("{name}.{namespace}.svc.{cluster_domain}"));
}
