//! Annotations that policies trust: the creator of a Sandbox, a claim or forks, and the template from which a controller made a
//! Sandbox.

use hutch_api::annotation::{POD_SNAPSHOT, RESTORE_FROM, TEMPLATE_REF, USER};
use hutch_api::{EXTENSIONS_GROUP, GROUP, state};
use serde_json::Value;

use super::{fork, map, owner};
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::meta;

/// Records the caller as the creator, and the template of the Sandbox from whose snapshot a Sandbox starts. Controllers of this
/// program say for whom and from what they create.
///
/// # Errors
/// The object names another template: its policies, and those for it, would apply. Only administrators name one.
pub(crate) fn record(call: &Call, object: &mut Value) -> Result<(), Failure> {
    if is_recorded(call) {
        let annotations = map(&mut object["metadata"], "annotations");
        annotations.insert(USER.to_owned(), call.identity.name.clone().into());
    }
    if call.resource.is(state::GROUP, state::SANDBOX_SNAPSHOTS) {
        stamp(call, object);
        return Ok(());
    }
    match is_of_template(call) {
        true => check(call, TEMPLATE_REF, of_snapshot(call, object).as_ref(), object),
        false => Ok(()),
    }
}

/// Records the template of its source in a snapshot, which may outlive it.
fn stamp(call: &Call, snapshot: &mut Value) {
    let source = snapshot["spec"]["source"]["sandbox"].as_str().and_then(|name| fork::sandbox(call, name));
    let template = source.and_then(|source| source["metadata"]["annotations"].get(TEMPLATE_REF).cloned());
    let annotations = map(&mut snapshot["metadata"], "annotations");
    match template {
        Some(template) => drop(annotations.insert(TEMPLATE_REF.to_owned(), template)),
        None => drop(annotations.remove(TEMPLATE_REF)),
    }
}

/// Keeps the creator and the template in a changed object.
///
/// # Errors
/// The object names another one.
pub(crate) fn keep(call: &Call, old: &Value, object: &mut Value) -> Result<(), Failure> {
    if is_recorded(call) {
        check(call, USER, Some(old), object)?;
    }
    if !is_of_template(call) {
        return Ok(());
    }
    check(call, TEMPLATE_REF, Some(old), object)?;
    let names = |object: &Value| restored_from(object).map(str::to_owned).collect::<Vec<_>>();
    match of_snapshot(call, object).filter(|_| names(old) != names(object)) {
        Some(snapshot) => check(call, TEMPLATE_REF, Some(&snapshot), object),
        None => Ok(()),
    }
}

/// Returns the first snapshot of a Sandbox with a template from which a Sandbox may start, if the caller may update the source.
/// Everyone else would get the policies and credentials of the template for a program of their own, where the snapshot fails.
fn of_snapshot(call: &Call, object: &Value) -> Option<Value> {
    let mut named = restored_from(object).filter_map(|snapshot| fork::of_template(call, snapshot));
    named.next().filter(|(source, _)| owner::may_update(call, source)).map(|(_, object)| object)
}

/// Returns the names of snapshots from which a Sandbox may start: which of them counts, the controller decides.
fn restored_from(object: &Value) -> impl Iterator<Item = &str> {
    let own = &object["metadata"]["annotations"];
    let pod = &object["spec"]["podTemplate"]["metadata"]["annotations"];
    let named = [&own[RESTORE_FROM], &own[POD_SNAPSHOT], &pod[POD_SNAPSHOT], &pod[RESTORE_FROM]];
    named.into_iter().filter_map(Value::as_str).filter(|name| !name.is_empty())
}

/// Keeps an annotation as it was.
fn check(call: &Call, annotation: &str, old: Option<&Value>, object: &mut Value) -> Result<(), Failure> {
    let value = |object: &Value| object["metadata"]["annotations"].get(annotation).cloned();
    match (old.and_then(value), value(object)) {
        (before, after) if before == after => Ok(()),
        // A manifest from which the object was made does not have it.
        (Some(before), None) => {
            map(&mut object["metadata"], "annotations").insert(annotation.to_owned(), before);
            Ok(())
        }
        (_, after) => {
            let field = format!("metadata.annotations[{annotation}]");
            let why = match annotation {
                USER => "names who created the object, and is set by the server",
                _ => {
                    "names the template from which a controller made the Sandbox; create a SandboxClaim for it"
                }
            };
            let cause = Cause::invalid(field, &after.unwrap_or_default(), why);
            Err(Failure::invalid(call.kind(), meta::text(object, "name"), vec![cause]))
        }
    }
}

/// Returns true if the caller may not say from which template a Sandbox is. Administrators of policies may: they decide anyway
/// what each Sandbox reaches.
fn is_of_template(call: &Call) -> bool {
    let has_one =
        call.resource.is(GROUP, "sandboxes") || call.resource.is(state::GROUP, state::SANDBOX_SNAPSHOTS);
    if !call.external || !has_one {
        return false;
    }
    !owner::administers(call)
}

fn is_recorded(call: &Call) -> bool {
    let resource = &call.resource;
    let is_fork = resource.is(state::GROUP, state::SANDBOX_FORKS);
    call.external
        && (resource.is(GROUP, "sandboxes") || resource.is(EXTENSIONS_GROUP, "sandboxclaims") || is_fork)
}
