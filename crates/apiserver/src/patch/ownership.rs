//! Ownership after ordinary writes: who changed a field owns it.

use jiff::Timestamp;
use serde_json::Value;

use super::diff::diff;
use super::field_set::FieldSet;
use super::managers::{self, Manager, Operation};
use crate::kinds::Shape;

/// Parameters of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Updater<'a> {
    /// The field manager: the `fieldManager` parameter, or the first part of the user agent.
    pub manager: &'a str,
    /// `apiVersion` of the request.
    pub api_version: &'a str,
    /// Such as `status`; empty for the object itself.
    pub subresource: &'a str,
    /// The time of the write.
    pub now: Timestamp,
}

/// Writes `metadata.managedFields` of an object after a create (`before` is `None`), update or patch other than apply.
///
/// The manager gets what it changed, all others lose that. A write that changes nothing changes no entry. Entries that
/// the writer sends along are taken in place of the stored ones: so kubectl hands the fields of client-side apply over
/// to server-side apply. An empty list forgets all owners.
pub(crate) fn track_update(
    before: Option<&Value>,
    after: &mut Value,
    updater: Updater<'_>,
    shape: Shape<'_>,
) {
    if managers::is_reset(after) {
        managers::write(after, Vec::new());
        return;
    }
    let mut all = managers::read(after);
    if all.is_empty() {
        all = before.map(managers::read).unwrap_or_default();
    }
    let nothing = Value::Object(serde_json::Map::new());
    let changes = diff(before.unwrap_or(&nothing), after, shape);
    let mut own = Manager {
        name: updater.manager.into(),
        operation: Operation::Update,
        api_version: updater.api_version.into(),
        subresource: updater.subresource.into(),
        time: None,
        fields: FieldSet::default(),
    };
    let place = all.iter().position(|manager| manager.is_same(&own));
    for (index, manager) in all.iter_mut().enumerate() {
        manager.fields = manager.fields.without(&changes.removed);
        if Some(index) != place {
            manager.fields = manager.fields.without(&changes.changed);
        }
    }
    if !changes.changed.is_empty() {
        if let Some(place) = place {
            own.fields = all.remove(place).fields;
        }
        own.fields.union(&changes.changed);
        own.time = Some(managers::time_text(updater.now));
        all.push(own);
    }
    managers::write(after, all);
}
