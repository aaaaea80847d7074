//! Annotations that policies trust: the creator of a Sandbox, a claim or forks, and the template from which a controller made a
//! Sandbox.

use hutch_api::annotation::{POD_SNAPSHOT, RESTORE_FROM, TEMPLATE_REF, USER};
use hutch_api::{EXTENSIONS_GROUP, GROUP, state};
use serde_json::Value;

use super::{fork, map};
use crate::access::Action;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::POLICIES;
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
    if !is_of_template(call) {
        return Ok(());
    }
    let source = restored_from(object).and_then(|snapshot| fork::source_of_snapshot(call, snapshot));
    check(call, TEMPLATE_REF, source.as_ref(), object)
}

/// Keeps the creator and the template in a changed object.
///
/// # Errors
/// The object names another one.
pub(crate) fn keep(call: &Call, old: &Value, object: &mut Value) -> Result<(), Failure> {
    if is_recorded(call) {
        check(call, USER, Some(old), object)?;
    }
    match is_of_template(call) {
        true => check(call, TEMPLATE_REF, Some(old), object),
        false => Ok(()),
    }
}

/// Returns the snapshot from which a Sandbox starts.
fn restored_from(object: &Value) -> Option<&str> {
    let pod = &object["spec"]["podTemplate"]["metadata"]["annotations"];
    let named = [&object["metadata"]["annotations"][POD_SNAPSHOT], &pod[POD_SNAPSHOT], &pod[RESTORE_FROM]];
    named.into_iter().find_map(Value::as_str).filter(|name| !name.is_empty())
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
    if !call.external || !call.resource.is(GROUP, "sandboxes") {
        return false;
    }
    let administers = Action::on("update", POLICIES, "clustersandboxpolicies", "");
    !call.core.access.decide(&call.identity, &administers).allowed
}

fn is_recorded(call: &Call) -> bool {
    let resource = &call.resource;
    let is_fork = resource.is(state::GROUP, state::SANDBOX_FORKS);
    call.external
        && (resource.is(GROUP, "sandboxes") || resource.is(EXTENSIONS_GROUP, "sandboxclaims") || is_fork)
}
