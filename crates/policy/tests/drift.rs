//! The schemas of the CRDs against the types: each has the fields and values of the other, of the same types, and refuses the
//! same policies.
//!
//! Types refuse an unknown field or value and list those that they have, so the schema is compared with that list.

mod judged;

use std::collections::BTreeSet;

use hutch_policy::{Aws, Binding, Credential, PolicyObject, ProviderObject, check_given};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Name of no field, and of no value.
const UNKNOWN: &str = "unknown-name";

fn schema(plural: &str) -> Value {
    let path = format!("{}/crds/policy.hutch.dev_{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
    let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Returns a value with this one at a path. Steps are names of fields; `[]` is the item of a list.
fn at(path: &[String], value: Value) -> Value {
    path.iter().enumerate().rev().fold(value, |value, (depth, step)| match step.as_str() {
        "[]" => json!([value]),
        // Two types together, of which the first is read whole before the other.
        name if depth >= 2 && path[depth - 2] == "credentials" && path[depth - 1] == "[]" => {
            let mut object = json!({"name": "a", "hosts": ["a.example.com"]});
            object[name] = value;
            object
        }
        name => json!({name: value}),
    })
}

/// Returns the names that the types have at a path, by the error about an unknown one; `None` if it lists none.
fn names<T: DeserializeOwned>(path: &[String], unknown: Value) -> Option<BTreeSet<String>> {
    let error = serde_json::from_value::<T>(at(path, unknown)).err().expect("an error").to_string();
    let (what, expected) = error.split_once("expected ")?;
    assert!(what.contains(UNKNOWN), "{path:?}: {error}");
    Some(expected.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect()
}

/// Compares the schema of a value and of everything in it with the types. Returns the number of compared lists.
fn compare<T: DeserializeOwned>(schema: &Value, path: &mut Vec<String>) -> usize {
    let shown = path.join(".");
    let mut compared = 0;
    if let Some(values) = schema["enum"].as_array() {
        let values: BTreeSet<String> =
            values.iter().map(|value| value.as_str().expect("a text").to_owned()).collect();
        let mut known = names::<T>(path, json!(UNKNOWN)).expect("values");
        // Instructions cannot be redacted. The type is that of other actions, and a check refuses it.
        if shown == "spec.scanner.injection" {
            assert!(known.remove("Redact"));
        }
        assert_eq!(known, values, "values of {shown}");
        compared += 1;
    }
    if let Some(properties) = schema["properties"].as_object() {
        match names::<T>(path, json!({UNKNOWN: 1})) {
            Some(fields) => assert_eq!(fields, keys(&schema["properties"]), "fields of {shown}"),
            // The fields of two types together: the types list none.
            None => {
                assert_eq!(shown, "spec.credentials.[]");
                let fields = keys(&serde_json::to_value(credential()).unwrap());
                assert_eq!(fields, keys(&schema["properties"]), "fields of {shown}");
            }
        }
        compared += 1;
        for (name, schema) in properties {
            path.push(name.clone());
            compared += compare::<T>(schema, path);
            path.pop();
        }
    }
    if schema["items"].is_object() {
        path.push("[]".to_owned());
        compared += compare::<T>(&schema["items"], path);
        path.pop();
    }
    compared
}

/// A credential with every field.
fn credential() -> Credential {
    let binding = Binding {
        hosts: vec!["a.example.com".parse().unwrap()],
        ports: vec!["443".parse().unwrap()],
        paths: vec!["/".to_owned().try_into().unwrap()],
        header: Some("x".to_owned()),
        format: Some("{}".to_owned()),
        body: true,
        aws: Some(Aws { access_key_id: "a".to_owned(), session_token: Some("b".to_owned()) }),
    };
    Credential {
        name: "a".to_owned(),
        provider: Some("p".to_owned()),
        source: Some(serde_json::from_value(json!({"env": "A"})).unwrap()),
        binding,
        env: Some("A".to_owned()),
        shape: Some(serde_json::from_value(json!("Generic")).unwrap()),
        expires: Some("1h".to_owned().try_into().unwrap()),
    }
}

fn spec(schema: &Value) -> (&Value, Vec<String>) {
    (&schema["properties"]["spec"], vec!["spec".to_owned()])
}

/// Returns a value of a schema with its required fields alone.
fn least(name: &str, schema: &Value) -> Value {
    match (schema["type"].as_str(), name) {
        (Some("object"), _) => {
            required(schema).map(|name| (name, least(name, &schema["properties"][name]))).collect()
        }
        (Some("array"), _) => json!([]),
        (Some("string"), "path") => json!("/a"),
        _ => schema["enum"].get(0).cloned().unwrap_or_else(|| "a".into()),
    }
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Returns a value of a schema with its required fields, and with a value at a path.
fn with(schema: &Value, path: &[String], value: &Value) -> Value {
    match path {
        [] => value.clone(),
        [step, rest @ ..] if step == "[]" => json!([with(&schema["items"], rest, value)]),
        [name, rest @ ..] => {
            let mut object = least("", schema);
            object[name] = with(&schema["properties"][name], rest, value);
            object
        }
    }
}

/// Schema of a kind, and the type that reads its objects.
struct Read<'a> {
    kind: &'a str,
    spec: &'a Value,
    error: fn(Value) -> Option<String>,
}

fn error<T: DeserializeOwned>(object: Value) -> Option<String> {
    serde_json::from_value::<T>(object).err().map(|error| error.to_string())
}

impl Read<'_> {
    /// Returns what the type says of an object with a value at a path of its spec.
    fn says(&self, path: &[String], value: &Value) -> Option<String> {
        let spec = with(self.spec, path, value);
        let api_version = "policy.hutch.dev/v1alpha1";
        let object =
            json!({"apiVersion": api_version, "kind": self.kind, "metadata": {"name": "a"}, "spec": spec});
        (self.error)(object)
    }

    /// Compares the type and the required fields of a value, and of everything in it. Returns the number of comparisons.
    fn compare(&self, schema: &Value, path: &mut Vec<String>) -> usize {
        let shown = format!("{} {}", self.kind, path.join("."));
        let mut compared = self.compare_type(schema, path, &shown);
        let whole = least("", schema);
        for name in required(schema) {
            let mut lacking = whole.clone();
            lacking.as_object_mut().expect("an object").remove(name);
            let said = self.says(path, &lacking).unwrap_or_default();
            assert!(said.contains(&format!("missing field `{name}`")), "{shown} without {name}: {said}");
            compared += 1;
        }
        if schema["properties"].is_object() {
            let said = self.says(path, &whole).unwrap_or_default();
            assert!(!said.contains("missing field"), "{shown} with its required fields: {said}");
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            path.push(name.clone());
            compared += self.compare(schema, path);
            path.pop();
        }
        if schema["items"].is_object() {
            path.push("[]".to_owned());
            compared += self.compare(&schema["items"], path);
            path.pop();
        }
        compared
    }

    fn compare_type(&self, schema: &Value, path: &[String], shown: &str) -> usize {
        let types = match schema["type"].as_str() {
            Some(one) => vec![one],
            None => vec!["integer", "string"],
        };
        for (name, value) in [
            ("string", json!("a")),
            ("integer", json!(1)),
            ("boolean", json!(true)),
            ("array", json!([])),
            ("object", json!({})),
        ] {
            let said = self.says(path, &value);
            match types.contains(&name) {
                true => {
                    let said = said.unwrap_or_default();
                    let other = said.contains("invalid type") || said.contains("did not match any variant");
                    assert!(!other, "{shown} is {name} in the schema: {said}");
                }
                // Types with fields can also be read from the list of their values.
                false if types == ["object"] && name == "array" => {}
                false => {
                    assert!(said.is_some(), "{shown} is {types:?} in the schema, and the types take {value}")
                }
            }
        }
        1
    }
}

#[test]
fn schemas_and_types_have_the_same_types_and_required_fields() {
    for (plural, kind, error, least) in [
        ("sandboxpolicies", "SandboxPolicy", error::<PolicyObject> as fn(Value) -> Option<String>, 120),
        ("clustersandboxpolicies", "ClusterSandboxPolicy", error::<PolicyObject>, 100),
        ("credentialproviders", "CredentialProvider", error::<ProviderObject>, 20),
    ] {
        let schema = schema(plural);
        let (spec, _) = spec(&schema);
        let compared = Read { kind, spec, error }.compare(spec, &mut Vec::new());
        assert!(compared >= least, "{plural}: {compared}");
    }
}

/// Judges a policy, or a provider of credentials, as the API server of `hutch up` does beside the CRD.
fn judge(kind: &str, spec: &Value) -> Result<(), String> {
    let object = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": kind, "metadata": {"name": "p"}, "spec": spec});
    check_given(&object).map_err(|error| error.to_string())?;
    if kind == "CredentialProvider" {
        let provider: ProviderObject = serde_json::from_value(object).map_err(|error| error.to_string())?;
        return provider.check().map_err(|error| error.to_string());
    }
    let policy: PolicyObject = serde_json::from_value(object).map_err(|error| error.to_string())?;
    policy.check_new().and_then(|()| policy.check_for_server()).map_err(|error| error.to_string())
}

#[test]
fn field_that_is_unknown_or_has_no_effect_is_refused_by_name() {
    for case in judged::cases() {
        for kind in case.kinds() {
            let judged = judge(kind, &case.spec);
            match &case.types {
                None => assert_eq!(judged, Ok(()), "{kind} {}", case.spec),
                Some(part) => {
                    let error = judged.expect_err(&format!("{kind} {}", case.spec));
                    assert!(error.contains(part), "{kind} {}: {error}", case.spec);
                }
            }
        }
    }
}

#[test]
fn schemas_and_types_have_the_same_fields_and_values() {
    for (plural, least) in [("sandboxpolicies", 25), ("clustersandboxpolicies", 25)] {
        let schema = schema(plural);
        let (of_spec, mut path) = spec(&schema);
        // A field that only one of the two kinds has.
        let mut of_spec = of_spec.clone();
        let (own, other) = match plural {
            "sandboxpolicies" => ("sandboxes", "namespaceSelector"),
            _ => ("namespaceSelector", "sandboxes"),
        };
        let applies = of_spec["properties"]["appliesTo"]["properties"].as_object_mut().unwrap();
        assert!(applies.contains_key(own) && !applies.contains_key(other), "{plural}");
        let selector = applies["selector"].clone();
        applies.insert(other.to_owned(), if other == "sandboxes" { json!({}) } else { selector });
        // Only administrators open Sandboxes of other namespaces.
        let rule = &mut of_spec["properties"]["egress"]["properties"]["rules"]["items"]["properties"];
        let target = rule["sandboxes"]["items"]["properties"].as_object_mut().unwrap();
        let across = target.entry("namespaceSelector").or_insert(Value::Null);
        assert_eq!(across.is_null(), plural == "sandboxpolicies");
        // Only namespaces have credentials in their policies.
        if plural == "clustersandboxpolicies" {
            let properties = of_spec["properties"].as_object_mut().unwrap();
            assert!(!properties.contains_key("credentials"));
            properties.insert("credentials".to_owned(), json!({}));
        }
        let compared = compare::<PolicyObject>(&of_spec, &mut path);
        assert!(compared >= least, "{plural}: {compared}");
    }
    let schema = schema("credentialproviders");
    let (of_spec, mut path) = spec(&schema);
    assert_eq!(compare::<ProviderObject>(of_spec, &mut path), 4);
}
