//! The schemas of the CRDs against the types: each has the fields and values of the other.
//!
//! Types refuse an unknown field or value and list those that they have, so the schema is compared with that list.

use std::collections::BTreeSet;

use hutch_policy::{Aws, Binding, Credential, PolicyObject, ProviderObject};
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
