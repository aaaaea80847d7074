//! Owners of fields, after writes other than apply.

use serde_json::Value;

use crate::call::Call;
use crate::patch::{Updater, track_update};

/// State of the ownership of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// An ordinary write.
    Track,
    /// Apply has done so itself.
    Settled,
}

/// Writes `metadata.managedFields`.
///
/// The services of this process are recorded only on objects that a client from outside has written. Between a claim
/// and its Pod the record would double the size of every object, for the services alone.
pub(crate) fn record(
    call: &Call,
    ownership: Ownership,
    subresource: &str,
    before: Option<&Value>,
    after: &mut Value,
) {
    let recorded = |object: &Value| {
        object
            .pointer("/metadata/managedFields")
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
    };
    if ownership == Ownership::Settled || !(call.external || before.is_some_and(recorded)) {
        return;
    }
    let (manager, api_version) = (call.field_manager(), call.kind().api_version());
    let now = call.core.ambient.now();
    let updater = Updater { manager: &manager, api_version: &api_version, subresource, now };
    track_update(before, after, updater, call.kind().shape());
}
