//! Who owns which field, after writes other than apply.

use serde_json::Value;

use crate::call::Call;
use crate::patch::{Updater, track_update};

/// Whether a write records its ownership here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// An ordinary write.
    Track,
    /// Apply has done so itself.
    Settled,
}

/// Writes `metadata.managedFields`.
///
/// The services of this process are not recorded on objects that nobody else writes: on the way from a claim to its
/// Pod that would double the size of every object to tell who owns what among ourselves. As soon as someone from
/// outside has written an object, all of its writers are.
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
