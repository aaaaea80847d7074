//! Objects that a Sandbox controls: its Pod has its policies, credentials and creator, and its actions in the audit log.

use hutch_api::GROUP;
use serde_json::Value;

use crate::access::Action;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::meta;

/// Plural of Sandboxes, and the collection in which they are stored.
const SANDBOXES: &str = "sandboxes";
const COLLECTION: &str = "sandboxes.agents.x-k8s.io";

/// Returns the reference to the Sandbox that controls an object, and its place in the list.
pub(crate) fn sandbox(object: &Value) -> Option<(usize, &Value)> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().enumerate().find(|(_, owner)| {
        let group = owner["apiVersion"].as_str().and_then(|version| version.split_once('/'));
        owner["controller"] == true
            && owner["kind"] == "Sandbox"
            && group.is_some_and(|(group, _)| group == GROUP)
    })
}

/// Refuses a new or changed object that a Sandbox would control which the caller may not change.
pub(crate) fn check(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    let Some((at, owner)) = sandbox(object) else { return Ok(()) };
    let is_same = |before: &Value| {
        sandbox(before).is_some_and(|(_, old)| old["name"] == owner["name"] && old["uid"] == owner["uid"])
    };
    if !call.external || before.is_some_and(is_same) {
        return Ok(());
    }
    let (name, namespace) = (owner["name"].as_str().unwrap_or_default(), call.namespace.as_deref());
    let update = Action::on("update", GROUP, SANDBOXES, name).inside(namespace.unwrap_or_default());
    let field = format!("metadata.ownerReferences[{at}]");
    if !call.core.access.decide(&call.identity, &update).allowed {
        let user = &call.identity.name;
        let why = format!(
            "user {user:?} cannot update {SANDBOXES}.{GROUP} {name:?}, which {field} makes the controller of this object"
        );
        let causes = vec![Cause::forbidden(field, "needs the right to update that Sandbox")];
        return Err(Failure::forbidden(call.kind(), meta::text(object, "name"), &why, causes));
    }
    let found = call.store.latest(COLLECTION, &call.key(name));
    if found.is_none_or(|sandbox| meta::text(&sandbox.value.value(), "uid") != owner["uid"]) {
        let why = "must be the uid of the Sandbox of this name in the namespace of the object";
        let cause = Cause::invalid(format!("{field}.uid"), &owner["uid"], why);
        return Err(Failure::invalid(call.kind(), meta::text(object, "name"), vec![cause]));
    }
    Ok(())
}
