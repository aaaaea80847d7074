//! PersistentVolumeClaims.

use serde_json::{Value, json};

use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// The finalizer that keeps a claim while a Pod uses it is left out: the node, which binds claims, removes the
/// volume only when the claim is gone, and Pods hold it by the node.
pub(crate) fn create(kind: &Kind, object: &mut Value) -> Result<(), Failure> {
    let spec = &object["spec"];
    let mut causes = Vec::new();
    if spec["accessModes"].as_array().is_none_or(Vec::is_empty) {
        causes.push(Cause::required("spec.accessModes", "at least 1 access mode is required"));
    }
    if spec.pointer("/resources/requests/storage").is_none() {
        causes.push(Cause::required("spec.resources[storage]", ""));
    }
    if !causes.is_empty() {
        return Err(Failure::invalid(kind, meta::text(object, "name"), causes));
    }
    super::default(&mut object["spec"], "volumeMode", "Filesystem");
    object["status"] = json!({ "phase": "Pending" });
    Ok(())
}
