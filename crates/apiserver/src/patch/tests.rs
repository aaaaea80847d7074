mod as_in_kubernetes;
mod documents;
mod hostile;
mod server_side;
mod strategic_merge;
mod writers;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::kinds::{Kind, builtin};

fn kind(api_version: &str, name: &str) -> Kind {
    builtin().into_iter().find(|k| k.api_version() == api_version && k.kind == name).expect("a kind")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

fn pod(spec: Value) -> Value {
    json!({"spec": spec})
}

fn applier(manager: &str, second: i64) -> Applier<'_> {
    Applier { manager, force: false, subresource: "", now: at(second) }
}

fn deployment(spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}, "spec": spec})
}

fn deployments() -> Kind {
    kind("apps/v1", "Deployment")
}

fn sorted_paths(fields: &FieldSet) -> Vec<String> {
    let mut paths = fields.paths();
    paths.sort();
    paths
}

/// `manager operation path...` of each entry.
fn owners(object: &Value) -> Vec<String> {
    let managers = managers::read(object);
    managers
        .iter()
        .map(|m| format!("{} {:?} {}", m.name, m.operation, sorted_paths(&m.fields).join(" ")))
        .collect()
}

fn updater(manager: &str, second: i64) -> Updater<'_> {
    Updater { manager, api_version: "apps/v1", subresource: "", now: at(second) }
}

#[test]
fn moves_make_no_deep_value() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!({"c": value}));
    let path = format!("/y{}", "/c".repeat(50));
    let round = [
        json!({"op": "add", "path": "/y", "value": nested(60)}),
        json!({"op": "move", "from": "/x", "path": path}),
        json!({"op": "move", "from": "/y", "path": "/x"}),
    ];
    let patch: Vec<Value> = (0..1000).flat_map(|_| round.clone()).collect();
    let error = json(&json!({"x": 1}), &patch.into()).unwrap_err();
    assert_eq!(error, PatchError::Unprocessable("the object would have more than 100 levels".into()));
    // Many moves of flat values are those of a usual patch.
    let there_and_back = [
        json!({"op": "move", "from": "/a", "path": "/b/c"}),
        json!({"op": "move", "from": "/b/c", "path": "/a"}),
    ];
    let patch: Vec<Value> = (0..10).flat_map(|_| there_and_back.clone()).collect();
    let object = json!({"a": {"d": [1]}, "b": {}});
    assert_eq!(json(&object, &patch.into()).unwrap(), object);
}
