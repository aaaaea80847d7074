//! Fields that have no effect on one machine: a client that sets one gets a warning.

mod fields;

use serde_json::Value;

use self::fields::{CONTAINER, CONTAINER_PORT, Field, POD, SERVICE, SERVICE_PORT};
use crate::call::Call;

/// Warns about fields of a Pod, of the template of Pods, or of a Service, that have no effect.
pub(crate) fn warn(call: &Call, object: &Value) {
    let kind = call.kind();
    let (pointer, at) = match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods" | "services") => ("/spec", "spec"),
        ("", "replicationcontrollers") | ("apps", "deployments" | "replicasets" | "statefulsets") => {
            ("/spec/template/spec", "spec.template.spec")
        }
        ("agents.x-k8s.io", "sandboxes") | ("extensions.agents.x-k8s.io", "sandboxtemplates") => {
            ("/spec/podTemplate/spec", "spec.podTemplate.spec")
        }
        _ => return,
    };
    // The components of this server read no warnings.
    if call.external
        && let Some(spec) = object.pointer(pointer)
    {
        let found = if kind.plural == "services" { of_service(spec, at) } else { of_pod(spec, at) };
        found.into_iter().for_each(|warning| call.warn(warning));
    }
}

fn of_pod(spec: &Value, at: &str) -> Vec<String> {
    let mut found = among(POD, spec, at);
    for list in ["initContainers", "containers"] {
        for (container, at) in items(spec, at, list) {
            found.extend(of_container(container, &at));
        }
    }
    found
}

/// Returns the warnings about a container that requests what it does not get. `at` is its path.
pub(super) fn of_container(container: &Value, at: &str) -> Vec<String> {
    let mut found = among(CONTAINER, container, at);
    for (port, at) in items(container, at, "ports") {
        found.extend(among(CONTAINER_PORT, port, &at));
    }
    found
}

fn of_service(spec: &Value, at: &str) -> Vec<String> {
    let mut found = among(SERVICE, spec, at);
    for (port, at) in items(spec, at, "ports") {
        found.extend(among(SERVICE_PORT, port, &at));
    }
    found
}

/// Returns the warnings about fields of this value, which is at this path.
fn among(fields: &[Field], value: &Value, at: &str) -> Vec<String> {
    let matters = |field: &&Field| {
        let found = field.name.split('.').fold(value, |value, name| &value[name]);
        (field.matters)(found)
    };
    let warning = |Field { name, why, .. }: &Field| format!("{at}.{name}: has no effect on hutch up: {why}");
    fields.iter().filter(matters).map(warning).collect()
}

/// The items of a list, each with its path.
fn items<'a>(value: &'a Value, at: &str, list: &str) -> impl Iterator<Item = (&'a Value, String)> {
    let items = value[list].as_array().into_iter().flatten().enumerate();
    items.map(move |(index, item)| (item, format!("{at}.{list}[{index}]")))
}

#[cfg(test)]
mod tests;
