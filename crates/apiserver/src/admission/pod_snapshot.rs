//! GKE's API of Pod snapshots: a view of SandboxSnapshots, whose rights hold here too. A right on the view gives none on what it
//! shows.

use hutch_api::annotation::ORIGIN_POD;
use hutch_api::{pod_snapshot, state};
use serde_json::{Value, json};

use super::snapshot::allow;
use crate::access::Action;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::meta;

/// Plurals of the kinds.
const VIEWS: &str = "podsnapshots";
const TRIGGERS: &str = "podsnapshotmanualtriggers";

/// Checks a new or changed object of a user.
///
/// # Errors
/// It is a PodSnapshot, a trigger whose user may not create a SandboxSnapshot, or a SandboxSnapshot that would count as that of a
/// trigger.
pub(crate) fn check(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    if !call.external {
        return Ok(());
    }
    let refuse = |field: &str, why: &str| {
        let causes = vec![Cause::forbidden(field, why)];
        Err(Failure::forbidden(call.kind(), meta::text(object, "name"), &format!("{field}: {why}"), causes))
    };
    if call.resource.is(pod_snapshot::GROUP, VIEWS) {
        return refuse(
            "kind",
            "a PodSnapshot is a view: a PodSnapshotManualTrigger makes it, and no user changes it",
        );
    }
    if call.resource.is(pod_snapshot::GROUP, TRIGGERS) && before.is_none() {
        let create = Action::on("create", state::GROUP, state::SANDBOX_SNAPSHOTS, "");
        return allow(call, object, "spec.targetPod", create, meta::text(object, "name"));
    }
    let origin = |object: &Value| object["metadata"]["annotations"].get(ORIGIN_POD).cloned();
    if call.resource.is(state::GROUP, state::SANDBOX_SNAPSHOTS) && before.and_then(origin) != origin(object) {
        return refuse(&format!("metadata.annotations[{ORIGIN_POD}]"), "is set by the server");
    }
    Ok(())
}

/// Checks the deletion of an object, with which a SandboxSnapshot goes.
///
/// # Errors
/// The user may not delete that.
pub(crate) fn check_delete(call: &Call, name: &str) -> Result<(), Failure> {
    if !call.external || !call.resource.is(pod_snapshot::GROUP, VIEWS) {
        return Ok(());
    }
    let object = json!({"metadata": {"name": name}});
    allow(
        call,
        &object,
        "metadata.name",
        Action::on("delete", state::GROUP, state::SANDBOX_SNAPSHOTS, name),
        name,
    )
}
