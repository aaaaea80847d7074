//! Annotations that policies trust: the creator of a Sandbox, a claim or forks, and the template from which a controller made a
//! Sandbox.

use hutch_api::annotation::{TEMPLATE_REF, USER};
use hutch_api::{EXTENSIONS_GROUP, GROUP, state};
use serde_json::Value;

use super::map;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::meta;

/// Records the caller as the creator. Controllers of this program say for whom they create.
///
/// # Errors
/// The object names a template: policies of that template, and for it, would apply to what the caller wrote.
pub(crate) fn record(call: &Call, object: &mut Value) -> Result<(), Failure> {
    if is_recorded(call) {
        let annotations = map(&mut object["metadata"], "annotations");
        annotations.insert(USER.to_owned(), call.identity.name.clone().into());
    }
    match is_of_template(call) {
        true => check(call, TEMPLATE_REF, None, object),
        false => Ok(()),
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
    match is_of_template(call) {
        true => check(call, TEMPLATE_REF, Some(old), object),
        false => Ok(()),
    }
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

fn is_of_template(call: &Call) -> bool {
    call.external && call.resource.is(GROUP, "sandboxes")
}

fn is_recorded(call: &Call) -> bool {
    let resource = &call.resource;
    let is_fork = resource.is(state::GROUP, state::SANDBOX_FORKS);
    call.external
        && (resource.is(GROUP, "sandboxes") || resource.is(EXTENSIONS_GROUP, "sandboxclaims") || is_fork)
}
