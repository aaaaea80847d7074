//! Reasons for which a Pod does not become ready, and those that remain without a change by a client.

use hutch_api::state::{NOT_BEGUN, NOT_COMPLETE, RESTORE_FAILED, reason};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::wait::Cause;

/// Reasons of a container that is about to start.
const STARTING: [&str; 3] = ["ContainerCreating", "PodInitializing", "Pulling"];
/// Reasons of a container that does not start with its present spec.
const FINAL: [&str; 8] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "CreatePodSandboxError",
];
/// Maximum events that are read.
const EVENTS: u32 = 50;

/// Returns what keeps a Pod from becoming ready, as far as its status says.
pub(crate) fn of(pod: &Pod) -> Option<Cause> {
    let status = pod.status.as_ref()?;
    let unscheduled =
        status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    if let Some(unscheduled) = unscheduled {
        let text = format!("Pod {}: {}", pod.name_any(), unscheduled.message.as_deref()?);
        // A Pod without a node may wait for a new node. One that has a node, as of `hutch up`, gets no other.
        let has_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let is_final = has_node && unscheduled.reason.as_deref() == Some("Unschedulable");
        return Some(Cause { text, is_final });
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    containers.filter(|container| !container.ready).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| !STARTING.contains(reason))?;
        let text = waiting.message.as_deref().unwrap_or_default();
        let text = format!("container {}: {reason}: {text}", container.name);
        let is_final = FINAL.contains(&reason) || (reason == RESTORE_FAILED && !is_underway(&text));
        Some(Cause { text, is_final })
    })
}

/// Returns true for the message about a snapshot that may become complete.
fn is_underway(message: &str) -> bool {
    let has = |state: &str| message.contains(&format!("{NOT_COMPLETE} ({state}"));
    has(NOT_BEGUN) || [reason::PENDING, reason::IN_PROGRESS].iter().any(|open| has(&format!("{open}: ")))
}

/// Returns true while no container of a Pod has started.
pub(crate) fn is_created(pod: &Pod) -> bool {
    pod.status.as_ref().is_none_or(|status| status.phase.as_deref().is_none_or(|phase| phase == "Pending"))
}

/// Parts of refusals that pass by themselves: the ServiceAccount of a new namespace is made a moment later, and so is the
/// status of a new quota.
const PASSING: [&str; 2] = ["error looking up service account", "status unknown for quota"];
/// Parts of the messages of an API server that refuses an object: a quota, a RuntimeClass, a policy or a webhook of admission,
/// an invalid spec.
const REFUSALS: [&str; 3] = [" is forbidden: ", " is invalid: ", " denied the request"];

/// Returns true for the message of a controller whose Pod or Sandbox the API server refuses.
pub(crate) fn is_refusal(message: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| message.contains(part));
    has(&REFUSALS) && !has(&PASSING)
}

/// Returns the volume that could not be mounted, by the events of a Pod.
pub(crate) async fn failed_mount(events: &Api<Event>, pod: &Pod) -> Option<Cause> {
    let uid = pod.metadata.uid.as_deref()?;
    let fields = format!("involvedObject.uid={uid}");
    let found = events.list(&ListParams::default().fields(&fields).limit(EVENTS)).await.ok()?;
    cause_of(&found.items)
}

/// Returns the cause if the newest of some events is `FailedMount`.
fn cause_of(events: &[Event]) -> Option<Cause> {
    let failed = |event: &Event| event.reason.as_deref() == Some("FailedMount");
    // Of the same second, another event is the newer one: the mount has succeeded.
    let newest = events.iter().max_by_key(|event| (event.last_timestamp.clone(), !failed(event)))?;
    let text = format!("FailedMount: {}", newest.message.as_deref().filter(|_| failed(newest))?);
    Some(Cause { text, is_final: false })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cause(node: Option<&str>, status: &Value) -> Option<(String, bool)> {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": node, "containers": []}, "status": status});
        of(&serde_json::from_value(pod).unwrap()).map(|cause| (cause.text, cause.is_final))
    }

    #[test]
    fn pod_says_why_it_is_not_ready() {
        let waiting = |reason: &str| {
            let state = json!({"waiting": {"reason": reason, "message": "no image x"}});
            let status = json!({"containerStatuses": [{"name": "main", "ready": false, "state": state, "image": "",
                "imageID": "", "restartCount": 0}]});
            cause(None, &status)
        };
        for reason in FINAL {
            assert_eq!(waiting(reason), Some((format!("container main: {reason}: no image x"), true)));
        }
        let crashed = waiting("CrashLoopBackOff");
        assert_eq!(crashed, Some(("container main: CrashLoopBackOff: no image x".to_owned(), false)));
        assert_eq!(waiting("ContainerCreating"), None);
        assert!(waiting(RESTORE_FAILED).is_some_and(|(_, is_final)| is_final));
        for (state, expected) in [("InProgress: x", true), ("not begun", true), ("Failed: x", false)] {
            assert_eq!(is_underway(&format!("snapshot \"s\": it is not complete ({state})")), expected);
        }
        assert_eq!(cause(None, &json!({})), None);
    }

    #[test]
    fn unschedulable_is_final_on_a_given_node() {
        let condition =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"});
        let status = json!({"conditions": [condition]});
        assert_eq!(cause(Some("hutch"), &status), Some(("Pod p: full".to_owned(), true)));
        assert_eq!(cause(None, &status), Some(("Pod p: full".to_owned(), false)), "a node may be added");
    }

    #[test]
    fn failed_mount_is_a_cause_until_a_container_follows() {
        let event = |reason: &str, second: u8| -> Event {
            let event = json!({"metadata": {}, "involvedObject": {}, "reason": reason, "message": format!("m{second}"),
                "lastTimestamp": format!("2026-01-01T00:00:0{second}Z")});
            serde_json::from_value(event).unwrap()
        };
        let text = |events: &[Event]| cause_of(events).map(|cause| cause.text);
        assert_eq!(text(&[]), None);
        let failed = [event("FailedMount", 2), event("Scheduled", 1), event("FailedMount", 1)];
        assert_eq!(text(&failed), Some("FailedMount: m2".to_owned()));
        assert_eq!(text(&[event("Pulling", 2), event("FailedMount", 2)]), None);
    }
}
