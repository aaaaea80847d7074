//! The creator of a Sandbox, a claim or forks, for conditions of policies.

use hutch_api::annotation::USER;
use hutch_api::{EXTENSIONS_GROUP, GROUP, state};
use serde_json::Value;

use super::map;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::meta;

/// Records the caller as the creator. Controllers of this program say for whom they create.
pub(crate) fn record(call: &Call, object: &mut Value) {
    if is_recorded(call) {
        let annotations = map(&mut object["metadata"], "annotations");
        annotations.insert(USER.to_owned(), call.identity.name.clone().into());
    }
}

/// Keeps the creator in a changed object.
///
/// # Errors
/// The object names another one.
pub(crate) fn keep(call: &Call, old: &Value, object: &mut Value) -> Result<(), Failure> {
    if !is_recorded(call) {
        return Ok(());
    }
    let value = |object: &Value| object["metadata"]["annotations"].get(USER).cloned();
    match (value(old), value(object)) {
        (before, after) if before == after => Ok(()),
        // A manifest from which the object was made does not have it.
        (Some(creator), None) => {
            map(&mut object["metadata"], "annotations").insert(USER.to_owned(), creator);
            Ok(())
        }
        (_, after) => {
            let field = format!("metadata.annotations[{USER}]");
            let why = "names who created the object, and is set by the server";
            let cause = Cause::invalid(field, &after.unwrap_or_default(), why);
            Err(Failure::invalid(call.kind(), meta::text(object, "name"), vec![cause]))
        }
    }
}

fn is_recorded(call: &Call) -> bool {
    let resource = &call.resource;
    let is_fork = resource.is(state::GROUP, state::SANDBOX_FORKS);
    call.external
        && (resource.is(GROUP, "sandboxes") || resource.is(EXTENSIONS_GROUP, "sandboxclaims") || is_fork)
}
