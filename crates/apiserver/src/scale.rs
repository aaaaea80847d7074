//! The `autoscaling/v1` Scale that an object shows.

use serde_json::{Value, json};

use crate::kinds::Scale;
use crate::selector::LabelSelector;

fn pointer(path: &str) -> String {
    path.replace('.', "/")
}

fn is_labels(selector: &Value) -> bool {
    let fields = selector.as_object().filter(|fields| !fields.is_empty());
    fields.is_some_and(|fields| fields.values().all(Value::is_string))
}

fn labels(selector: &Value) -> String {
    let labels = selector.as_object().into_iter().flatten();
    let pairs: std::collections::BTreeSet<String> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    pairs.into_iter().collect::<Vec<_>>().join(",")
}

/// The Scale of an object.
pub(crate) fn of(paths: &Scale, object: &Value) -> Value {
    let number = |path: &str| object.pointer(&pointer(path)).and_then(Value::as_i64).unwrap_or(0);
    let mut status = json!({ "replicas": number(&paths.status_replicas) });
    let selector = match &paths.label_selector {
        Some(path) => object.pointer(&pointer(path)).and_then(Value::as_str).map(str::to_owned),
        // The selector of a ReplicationController is labels alone.
        None if is_labels(&object["spec"]["selector"]) => Some(labels(&object["spec"]["selector"])),
        None => {
            LabelSelector::from_object(&object["spec"]["selector"]).ok().map(|selector| selector.to_string())
        }
    };
    if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
        status["selector"] = selector.into();
    }
    let own = &object["metadata"];
    let mut metadata = json!({
        "name": own["name"], "uid": own["uid"], "resourceVersion": own["resourceVersion"],
        "creationTimestamp": own["creationTimestamp"],
    });
    if own.get("namespace").is_some() {
        metadata["namespace"] = own["namespace"].clone();
    }
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": { "replicas": number(&paths.spec_replicas) }, "status": status,
    })
}
