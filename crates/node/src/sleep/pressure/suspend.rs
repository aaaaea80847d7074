//! Suspends a Sandbox in gVisor with its memory, by the same write as the controller does when its idle time has passed.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::sleep::{IdleTimes, Phase, idle_since, suspension};
use hutch_api::state::KEEPS_MEMORY;
use hutch_api::syntax::is_path_segment;
use hutch_api::{OperatingMode, Sandbox, annotation, owner};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::decision::Candidate;
use super::{Outcome, announce, works};
use crate::live::Live;
use crate::shared::Shared;

/// Maximum time until the Pod has ended whose memory is written to disk. After it, the next Pod has its turn.
const LIMIT: Duration = Duration::from_secs(120);

/// Suspends the Sandbox of a Pod, and waits until its Pod has ended.
pub(super) async fn suspend(node: &Arc<Shared>, live: &Arc<Live>, candidate: &Candidate) -> Outcome {
    let pod = live.pod();
    let Some(sandbox) = owner::sandbox(pod.as_ref()).filter(|owner| is_path_segment(&owner.name)) else {
        return Outcome::Unfit;
    };
    let api: Api<Sandbox> = Api::namespaced(node.client.clone(), &live.id.namespace);
    let read = async || -> Option<Sandbox> {
        let found = api.get_opt(&sandbox.name).await.ok()??;
        may_suspend(&found, &sandbox.uid, candidate.least_idle(), Timestamp::now()).then_some(found)
    };
    if read().await.is_none() {
        return Outcome::Unfit;
    }
    if works(live).await {
        return Outcome::InUse;
    }
    // From here on each caller writes a report before it enters, so that either its write or the suspend fails.
    let _guard = live.gate.guard();
    if live.gate.idle_for().is_none_or(|idle| idle < candidate.least_idle()) {
        return Outcome::InUse;
    }
    let Some(found) = read().await else { return Outcome::InUse };
    let patch = Patch::Merge(patch(&found));
    match api.patch(&sandbox.name, &PatchParams::default(), &patch).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => return Outcome::InUse,
        Err(error) => {
            tracing::warn!(sandbox = sandbox.name, %error, "a Sandbox was not suspended for want of memory");
            return Outcome::Unfit;
        }
    }
    announce(node, live, candidate, "it is suspended with its memory");
    let _ = tokio::time::timeout(LIMIT, ended(live)).await;
    Outcome::Down
}

/// Returns the write that suspends a Sandbox as it was read.
fn patch(sandbox: &Sandbox) -> serde_json::Value {
    let mut patch = suspension(sandbox);
    patch["metadata"]["uid"] = json!(sandbox.metadata.uid);
    patch
}

/// Returns true if the Sandbox is the one with this uid, is configured to be suspended with its memory when it is idle, and
/// has been idle for so long.
fn may_suspend(sandbox: &Sandbox, uid: &str, idle: Duration, now: Timestamp) -> bool {
    let template = sandbox.spec.pod_template.metadata.annotations.as_ref();
    let sets = std::iter::once(sandbox.annotations()).chain(template);
    let is_configured = sandbox.setting(annotation::SUSPEND_KEEPS) == Some(KEEPS_MEMORY)
        && IdleTimes::read(sets).is_ok_and(|times| times.suspend_after.is_some());
    let Some(since) = idle_since(sandbox) else { return false };
    let idle = SignedDuration::try_from(idle).unwrap_or(SignedDuration::MAX);
    is_configured
        && sandbox.metadata.uid.as_deref() == Some(uid)
        && sandbox.metadata.deletion_timestamp.is_none()
        && sandbox.spec.operating_mode != Some(OperatingMode::Suspended)
        && owner::extension(sandbox, "SandboxWarmPool").is_none()
        // The controller does not suspend a Sandbox with an invalid time either.
        && sandbox.annotations().get(annotation::WAKE_AT).is_none_or(|time| time.parse::<Timestamp>().is_ok())
        && now.duration_since(since) >= idle
}

/// Resolves when the Pod has ended, or runs on because its memory could not be written.
async fn ended(live: &Live) {
    let ends =
        |phase: &Phase| matches!(phase, Phase::Saving | Phase::Saved | Phase::Suspending | Phase::Suspended);
    let mut phases = live.gate.phases();
    // The sender is in `live`.
    let _ = phases.wait_for(ends).await;
    let _ = phases.wait_for(|phase| *phase == Phase::Suspended || !ends(phase)).await;
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn sandbox(change: Value) -> Sandbox {
        let mut object = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "s", "uid": "u", "resourceVersion": "7", "generation": 3, "annotations": {
                annotation::SUSPEND_AFTER: "1h", annotation::SUSPEND_KEEPS: "memory",
                annotation::LAST_ACTIVITY: "2026-01-01T00:00:30Z",
            }},
            "spec": {"podTemplate": {"spec": {"containers": []}}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3}]},
        });
        merge(&mut object, change);
        serde_json::from_value(object).unwrap()
    }

    fn merge(to: &mut Value, change: Value) {
        match (to, change) {
            (Value::Object(to), Value::Object(change)) => {
                for (key, value) in change {
                    match value {
                        Value::Null => drop(to.remove(&key)),
                        value => merge(to.entry(key).or_insert(Value::Null), value),
                    }
                }
            }
            (to, change) => *to = change,
        }
    }

    #[test]
    fn only_idle_sandbox_that_keeps_its_memory_is_suspended() {
        let may = |change: Value, idle: u64| {
            may_suspend(&sandbox(change), "u", Duration::from_secs(idle), NOW.parse().unwrap())
        };
        let own = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
        assert!(may(json!({}), 30));
        assert!(!may(json!({}), 31), "it was used since");
        let of_template = json!({
            "metadata": {"annotations": {annotation::SUSPEND_KEEPS: null, annotation::SUSPEND_AFTER: null}},
            "spec": {"podTemplate": {"metadata": {"annotations": {
                annotation::SUSPEND_KEEPS: "memory", annotation::SUSPEND_AFTER: "1h"}}}},
        });
        assert!(may(of_template, 30));
        let pool = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
            "name": "w", "uid": "w", "controller": true});
        for refused in [
            own(annotation::SUSPEND_KEEPS, json!("files")),
            own(annotation::SUSPEND_KEEPS, json!(null)),
            own(annotation::SUSPEND_AFTER, json!(null)),
            own(annotation::SUSPEND_AFTER, json!("")),
            own(annotation::SUSPEND_AFTER, json!("soon")),
            own(annotation::LAST_ACTIVITY, json!(null)),
            own(annotation::WAKE_AT, json!("tomorrow")),
            json!({"spec": {"operatingMode": "Suspended"}}),
            json!({"metadata": {"uid": "another"}}),
            json!({"metadata": {"deletionTimestamp": NOW}}),
            json!({"metadata": {"ownerReferences": [pool]}}),
            json!({"status": {"conditions": []}}),
            // Running again, with the conditions of before.
            json!({"metadata": {"generation": 4}}),
        ] {
            assert!(!may(refused.clone(), 0), "{refused}");
        }
    }

    #[test]
    fn suspend_names_the_version_that_was_read() {
        let patch = patch(&sandbox(json!({})));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["metadata"]["annotations"][annotation::ASLEEP_GENERATION], "4");
        assert!(patch["metadata"]["annotations"][annotation::FROZEN_SINCE].is_null());
        assert_eq!(patch["spec"]["operatingMode"], "Suspended");
    }
}
