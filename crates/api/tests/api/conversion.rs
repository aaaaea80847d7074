//! Conversion against the published schemas: objects generated from the schema of one version must convert to
//! the schema of the other version and round-trip.

use std::sync::LazyLock;

use hutch_api::convert;
use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;
use serde_json::{Map, Value, json};

const OLD: &str = hutch_api::DEPRECATED_VERSION;
const NEW: &str = hutch_api::STORED_VERSION;

/// Few names, so that related fields collide often.
const NAMES: [&str; 11] = [
    "",
    "one",
    "t",
    "none",
    "default",
    "pool",
    "pool-x1y2z",
    "t-x1y2z",
    "shadow-pool-t",
    "shadow-pool-default",
    "shadow-pool-t-x1y2z",
];

static CRDS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    hutch_api::crds().iter().map(|text| serde_saphyr::from_str(text).expect("a CRD is YAML")).collect()
});

fn schema(crd: &'static Value, version: &str) -> &'static Value {
    let versions = crd["spec"]["versions"].as_array().expect("versions");
    let version = versions.iter().find(|v| v["name"] == version).expect("the version");
    &version["schema"]["openAPIV3Schema"]["properties"]
}

fn api_version(crd: &Value, version: &str) -> String {
    format!("{}/{version}", crd["spec"]["group"].as_str().expect("a group"))
}

/// Paths of Kubernetes' own types, which conversion must not change.
fn is_foreign(path: &str) -> bool {
    path.ends_with("podTemplate")
        || path.ends_with("volumeClaimTemplates[].spec")
        || path.ends_with("gress[]")
}

fn values(schema: &'static Value, path: String) -> BoxedStrategy<Value> {
    if is_foreign(&path) {
        return "[a-z]{0,4}".prop_map(|text| json!({"spec": {"containers": [{"name": text}]}})).boxed();
    }
    if let Some(options) = schema["enum"].as_array() {
        return prop::sample::select(options.clone()).boxed();
    }
    match schema["type"].as_str() {
        Some("object") => match schema["properties"].as_object() {
            Some(properties) => object(schema, properties, &path),
            None => {
                prop::collection::btree_map("[a-z]{1,3}", "[a-z]{0,3}", 0..3).prop_map(|m| json!(m)).boxed()
            }
        },
        Some("array") => {
            let item = values(&schema["items"], format!("{path}[]"));
            prop::collection::vec(item, 1..3).prop_map(Value::from).boxed()
        }
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        Some("integer") => {
            let (low, high) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
            (low.unwrap_or(-3)..=high.unwrap_or(3)).prop_map(Value::from).boxed()
        }
        Some("string") if schema["format"] == "date-time" => Just(json!("2026-01-02T03:04:05Z")).boxed(),
        Some("string") => prop::sample::select(NAMES.as_slice()).prop_map(Value::from).boxed(),
        other => panic!("{path}: no values for type {other:?}"),
    }
}

fn object(
    schema: &'static Value,
    properties: &'static Map<String, Value>,
    path: &str,
) -> BoxedStrategy<Value> {
    let required = schema["required"].as_array();
    let fields: Vec<_> = properties
        .iter()
        .map(|(name, property)| {
            let must = required.is_some_and(|list| list.contains(&Value::from(name.as_str())));
            let value = values(property, format!("{path}.{name}"));
            let field =
                if must { value.prop_map(Some).boxed() } else { prop::option::weighted(0.6, value).boxed() };
            (Just(name.clone()), field)
        })
        .collect();
    fields
        .prop_map(|fields| {
            let there = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
            Value::Object(there.collect())
        })
        .boxed()
}

fn metadata() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["one", "t", "t-x1y2z"]);
    let texts = || prop::option::of(prop::collection::btree_map("[a-z]{1,5}(/[a-z]{1,5})?", ".{0,8}", 1..4));
    (name, texts(), texts(), any::<bool>()).prop_map(|(name, labels, annotations, owned)| {
        let mut metadata = json!({"name": name, "namespace": "default", "uid": "u-1"});
        if let Some(labels) = labels {
            metadata["labels"] = json!(labels);
        }
        if let Some(annotations) = annotations {
            metadata["annotations"] = json!(annotations);
        }
        if owned {
            metadata["finalizers"] = json!(["example.com/f"]);
            metadata["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-2"}]);
        }
        metadata
    })
}

/// Any object of the four kinds in that version, with its CRD.
fn objects(version: &'static str) -> impl Strategy<Value = (&'static Value, Value)> {
    prop::sample::select((0..4_usize).collect::<Vec<_>>()).prop_flat_map(move |index| {
        let crd = &CRDS[index];
        let parts = schema(crd, version);
        let spec = values(&parts["spec"], "spec".into());
        let status = match parts["status"].is_object() {
            true => prop::option::of(values(&parts["status"], "status".into())).boxed(),
            false => Just(None).boxed(),
        };
        (metadata(), spec, status).prop_map(move |(metadata, spec, status)| {
            let mut object = json!({
                "apiVersion": api_version(crd, version), "kind": crd["spec"]["names"]["kind"],
                "metadata": metadata, "spec": spec,
            });
            if let Some(status) = status {
                object["status"] = status;
            }
            (crd, object)
        })
    })
}

