//! Input that only an attacker sends.

use super::*;

#[test]
fn invalid_steps_are_left_out_at_every_depth() {
    let set = FieldSet::from_fields_v1(&json!({
        "€": {}, "f:a": {"€": {}, "aä": {}, ".": {}}, "f:b": {"x": {"f:c": {}}}, "f:d": {"f:e": {"€": {}}, "f:g": {}},
    }));
    assert_eq!(set.paths(), [".a", ".d.g"]);
    assert_eq!(set.to_fields_v1(), json!({"f:a": {}, "f:d": {"f:g": {}}}));
}

/// Looking for each item among all others would take minutes.
#[test]
fn lists_as_long_as_a_request_are_merged() {
    const MANY: usize = 60_000;
    let shape = kind("v1", "Pod");
    let numbers = |from: usize| (from..from + MANY).map(|n| Value::from(n.to_string())).collect::<Vec<_>>();
    let (first, second) = (numbers(0), numbers(MANY / 2));
    let object = json!({"metadata": {"finalizers": first}});
    let patch = json!({"metadata": {"finalizers": second}});
    let merged = strategic(&object, &patch, shape.shape()).expect("merged");
    let list = merged["metadata"]["finalizers"].as_array().expect("a list");
    assert_eq!((list.len(), &list[list.len() - 1]), (MANY + MANY / 2, &second[MANY - 1]));
    let remove = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": second}});
    let left = strategic(&merged, &remove, shape.shape()).expect("merged");
    assert_eq!(left["metadata"]["finalizers"].as_array().map(Vec::len), Some(MANY / 2));
    let volumes =
        |from: usize| numbers(from).into_iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
    let (old, new) = (volumes(0), volumes(MANY / 2));
    let merged = strategic(&pod(json!({"volumes": old})), &pod(json!({"volumes": new})), shape.shape());
    let merged = merged.expect("merged");
    assert_eq!(merged["spec"]["volumes"].as_array().map(Vec::len), Some(MANY + MANY / 2));
    let gone: Vec<_> = new.iter().map(|volume| json!({"name": volume["name"], "$patch": "delete"})).collect();
    let left = strategic(&merged, &pod(json!({"volumes": gone})), shape.shape()).expect("merged");
    assert_eq!(left["spec"]["volumes"].as_array().map(Vec::len), Some(MANY / 2));
}

/// The name is stored once, not once for each of the fields below it.
#[test]
fn many_fields_below_a_long_name_are_compared() {
    let shape = kind("apps/v1", "ControllerRevision");
    let long = "k".repeat(1 << 20);
    let fields = |from: usize| -> Value {
        let fields = (from..from + 50_000).map(|n| (n.to_string(), Value::from(n)));
        json!({"data": {&long: fields.collect::<serde_json::Map<_, _>>()}})
    };
    let (before, after) = (fields(0), fields(25_000));
    let set = diff::fields(&before, shape.shape()).expect("fields");
    let paths = set.paths();
    assert!(paths.len() == 100 && paths.iter().all(|path| path.len() <= 1024));
    let changes = diff::diff(&before, &after, shape.shape());
    for set in [changes.changed, changes.removed] {
        let set = set.to_fields_v1();
        let below = set["f:data"][format!("f:{long}")].as_object().map(serde_json::Map::len);
        assert_eq!(below, Some(25_000));
    }
}
