//! The types against the published CRDs: every property of spec and status must survive the types, outside the embedded
//! Pod, volume-claim and network-rule schemas, which are Kubernetes' own.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

/// Schemas at which Kubernetes' own types begin, with the smallest value that each accepts.
fn foreign(path: &str) -> Option<Value> {
    if path.ends_with("podTemplate.spec") {
        return Some(json!({"containers": [{"name": "c"}]}));
    }
    if path.ends_with("volumeClaimTemplates[].spec") {
        return Some(json!({"accessModes": ["ReadWriteOnce"]}));
    }
    if path.ends_with("ingress[]") || path.ends_with("egress[]") {
        return Some(json!({"ports": [{"port": 1}]}));
    }
    None
}

/// Returns a value with every property of the schema.
fn sample(schema: &Value, path: &str) -> Value {
    if let Some(value) = foreign(path) {
        return value;
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") => match schema["properties"].as_object() {
            Some(properties) => properties
                .iter()
                .map(|(name, schema)| (name.clone(), sample(schema, &format!("{path}.{name}"))))
                .collect::<Map<_, _>>()
                .into(),
            None => json!({"key": "value"}),
        },
        Some("array") => json!([sample(&schema["items"], &format!("{path}[]"))]),
        Some("boolean") => json!(true),
        Some("integer") => json!(1),
        Some("string") if schema["format"] == "date-time" => json!("2026-01-02T03:04:05Z"),
        Some("string") => json!("text"),
        other => panic!("{path}: no sample for type {other:?}"),
    }
}

fn check<T: Serialize + DeserializeOwned>(crd: &Value) {
    let version = crd["spec"]["versions"].as_array().unwrap().iter().find(|v| v["storage"] == true).unwrap();
    let properties = &version["schema"]["openAPIV3Schema"]["properties"];
    let kind = &crd["spec"]["names"]["kind"];
    let api_version =
        format!("{}/{}", crd["spec"]["group"].as_str().unwrap(), version["name"].as_str().unwrap());
    let mut object =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "n", "namespace": "d"}});
    for part in ["spec", "status"] {
        if properties[part].is_object() {
            object[part] = sample(&properties[part], part);
        }
    }
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{kind}: {e}"));
    assert_eq!(serde_json::to_value(typed).unwrap(), object, "{kind}");
}

/// Names of the fields of a struct, as serde knows them.
mod fields {
    use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
    use serde::forward_to_deserialize_any;

