//! Fields that have no effect on one machine: a client that sets one gets a warning.

mod fields;

use serde_json::Value;

use self::fields::{CONTAINER, Field, INIT_CONTAINER, MAIN_CONTAINER, POD, others};
use crate::call::Call;

/// Warns about fields of an object, or of the template of Pods in it, that have no effect.
pub(crate) fn warn(call: &Call, object: &Value) {
    // The components of this server read no warnings.
    if !call.external {
        return;
    }
    let kind = call.kind();
    let (pointer, at) = match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => ("/spec", "spec"),
        ("", "replicationcontrollers") | ("apps", "deployments" | "replicasets" | "statefulsets") => {
            ("/spec/template/spec", "spec.template.spec")
        }
        ("agents.x-k8s.io", "sandboxes") | ("extensions.agents.x-k8s.io", "sandboxtemplates") => {
            ("/spec/podTemplate/spec", "spec.podTemplate.spec")
        }
        _ => ("", ""),
    };
    let pod = object.pointer(pointer).filter(|_| !at.is_empty()).map(|spec| of_pod(spec, at));
    let own = of_object(&kind.group, &kind.plural, object);
    pod.into_iter().flatten().chain(own).for_each(|warning| call.warn(warning));
}

/// Returns the warnings about fields outside of templates of Pods.
fn of_object(group: &str, plural: &str, object: &Value) -> Vec<String> {
    among(others(group, plural), object, "")
}

fn of_pod(spec: &Value, at: &str) -> Vec<String> {
    let mut found = among(POD, spec, at);
    for (list, own) in [("initContainers", INIT_CONTAINER), ("containers", MAIN_CONTAINER)] {
        for (index, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let at = format!("{at}.{list}[{index}]");
            found.extend(among(own, container, &at));
            found.extend(of_container(container, &at));
        }
    }
    found
}

/// Returns the warnings about a container that requests what it does not get. `at` is its path.
pub(super) fn of_container(container: &Value, at: &str) -> Vec<String> {
    among(CONTAINER, container, at)
}

/// Returns the warnings about fields of this value, which is at this path.
fn among(fields: &[Field], value: &Value, at: &str) -> Vec<String> {
    let warnings = |Field { name, matters, why }: &Field| {
        let mut found = Vec::new();
        each(value, at.to_owned(), name, &mut |value, at| {
            if matters(value) {
                found.push(format!("{at}: has no effect on hutch up: {why}"));
            }
        });
        found
    };
    fields.iter().flat_map(warnings).collect()
}

/// Calls a function with each value of this name, and with its path. A name with `[]` stands for all items of a list, and one
/// in brackets for a key that has dots.
fn each(value: &Value, at: String, name: &str, found: &mut impl FnMut(&Value, &str)) {
    let (first, rest) = match name.strip_prefix('[').and_then(|name| name.split_once(']')) {
        Some((key, rest)) => (key, rest.trim_start_matches('.')),
        None => name.split_once('.').unwrap_or((name, "")),
    };
    if name.is_empty() {
        return found(value, &at);
    }
    let dot = if at.is_empty() { "" } else { "." };
    let Some(list) = first.strip_suffix("[]") else {
        return each(&value[first], format!("{at}{dot}{first}"), rest, found);
    };
    for (index, item) in value[list].as_array().into_iter().flatten().enumerate() {
        each(item, format!("{at}{dot}{list}[{index}]"), rest, found);
    }
}

#[cfg(test)]
mod tests;
