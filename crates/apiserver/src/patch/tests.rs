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
