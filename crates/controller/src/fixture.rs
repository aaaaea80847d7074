//! Objects for tests from JSON, and merge patches as the API server applies them.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Builds an object of namespace `d`, with a uid of kind and name.
pub(crate) fn object<K: DeserializeOwned>(api: &str, kind: &str, name: &str, more: Value) -> Arc<K> {
    let mut object = json!({
        "apiVersion": api, "kind": kind,
        "metadata": {
            "name": name, "namespace": "d", "uid": format!("{kind}-{name}"), "resourceVersion": "1", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
    });
    json_patch::merge(&mut object, &more);
    Arc::new(serde_json::from_value(object).expect("a test's object is well formed"))
}

/// Returns the object after a merge patch.
pub(crate) fn patched<K: Serialize + DeserializeOwned>(object: &K, patch: &Value) -> Arc<K> {
    let mut value = serde_json::to_value(object).expect("an object is JSON");
    json_patch::merge(&mut value, patch);
    Arc::new(serde_json::from_value(value).expect("a patched object is well formed"))
}

/// Builds a controller reference.
pub(crate) fn owned_by(api: &str, kind: &str, name: &str) -> Value {
    json!([{
        "apiVersion": api, "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true,
        "blockOwnerDeletion": true,
    }])
}