/// Returns `true` when a value has only known fields, all required fields, and the right types.
fn misfit(schema: &Value, value: &Value, path: &str) -> Option<String> {
    if is_foreign(path) {
        return None;
    }
    let wrong = |what: &str| Some(format!("{path}: {value} {what}"));
    if schema["enum"].as_array().is_some_and(|options| !options.contains(value)) {
        return wrong("is no option");
    }
    match (schema["type"].as_str(), value) {
        (Some("object"), Value::Object(fields)) => {
            let properties = schema["properties"].as_object();
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            if let Some(missing) = required.into_iter().find(|name| !fields.contains_key(*name)) {
                return wrong(&format!("lacks {missing}"));
            }
            let properties = properties?;
            fields.iter().find_map(|(name, field)| match properties.get(name) {
                Some(property) => misfit(property, field, &format!("{path}.{name}")),
                None => wrong(&format!("has a field {name}, which would be pruned")),
            })
        }
        (Some("array"), Value::Array(items)) => {
            items.iter().find_map(|item| misfit(&schema["items"], item, &format!("{path}[]")))
        }
        (Some("integer"), Value::Number(number)) => {
            let number = number.as_i64()?;
            let low = schema["minimum"].as_i64().is_some_and(|low| number < low);
            let high = schema["maximum"].as_i64().is_some_and(|high| number > high);
            if low || high { wrong("is out of range") } else { None }
        }
        (Some("boolean"), Value::Bool(_)) | (Some("string"), Value::String(_)) => None,
        _ => wrong("is of another type"),
    }
}

fn fits(crd: &'static Value, version: &str, object: &Value) -> Option<String> {
    let parts = schema(crd, version);
    ["spec", "status"].iter().find_map(|part| misfit(&parts[part], object.get(*part)?, part))
}

fn there(crd: &Value, object: &Value, version: &str) -> Value {
    convert(object.clone(), &api_version(crd, version)).expect("a valid object converts")
}

/// Applies the schema's defaults, as the API server does before any conversion.
fn defaulted(mut object: Value) -> Value {
    match object["kind"].as_str() {
        Some("Sandbox") if object["spec"].get("operatingMode").is_none() => {
            object["spec"]["operatingMode"] = "Running".into();
        }
        Some("SandboxWarmPool") if object["spec"].get("replicas").is_none() => {
            object["spec"]["replicas"] = 1.into();
        }
        _ => {}
    }
    object
}

/// A newer object without fields that an old client's write may lose: observed status, the saved copy.
fn lasting(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !key.starts_with("api.agents.x-k8s.io/v1alpha1-"));
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("nodeName");
        status.remove("observedGeneration");
        if status.is_empty() {
            object.as_object_mut().expect("an object").remove("status");
        }
    }
    object
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn old_object_fits_the_new_schema_and_round_trips((crd, old) in objects(OLD)) {
        let new = there(crd, &old, NEW);
        prop_assert_eq!(fits(crd, NEW, &new), None);
        prop_assert_eq!(there(crd, &new, OLD), old);
    }

    #[test]
    fn new_object_fits_the_old_schema_and_round_trips((crd, new) in objects(NEW)) {
        let new = defaulted(new);
        let old = there(crd, &new, OLD);
        prop_assert_eq!(fits(crd, OLD, &old), None);
        prop_assert_eq!(lasting(there(crd, &old, NEW)), lasting(new));
    }

    /// Both at once: written by an old client, changed by a new one, read and written back by an old one.
    #[test]
    fn new_clients_change_survives_an_old_clients_write(
        (crd, old) in objects(OLD), suspended: bool,
        pool in prop::sample::select(NAMES.as_slice()), bound in prop::sample::select(NAMES.as_slice()),
    ) {
        let mut new = there(crd, &old, NEW);
        match new["kind"].as_str() {
            Some("Sandbox") => {
                new["spec"]["operatingMode"] = if suspended { "Suspended" } else { "Running" }.into();
            }
            Some("SandboxClaim") => {
                new["spec"]["warmPoolRef"]["name"] = pool.into();
                new["status"]["sandbox"] = json!({"name": bound});
            }
            _ => {}
        }
        let seen = there(crd, &new, OLD);
        prop_assert_eq!(fits(crd, OLD, &seen), None);
        prop_assert_eq!(lasting(there(crd, &seen, NEW)), lasting(new));
    }
}