    struct Names<'a>(&'a mut Vec<&'static str>);

    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = serde_json::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(Error::custom("no struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            self.0.extend(fields);
            Err(Error::custom("only the names count"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    pub(super) fn of<T: DeserializeOwned>() -> Vec<&'static str> {
        let mut names = Vec::new();
        let _ = T::deserialize(Names(&mut names));
        names
    }
}

fn parsed(texts: &[&str]) -> Vec<Value> {
    texts.iter().map(|text| serde_saphyr::from_str(text).expect("a CRD is YAML")).collect()
}

fn crds() -> Vec<Value> {
    parsed(hutch_api::crds())
}

fn state_crds() -> Vec<Value> {
    parsed(hutch_api::state_crds())
}

fn pod_snapshot_crds() -> Vec<Value> {
    parsed(hutch_api::pod_snapshot_crds())
}

#[test]
fn every_property_of_the_crds_is_in_the_types() {
    let (crds, state) = (crds(), state_crds());
    let of_gke = pod_snapshot_crds();
    assert_eq!((crds.len(), state.len(), of_gke.len()), (4, 2, 2));
    for crd in crds.iter().chain(&state).chain(&of_gke) {
        match crd["spec"]["names"]["kind"].as_str().unwrap() {
            "Sandbox" => check::<hutch_api::Sandbox>(crd),
            "SandboxClaim" => check::<hutch_api::SandboxClaim>(crd),
            "SandboxTemplate" => check::<hutch_api::SandboxTemplate>(crd),
            "SandboxWarmPool" => check::<hutch_api::SandboxWarmPool>(crd),
            "SandboxFork" => check::<hutch_api::state::SandboxFork>(crd),
            "SandboxSnapshot" => check::<hutch_api::state::SandboxSnapshot>(crd),
            "PodSnapshot" => check::<hutch_api::pod_snapshot::PodSnapshot>(crd),
            "PodSnapshotManualTrigger" => check::<hutch_api::pod_snapshot::PodSnapshotManualTrigger>(crd),
            other => panic!("unexpected kind {other}"),
        }
    }
}

/// A field of the types that the CRDs lack would be dropped by the API server.
#[test]
fn every_field_of_snapshots_and_forks_is_in_the_crds() {
    use hutch_api::state::{
        ForkChild, SandboxForkSpec, SandboxForkStatus, SandboxSnapshotSpec, SandboxSnapshotStatus,
    };
    let state = state_crds();
    let properties = |crd: &Value, path: &str| -> Vec<String> {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut found: Vec<_> =
            schema.pointer(path).and_then(Value::as_object).unwrap().keys().cloned().collect();
        found.sort_unstable();
        found
    };
    let [fork, snapshot] = state.as_slice() else { panic!("two CRDs") };
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    assert_eq!(properties(fork, "/properties/spec/properties"), sorted(fields::of::<SandboxForkSpec>()));
    assert_eq!(properties(fork, "/properties/status/properties"), sorted(fields::of::<SandboxForkStatus>()));
    let children = "/properties/status/properties/children/items/properties";
    assert_eq!(properties(fork, children), sorted(fields::of::<ForkChild>()));
    assert_eq!(
        properties(snapshot, "/properties/spec/properties"),
        sorted(fields::of::<SandboxSnapshotSpec>())
    );
    assert_eq!(
        properties(snapshot, "/properties/status/properties"),
        sorted(fields::of::<SandboxSnapshotStatus>())
    );
}

/// Names and versions that the constants duplicate.
#[test]
fn names_are_those_of_the_crds() {
    use kube_core::Resource;
    fn same<T: Resource<DynamicType = ()>>(crd: &Value) {
        assert_eq!(crd["spec"]["group"], T::group(&()).as_ref());
        assert_eq!(crd["spec"]["names"]["plural"], T::plural(&()).as_ref());
        let versions = crd["spec"]["versions"].as_array().unwrap();
        let stored = versions.iter().find(|v| v["storage"] == true).unwrap();
        assert_eq!(stored["name"], hutch_api::STORED_VERSION);
        assert_eq!(stored["name"], T::version(&()).as_ref());
        assert!(versions.iter().any(|v| v["name"] == hutch_api::DEPRECATED_VERSION));
    }
    let crds = crds();
    same::<hutch_api::Sandbox>(&crds[0]);
    same::<hutch_api::SandboxClaim>(&crds[1]);
    same::<hutch_api::SandboxTemplate>(&crds[2]);
    same::<hutch_api::SandboxWarmPool>(&crds[3]);
    for crd in state_crds() {
        let versions = crd["spec"]["versions"].as_array().unwrap();
        assert_eq!((&crd["spec"]["group"], versions.len()), (&json!(hutch_api::state::GROUP), 1));
        assert_eq!(versions[0]["name"], hutch_api::state::VERSION);
    }
    for crd in pod_snapshot_crds() {
        let versions = crd["spec"]["versions"].as_array().unwrap();
        assert_eq!((&crd["spec"]["group"], versions.len()), (&json!(hutch_api::pod_snapshot::GROUP), 1));
        assert_eq!(versions[0]["name"], "v1");
    }
}

/// `kubectl explain` shows them.
#[test]
fn every_property_of_the_crds_has_a_description() {
    fn walk(schema: &Value, path: &str, missing: &mut Vec<String>) {
        if schema["description"].as_str().is_none_or(str::is_empty) && !path.ends_with("[]") {
            missing.push(path.to_owned());
        }
        if foreign(path).is_some() {
            return;
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            walk(schema, &format!("{path}.{name}"), missing);
        }
        if schema["items"].is_object() {
            walk(&schema["items"], &format!("{path}[]"), missing);
        }
    }
    for crd in crds().iter().chain(&state_crds()).chain(&pod_snapshot_crds()) {
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let properties = &version["schema"]["openAPIV3Schema"]["properties"];
            let mut missing = Vec::new();
            for part in ["spec", "status"].into_iter().filter(|part| properties[part].is_object()) {
                walk(&properties[part], part, &mut missing);
            }
            assert!(missing.is_empty(), "{} {}: {missing:?}", crd["spec"]["names"]["kind"], version["name"]);
        }
    }
}
