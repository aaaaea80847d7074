//! Objects that a Sandbox controls: its Pod has its policies, credentials and creator, and its actions in the audit log.

use std::collections::BTreeMap;

use hutch_api::{EXTENSIONS_GROUP, GROUP, label};
use serde_json::Value;

use crate::access::Action;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::POLICIES;
use crate::meta;

/// Plural of Sandboxes, and the collection in which they are stored.
const SANDBOXES: &str = "sandboxes";
const COLLECTION: &str = "sandboxes.agents.x-k8s.io";
/// Labels by which a Sandbox adopts an object without a controller.
const ADOPTING: [&str; 2] = [label::ADOPTABLE, label::SANDBOX_NAME_HASH];

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

/// Refuses a new or changed object that a Sandbox would control, or could adopt, which the caller may not change; and a Pod that
/// would leave its Sandbox, and so the policies for it.
pub(crate) fn check(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    if !call.external {
        return Ok(());
    }
    check_adoptable(call, before, object)?;
    let orphans = |object: &Value| meta::finalizers(object).contains(&"orphan");
    if orphans(object) && !before.is_some_and(orphans) {
        check_orphans(call, "metadata.finalizers")?;
    }
    let owner = |object| {
        let (_, owner) = sandbox(object)?;
        Some((owner["name"].clone(), owner["uid"].clone(), owner["apiVersion"].clone()))
    };
    let (old, is_pod) = (before.and_then(owner), call.resource.is("", "pods"));
    if old == owner(object) {
        let runs_other = before.is_some_and(|before| runs_other(before, object));
        return if is_pod && runs_other { check_controller(call, object) } else { Ok(()) };
    }
    if let Some((name, ..)) = old.filter(|_| is_pod && !administers(call)) {
        let field = "metadata.ownerReferences";
        let why = format!(
            "{field} must keep Sandbox {name}: the Pod would leave the policies for it; delete the Pod instead"
        );
        let causes = vec![Cause::forbidden(field, "must keep the Sandbox")];
        return Err(Failure::forbidden(call.kind(), meta::text(object, "name"), &why, causes));
    }
    check_controller(call, object)
}

/// Returns true if a changed Pod runs something else, or differently: by its spec, or by an annotation that the node reads. Who
/// adds an ephemeral container has a right of its own, as who runs a command in it.
fn runs_other(before: &Value, object: &Value) -> bool {
    // A scheduler binds it.
    let is_bound = before["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let spec = |pod: &Value| {
        let mut fields = pod["spec"].as_object().cloned().unwrap_or_default();
        fields.remove("ephemeralContainers");
        if !is_bound {
            fields.remove("nodeName");
        }
        fields
    };
    let annotations = |pod: &Value| -> Vec<(String, Value)> {
        let all = pod["metadata"]["annotations"].as_object().into_iter().flatten();
        let read = all.filter(|(key, _)| key.starts_with("hutch.dev/"));
        read.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    spec(before) != spec(object) || annotations(before) != annotations(object)
}

/// Returns true if the caller may update ClusterSandboxPolicies, and so decides anyway what each Sandbox reaches.
pub(crate) fn administers(call: &Call) -> bool {
    let update = Action::on("update", POLICIES, "clustersandboxpolicies", "");
    call.core.access.decide(&call.identity, &update).allowed
}

/// Returns true if the caller may update a Sandbox of the namespace, and so what runs in it. Without a name, all of them.
pub(super) fn may_update(call: &Call, sandbox: &str) -> bool {
    let update = Action::on("update", GROUP, SANDBOXES, sandbox);
    let update = update.inside(call.namespace.as_deref().unwrap_or_default());
    call.core.access.decide(&call.identity, &update).allowed
}

/// Refuses that a Sandbox is deleted without its Pod, which would run on without the policies for the Sandbox. The field says
/// that it is to be.
pub(crate) fn check_orphans(call: &Call, field: &str) -> Result<(), Failure> {
    if !call.external || !call.resource.is(GROUP, SANDBOXES) || administers(call) {
        return Ok(());
    }
    let why =
        format!("{field}: a Sandbox is deleted with its Pod, which would leave the policies for the Sandbox");
    let causes = vec![Cause::forbidden(field, "must not orphan the Pod")];
    Err(Failure::forbidden(call.kind(), &call.name, &why, causes))
}

/// Collects the labels of an object, and of those that are made from it, by which a Sandbox adopts something.
fn adopting<'a>(value: &'a Value, path: &str, found: &mut BTreeMap<String, &'a Value>) {
    match value {
        Value::Object(fields) => {
            for (name, part) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if name == "labels" {
                    let labels = ADOPTING.into_iter().filter_map(|label| Some((label, part.get(label)?)));
                    found.extend(labels.map(|(label, value)| (format!("{path}[{label}]"), value)));
                }
                adopting(part, &path, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                adopting(item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

/// Refuses labels by which a Sandbox adopts an object: the object would be its Pod or its volume, with its policies.
fn check_adoptable(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    let group = call.resource.kind.group.as_str();
    if [GROUP, EXTENSIONS_GROUP].contains(&group) {
        return Ok(());
    }
    let (mut old, mut labels) = (BTreeMap::new(), BTreeMap::new());
    before.into_iter().for_each(|before| adopting(before, "", &mut old));
    adopting(object, "", &mut labels);
    let new = labels.into_iter().find(|(field, value)| old.get(field) != Some(value));
    let Some((field, _)) = new else { return Ok(()) };
    if may_update(call, "") {
        return Ok(());
    }
    let user = &call.identity.name;
    let why =
        format!("user {user:?} cannot update {SANDBOXES}.{GROUP}, one of which could adopt what has {field}");
    let causes = vec![Cause::forbidden(field, "needs the right to update Sandboxes")];
    Err(Failure::forbidden(call.kind(), meta::text(object, "name"), &why, causes))
}

/// Refuses that a Sandbox controls an object if the caller may not change it.
fn check_controller(call: &Call, object: &Value) -> Result<(), Failure> {
    let Some((at, owner)) = sandbox(object) else { return Ok(()) };
    let name = owner["name"].as_str().unwrap_or_default();
    let field = format!("metadata.ownerReferences[{at}]");
    if !may_update(call, name) {
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
