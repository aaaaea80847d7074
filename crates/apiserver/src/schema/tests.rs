use serde_json::json;

use super::*;
use crate::field_path::tests::joined_by;

#[path = "../../../policy/tests/judged/mod.rs"]
mod judged;

fn structural(schema: Value) -> Structural {
    Structural::compile(&Arc::new(schema))
}

fn messages(schema: Value, object: Value) -> Vec<String> {
    let causes = structural(schema).validate(&object, None, None, Vec::new());
    causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

#[test]
fn defaults_fill_absent_fields_of_present_objects() {
    let structural = structural(
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "mode": {"type": "string", "default": "Running"},
            "lifecycle": {"type": "object", "properties": {"policy": {"type": "string", "default": "Retain"}}},
            "ports": {"type": "array", "items": {"type": "object", "properties": {"protocol": {"type": "string", "default": "TCP"}}}},
            "gone": {"type": "string"},
        }}}}),
    );
    let mut object = json!({"spec": {"ports": [{}], "mode": null, "gone": null}});
    structural.default(&mut object);
    assert_eq!(object, json!({"spec": {"ports": [{"protocol": "TCP"}], "mode": "Running"}}));
}

#[test]
fn paths_are_joined_for_findings_only() {
    let list = json!({"type": "array", "items": {"type": "integer"}});
    let schema = json!({"type": "object", "additionalProperties": list});
    let items = |wrong: usize| -> Value {
        (0..100_000).map(|n| if n < wrong { json!("a") } else { json!(1) }).collect()
    };
    let long = "k".repeat(1 << 20);
    let joined = joined_by(|| assert_eq!(messages(schema.clone(), json!({&long: items(1)})).len(), 1));
    assert!(joined <= 4 * 1024, "{joined}");
    let joined = joined_by(|| assert_eq!(messages(schema, json!({&long: items(100_000)})).len(), 100));
    assert!(joined <= 400 * 1024, "{joined}");
}

#[test]
fn messages_are_those_of_an_api_server() {
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object", "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 1},
            "mode": {"type": "string", "enum": ["Running", "Suspended"]},
            "when": {"type": "string", "format": "date-time"},
            "short": {"type": "string", "maxLength": 2, "pattern": "^[a-z]+$"},
            "env": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        },
    }}});
    let found = messages(
        schema.clone(),
        json!({"spec": {
            "replicas": -1, "mode": "Off", "when": "soon", "short": "A1B",
            "env": [{"name": "a"}, {"name": "a"}], "port": true,
        }}),
    );
    let expected = [
        "spec.name: Required value",
        "spec.env[1]: Duplicate value: {\"name\":\"a\"}",
        "spec.mode: Unsupported value: \"Off\": supported values: \"Running\", \"Suspended\"",
        "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\"",
        "spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
        "spec.short: Too long: may not be more than 2 bytes",
        "spec.short: Invalid value: \"A1B\": spec.short in body should match '^[a-z]+$'",
        "spec.when: Invalid value: \"soon\": spec.when in body must be of type date-time: \"soon\"",
    ];
    for text in expected {
        assert!(found.iter().any(|message| message == text), "{text} is not in {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    let found = messages(schema.clone(), json!({"spec": {"name": "x", "replicas": "2"}}));
    assert_eq!(
        found,
        [
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\""
        ]
    );
    assert!(messages(schema, json!({"spec": {"name": "x", "replicas": 1, "port": "http"}})).is_empty());
}

#[test]
fn transition_rules_ask_the_old_object() {
    let structural = structural(json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {"volumes": {"type": "array", "items": {"type": "string"}}},
        "x-kubernetes-validations": [{
            "rule": "has(self.volumes) == has(oldSelf.volumes) && (!has(self.volumes) || self.volumes == oldSelf.volumes)",
            "message": "volumes is immutable",
        }],
    }}}));
    let (one, two) = (json!({"spec": {"volumes": ["a"]}}), json!({"spec": {"volumes": ["b"]}}));
    assert!(structural.validate(&one, None, None, Vec::new()).is_empty());
    assert!(structural.validate(&one, Some(&one), None, Vec::new()).is_empty());
    let causes = structural.validate(&two, Some(&one), None, Vec::new());
    assert_eq!(causes.len(), 1);
    assert_eq!(causes[0].field, "spec");
    assert_eq!(causes[0].message, "Invalid value: \"object\": volumes is immutable");
}

#[test]
fn unchanged_parts_of_an_old_object_are_not_judged_again() {
    let name = json!({"type": "string", "pattern": "^[a-z]+$"});
    let rule = json!({"type": "object", "required": ["name"], "properties": {"name": name, "host": name}});
    let structural =
        structural(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "first": name, "second": name,
            "names": {"type": "array", "items": name},
            "rules": {"type": "array", "items": rule,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        }}}}));
    let old = json!({"spec": {"first": "A", "second": "b", "names": ["A"], "rules": [
        {"name": "A", "host": "A"}, {"name": "b"}]}});
    for (pointer, value, wrong) in [
        ("/metadata", json!({"labels": {"a": "b"}}), &[][..]),
        ("/spec/second", json!("c"), &[]),
        ("/spec/second", json!("C"), &["spec.second"]),
        ("/spec/first", json!("B"), &["spec.first"]),
        ("/spec/names", json!(["A", "b"]), &["spec.names[0]"]),
        // Items are compared by their keys, wherever they stand.
        ("/spec/rules", json!([{"name": "c"}, {"name": "A", "host": "A"}]), &[]),
        ("/spec/rules", json!([{"name": "A", "host": "b"}]), &[]),
        (
            "/spec/rules",
            json!([{"name": "A", "host": "B"}, {"name": "B"}]),
            &["spec.rules[0].host", "spec.rules[1].name"],
        ),
        ("/spec/rules", json!([{"host": "A"}]), &["spec.rules[0].name", "spec.rules[0].host"]),
    ] {
        let mut object = old.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = value;
        let causes = structural.validate(&object, Some(&old), None, Vec::new());
        let fields: Vec<_> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, wrong, "{object}");
        assert!(structural.validate(&object, None, None, Vec::new()).len() > wrong.len(), "{object}");
    }
}

#[test]
fn policies_are_judged_by_their_crds_as_a_kubernetes_api_server_does() {
    for (kind, plural) in [
        ("ClusterSandboxPolicy", "clustersandboxpolicies"),
        ("SandboxPolicy", "sandboxpolicies"),
        ("CredentialProvider", "credentialproviders"),
    ] {
        let path = format!("{}/../policy/crds/policy.hutch.dev_{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
        let crd: Value =
            serde_saphyr::from_str(&std::fs::read_to_string(path).expect("a CRD")).expect("YAML");
        let structural = structural(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone());
        for case in judged::cases().into_iter().filter(|case| case.kinds().contains(&kind)) {
            // Unknown fields are found before.
            if case.crd.as_ref().is_some_and(|part| part.starts_with("unknown field")) {
                continue;
            }
            let mut object = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": kind,
                "metadata": {"name": "p"}, "spec": case.spec});
            structural.default(&mut object);
            let causes = structural.validate(&object, None, None, Vec::new());
            let said: Vec<_> =
                causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
            match &case.crd {
                None => assert!(said.is_empty(), "{kind} {}: {said:?}", case.spec),
                Some(part) => {
                    assert!(said.iter().any(|said| said.contains(part)), "{kind} {}: {said:?}", case.spec);
                }
            }
        }
    }
}
