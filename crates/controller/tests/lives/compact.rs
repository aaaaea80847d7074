//! Reduces an object to the fields that are compared: without those of API server, kubelet and scheduler.

use serde_json::{Map, Value, json};

use super::kind;

/// Metadata of no interest, or of interest elsewhere: the uid says which object it is.
const METADATA: [&str; 6] =
    ["managedFields", "resourceVersion", "creationTimestamp", "generation", "namespace", "name"];
/// Keys of a Service's spec that the API server chooses.
const SERVICE: [&str; 6] =
    ["clusterIPs", "internalTrafficPolicy", "ipFamilies", "ipFamilyPolicy", "sessionAffinity", "type"];

pub(crate) fn compact(kind: &str, object: &Value) -> Value {
    let generation = object["metadata"]["generation"].as_i64();
    let mut object = without_defaults(kind::plain(kind), object);
    for (_, text) in annotations(&mut object).filter(|(key, _)| is_saved_copy(key)) {
        // Text that is no object stays text.
        let saved = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(saved) = saved.filter(Value::is_object) {
            *text = without_defaults(kind::plain(kind), &saved);
        }
    }
    generations(&mut object, generation);
    object
}

fn annotations(object: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    annotations.into_iter().flatten()
}

/// Returns whether an annotation holds the object of the older version, as JSON.
fn is_saved_copy(key: &str) -> bool {
    key.starts_with("api.agents.x-k8s.io/v1alpha1-") && key.ends_with("-state")
}

fn without_defaults(kind: &str, object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| !METADATA.contains(&key.as_str()));
    }
    if let Some(map) = object.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
    match kind {
        "Sandbox" | "SandboxTemplate" => {
            containers(&mut object["spec"]["podTemplate"]["spec"]);
            // Go's types always write it.
            drop_equal(&mut object["spec"]["podTemplate"], &json!({"metadata": {}}));
        }
        // An empty one and none are the same to every client, and the Go controller writes one back with its annotations.
        "SandboxClaim" => drop_equal(&mut object["spec"], &json!({"additionalPodMetadata": {}})),
        "Pod" => pod(&mut object),
        "Service" => {
            drop_keys(&mut object["spec"], &SERVICE);
            drop_keys(&mut object, &["status"]);
        }
        "PersistentVolumeClaim" => {
            let claim = &mut object["spec"];
            drop_equal(claim, &json!({"volumeMode": "Filesystem"}));
            drop_keys(&mut object, &["status"]);
        }
        _ => {}
    }
    // Now and then the Go controller finds its own time not there yet and writes `unknown` instead.
    if let Some(time) = object.pointer_mut("/metadata/annotations/agents.x-k8s.io~1claim-first-ready-at") {
        *time = "$set".into();
    }
    conditions(&mut object);
    object
}

/// Every condition has a time of transition, and what it is cannot be compared.
fn conditions(object: &mut Value) {
    for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
        drop_keys(condition, &["lastTransitionTime"]);
    }
    // Indexing made what was not there.
    for (key, at) in [("conditions", "/status"), ("status", "")] {
        if object.pointer(at).is_some_and(|parent| parent[key].is_null()) {
            drop_keys(object.pointer_mut(at).unwrap_or(&mut Value::Null), &[key]);
        }
    }
}

fn pod(pod: &mut Value) {
    let phase = pod["status"]["phase"].clone();
    pod["status"] = json!({"phase": phase});
    drop_keys(&mut pod["metadata"], &["deletionGracePeriodSeconds"]);
    let spec = &mut pod["spec"];
    drop_keys(spec, &["nodeName", "tolerations", "serviceAccount"]);
    drop_equal(
        spec,
        &json!({
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0, "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
        }),
    );
    // The volume with the service account's token has a random name.
    let is_token =
        |item: &Value| item["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
    drop_items(spec, "volumes", is_token);
    for container in containers_of(spec) {
        drop_items(container, "volumeMounts", is_token);
        drop_keys(container, &["imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"]);
    }
    containers(spec);
}

/// Go's types always write `resources`, also when it is empty.
fn containers(spec: &mut Value) {
    for container in containers_of(spec) {
        drop_equal(container, &json!({"resources": {}}));
    }
}

fn containers_of(spec: &mut Value) -> impl Iterator<Item = &mut Value> {
    let lists = spec.as_object_mut().into_iter().flatten();
    let lists = lists.filter(|(key, _)| ["containers", "initContainers"].contains(&key.as_str()));
    lists.filter_map(|(_, list)| list.as_array_mut()).flatten()
}

/// `observedGeneration` says whether it is the object's present one.
fn generations(value: &mut Value, present: Option<i64>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "observedGeneration" {
                    *value = if value.as_i64() == present { "current" } else { "other" }.into();
                } else {
                    generations(value, present);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| generations(item, present)),
        _ => {}
    }
}

fn drop_keys(value: &mut Value, keys: &[&str]) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| !keys.contains(&key.as_str()));
    }
}

fn drop_equal(value: &mut Value, defaults: &Value) {
    if let (Some(map), Some(defaults)) = (value.as_object_mut(), defaults.as_object()) {
        map.retain(|key, value| defaults.get(key) != Some(value));
    }
}

fn drop_items(value: &mut Value, key: &str, unwanted: impl Fn(&Value) -> bool) {
    let Some(map): Option<&mut Map<String, Value>> = value.as_object_mut() else { return };
    let Some(items) = map.get_mut(key).and_then(Value::as_array_mut) else { return };
    items.retain(|item| !unwanted(item));
    if items.is_empty() {
        map.remove(key);
    }
}
