//! Owners of fields, and server-side apply, from any bytes.

use jiff::Timestamp;
use serde_json::Value;

use super::{POD, pair};
use crate::patch::{Applier, FieldSet, Updater, apply, track_update};

/// A stored object and an applied one. What was applied once changes nothing when it is applied again, and is refused to
/// another who would change it and does not say `force`.
pub fn applied(bytes: &[u8]) {
    let Some((current, applied)) = pair(bytes) else { return };
    let applier = Applier { manager: "one", force: true, subresource: "", now: Timestamp::UNIX_EPOCH };
    for current in [None, Some(&current)] {
        let Ok(first) = apply(current, &applied, applier, &POD) else { continue };
        let again = apply(Some(&first), &applied, applier, &POD);
        assert_eq!(again.as_ref(), Ok(&first), "{applied}");
        let other = Applier { manager: "who is in no corpus", force: false, ..applier };
        let same = apply(Some(&first), &applied, other, &POD).expect("equal values do not conflict");
        assert_eq!(plain(&same), plain(&first), "{applied}");
    }
}

/// The object without the record of its owners.
fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// Two states of an object, with the owners that a client wrote into them. A set of fields is read as it was written, and
/// a write that changes nothing changes no owner.
pub fn owners(bytes: &[u8]) {
    let Some((before, after)) = pair(bytes) else { return };
    for set in [&before, &after].map(FieldSet::from_fields_v1) {
        assert_eq!(FieldSet::from_fields_v1(&set.to_fields_v1()), set, "{before} {after}");
        let _ = set.paths();
    }
    let updater = Updater { manager: "one", api_version: "v1", subresource: "", now: Timestamp::UNIX_EPOCH };
    let mut tracked = after.clone();
    track_update(Some(&before), &mut tracked, updater, POD.shape());
    let mut again = tracked.clone();
    track_update(Some(&tracked), &mut again, updater, POD.shape());
    assert_eq!(again, tracked, "{before} {after}");
}
