//! JSON patch and merge patch.

use super::*;

#[test]
fn json_patches_apply_whole_or_not_at_all() {
    let object = json!({"a": {"b": 1}, "list": [1, 2]});
    let patch = json!([{"op": "test", "path": "/a/b", "value": 1}, {"op": "replace", "path": "/a/b", "value": 2},
        {"op": "add", "path": "/list/-", "value": 3}, {"op": "remove", "path": "/list/0"}]);
    assert_eq!(json(&object, &patch), Ok(json!({"a": {"b": 2}, "list": [2, 3]})));
    let failing =
        json!([{"op": "add", "path": "/x", "value": 1}, {"op": "test", "path": "/a/b", "value": 9}]);
    assert!(matches!(json(&object, &failing), Err(PatchError::Unprocessable(_))));
    assert!(matches!(json(&object, &json!({"a": 1})), Err(PatchError::Malformed(_))));
    let many: Vec<_> = (0..=MAX_OPERATIONS).map(|_| json!({"op": "remove", "path": "/a"})).collect();
    assert_eq!(json(&object, &json!(many)), Err(PatchError::TooLarge(MAX_OPERATIONS + 1)));
}

#[test]
fn a_json_patch_cannot_double_the_object_without_end() {
    let copies = (0..64).map(|number| json!({"op": "copy", "from": "", "path": format!("/{number}")}));
    assert_eq!(json(&json!({"a": "b"}), &copies.collect()), Err(PatchError::CopiesTooLarge));
    let copy = json!([{"op": "copy", "from": "/a", "path": "/b"}]);
    assert_eq!(json(&json!({"a": 1}), &copy), Ok(json!({"a": 1, "b": 1})));
}

#[test]
fn merge_patches_set_and_remove() {
    let object = json!({"a": {"b": 1, "c": 2}, "list": [1]});
    assert_eq!(
        merge(&object, &json!({"a": {"b": null, "d": 3}, "list": []})),
        Ok(json!({"a": {"c": 2, "d": 3}, "list": []}))
    );
    assert!(matches!(merge(&object, &json!([1])), Err(PatchError::Malformed(_))));
}
