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

use crate::depth;
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
    let mut levels = Levels::of(current);
    for (number, operation) in patch.0.into_iter().enumerate() {
        if let PatchOperation::Copy(copy) = &operation {
            // Each may copy all that the ones before it made.
            copied += patched.pointer(copy.from.as_str()).map_or(0, |value| value.to_string().len());
            if copied > COPIED_BYTES {
                return Err(PatchError::CopiesTooLarge);
            }
        }
        levels.after(&operation, &patched)?;
        json_patch::patch_unsafe(&mut patched, &[operation]).map_err(|mut error| {
            error.operation = number;
            PatchError::Unprocessable(error.to_string())
        })?;
    }
    Ok(patched)
}

/// Upper bound of the levels of a value that is patched: `move` makes them without any bytes.
struct Levels {
    most: usize,
    allowed: usize,
    /// Times that the value may still be measured.
    measurements: u8,
}

impl Levels {
    fn of(value: &Value) -> Levels {
        let most = depth::of(value);
        Levels { most, allowed: depth::MAX.max(most), measurements: 16 }
    }

    /// Counts an operation on the value before it is made.
    fn after(&mut self, operation: &PatchOperation, value: &Value) -> Result<(), PatchError> {
        let tokens = |path: &json_patch::jsonptr::Pointer| path.count();
        let below = |most: usize, from, path| tokens(path) + most.saturating_sub(tokens(from));
        let next = |most: usize| match operation {
            PatchOperation::Add(add) => tokens(&add.path) + depth::of(&add.value),
            PatchOperation::Replace(replace) => tokens(&replace.path) + depth::of(&replace.value),
            PatchOperation::Move(moved) => below(most, &moved.from, &moved.path),
            PatchOperation::Copy(copy) => below(most, &copy.from, &copy.path),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
        };
        if next(self.most) > self.allowed && self.measurements > 0 {
            self.measurements -= 1;
            self.most = depth::of(value);
        }
        self.most = self.most.max(next(self.most));
        if self.most > self.allowed {
            let why = format!("the object would have more than {} levels", depth::MAX);
            return Err(PatchError::Unprocessable(why));
        }
        Ok(())
    }
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
