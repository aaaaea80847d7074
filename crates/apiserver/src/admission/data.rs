//! ConfigMaps and Secrets: their keys become names of files.

use serde_json::Value;

use super::names::{invalid, key};
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// Checks the keys, and that an immutable object stays as it is. Keys that were stored before the rule existed stay until
/// they are removed.
pub(crate) fn check(kind: &Kind, old: Option<&Value>, object: &Value) -> Result<(), Failure> {
    let mut causes = Vec::new();
    for field in ["data", "binaryData"] {
        for name in object[field].as_object().into_iter().flat_map(|data| data.keys()) {
            if old.is_some_and(|old| old[field].get(name).is_some()) {
                continue;
            }
            causes.extend(invalid(&format!("{field}[{name}]"), name, key(name)));
            if field == "data" && !object["binaryData"][name].is_null() {
                let message = "duplicate of key present in binaryData";
                causes.push(Cause::invalid(format!("data[{name}]"), &name.as_str().into(), message));
            }
        }
    }
    causes.extend(old.into_iter().flat_map(|old| changed(old, object)));
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}

/// Changes that an immutable object does not allow.
fn changed(old: &Value, object: &Value) -> Vec<Cause> {
    if old["immutable"] != true {
        return Vec::new();
    }
    let is_empty = |data: &Value| data.as_object().is_none_or(serde_json::Map::is_empty);
    let differs =
        |field: &str| old[field] != object[field] && !(is_empty(&old[field]) && is_empty(&object[field]));
    let set = |field: &str| Cause::forbidden(field, "field is immutable when `immutable` is set");
    let mut causes = Vec::new();
    if object["immutable"] != true {
        causes.push(set("immutable"));
    }
    causes.extend(["data", "binaryData"].into_iter().filter(|field| differs(field)).map(set));
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn immutable_data_and_its_mark_cannot_change() {
        let old = json!({"immutable": true, "data": {"a": "b"}});
        let fields =
            |new: Value| changed(&old, &new).into_iter().map(|cause| cause.field).collect::<Vec<_>>();
        assert_eq!(fields(json!({"immutable": true, "data": {"a": "b"}, "binaryData": {}})), [""; 0]);
        assert_eq!(fields(json!({"immutable": true, "data": {"a": "c"}})), ["data"]);
        assert_eq!(fields(json!({"data": {"a": "b"}})), ["immutable"]);
        assert_eq!(
            fields(json!({"immutable": true, "data": {"a": "b"}, "binaryData": {"c": ""}})),
            ["binaryData"]
        );
        assert!(changed(&json!({"data": {"a": "b"}}), &json!({})).is_empty());
    }
}
