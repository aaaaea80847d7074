//! The four ways to change an object: JSON patch, merge patch, strategic merge patch, server-side apply; and the record
//! of who owns which field (`metadata.managedFields`).
//!
//! Everything here is a function of values: what is stored, what was sent, and the shape of the kind.

mod apply;
mod diff;
mod field_set;
mod managers;
mod ownership;
mod strategic;

use json_patch::PatchOperation;
use serde_json::Value;

pub(crate) use apply::{Applier, Conflict, apply};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use field_set::FieldSet;
pub(crate) use ownership::{Updater, track_update};
pub(crate) use strategic::strategic;

/// The most operations of one JSON patch, as on a real API server.
pub(crate) const MAX_OPERATIONS: usize = 10_000;
/// The most that the copies of one JSON patch add up to, in bytes of JSON, as on a real API server.
pub(crate) const COPIED_BYTES: usize = 3 << 20;

/// Error of a patch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum PatchError {
    /// It is no patch of its type: answer with 400.
    #[error("{0}")]
    Malformed(String),
    /// It does not fit the object (a failed `test`, a path that is not there): answer with 422.
    #[error("the server rejected our request due to an error in our request: {0}")]
    Unprocessable(String),
    /// It is larger than is allowed: answer with 413.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooLarge(usize),
    /// Its copies together would be larger than is allowed: answer with 413.
    #[error("the copies of a JSON patch may have {COPIED_BYTES} bytes in all")]
    CopiesTooLarge,
    /// Other managers own fields that it would change: answer with 409, and a cause for each.
    #[error("{}", apply::conflict_message(.0))]
    Conflict(Vec<Conflict>),
}

/// Applies a JSON patch (RFC 6902), all of it or nothing.
pub(crate) fn json(current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = patch.as_array().map_or(0, Vec::len);
    if operations > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(operations));
    }
    let patch: json_patch::Patch = serde_json::from_value(patch.clone())
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    let mut patched = current.clone();
    let mut copied = 0;
    for (number, operation) in patch.0.into_iter().enumerate() {
        if let PatchOperation::Copy(copy) = &operation {
            // Each may copy all that the ones before it made.
            copied += patched.pointer(copy.from.as_str()).map_or(0, |value| value.to_string().len());
            if copied > COPIED_BYTES {
                return Err(PatchError::CopiesTooLarge);
            }
        }
        json_patch::patch_unsafe(&mut patched, &[operation]).map_err(|mut error| {
            error.operation = number;
            PatchError::Unprocessable(error.to_string())
        })?;
    }
    Ok(patched)
}

/// Applies a JSON merge patch (RFC 7396).
pub(crate) fn merge(current: &Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed("error decoding patch: a merge patch must be an object".into()));
    }
    let mut patched = current.clone();
    json_patch::merge(&mut patched, patch);
    Ok(patched)
}

#[cfg(test)]
mod tests;
