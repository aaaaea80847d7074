//! Objects between the version of a request and the version in which they are stored.

use serde_json::Value;

use crate::failure::Failure;
use crate::kinds::{self, Kind};

/// The object as it is stored.
pub(crate) fn to_storage(kind: &Kind, object: Value) -> Result<Value, Failure> {
    if kind.view_of.is_some() {
        return Ok(kinds::events_to_core(object));
    }
    to_version(kind, object, &kind.storage_version)
}

/// A stored object as this kind's version shows it.
pub(crate) fn from_storage(kind: &Kind, object: Value) -> Result<Value, Failure> {
    if kind.view_of.is_some() {
        return Ok(kinds::core_to_events(object));
    }
    to_version(kind, object, &kind.version)
}

/// Returns true if stored objects are in the version of the request.
pub(crate) fn is_storage_version(kind: &Kind) -> bool {
    kind.view_of.is_none() && kind.version == kind.storage_version
}

fn to_version(kind: &Kind, mut object: Value, version: &str) -> Result<Value, Failure> {
    let wanted = kinds::api_version(&kind.group, version);
    if object.get("apiVersion").and_then(Value::as_str) == Some(&wanted) {
        return Ok(object);
    }
    if matches!(kind.group.as_str(), hutch_api::GROUP | hutch_api::EXTENSIONS_GROUP) {
        return hutch_api::convert(object, &wanted).map_err(|error| {
            Failure::internal(format!("conversion of {} to {wanted} failed: {error}", kind.group_resource()))
        });
    }
    // Strategy None: versions differ in nothing but their name.
    object["apiVersion"] = wanted.into();
    Ok(object)
}
