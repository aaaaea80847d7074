use serde_json::{Value, json};

use super::*;
use crate::field_path::tests::joined_by;

fn builtin_kind(api_version: &str, kind: &str) -> Kind {
    builtin().into_iter().find(|k| k.api_version() == api_version && k.kind == kind).expect("a built-in kind")
}

#[test]
fn every_builtin_kind_has_its_definition() {
    for name in definitions::names() {
        assert!(definition(name).is_some_and(Value::is_object), "{name} does not parse");
    }
    for kind in builtin() {
        let name = kind.definition.clone().expect("a definition");
        let definition = definition(&name).unwrap_or_else(|| panic!("no definition {name}"));
        let gvk = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        let gvks = definition["x-kubernetes-group-version-kind"].as_array().expect("kinds of the definition");
        assert!(gvks.contains(&gvk), "{name} is not {gvk}");
        assert_eq!(kind.has_status, kind.subresource("status").is_some());
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn visit(value: &Value) {
        if let Some(name) = value.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(REFERENCE))
        {
            assert!(definition(name).is_some(), "no definition {name}");
        }
        match value {
            Value::Object(map) => map.values().for_each(visit),
            Value::Array(items) => items.iter().for_each(visit),
            _ => {}
        }
    }
    definitions::names().filter_map(definition).for_each(visit);
}

#[test]
fn versions_sort_as_kubernetes_sorts_them() {
    let mut versions = ["foo", "v1alpha1", "v1", "v10", "v2beta1", "v1beta2", "v1beta10", "v2", "bar"];
    versions.sort_by_key(|v| version_rank(v));
    assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1beta10", "v1beta2", "v1alpha1", "bar", "foo"]);
}

#[test]
fn unknown_fields_are_named_with_their_path() {
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "lables": {}},
        "spec": {
            "replica": 1,
            "selector": {"matchLabels": {"any": "label"}},
            "template": {"spec": {"containers": [{"name": "a", "imagee": "x", "resources": {"limits": {"cpu": 1}}}]}}
        }
    });
    let kind = builtin_kind("apps/v1", "Deployment");
    let shape = kind.shape();
    assert_eq!(check(&deployment, shape), []);
    let unknown = ["metadata.lables", "spec.replica", "spec.template.spec.containers[0].imagee"];
    assert_eq!(prune(&mut deployment, shape), unknown);
}

#[test]
fn unknown_fields_do_not_hide_a_wrong_type() {
    let mut pod = json!({"spec": {"priority": "high"}});
    for index in 0..200 {
        pod["metadata"][format!("a{index}")] = 1.into();
    }
    let kind = builtin_kind("v1", "Pod");
    let shape = kind.shape();
    assert_eq!(check(&pod, shape).len(), 1);
    assert_eq!(prune(&mut pod, shape).len(), 100);
    assert_eq!(pod["metadata"], json!({}));
}

#[test]
fn paths_are_joined_for_findings_only() {
    let long = "k".repeat(1 << 20);
    let kind = builtin_kind("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let required: Value =
        (0..100_000).map(|index| json!(if index < 200 { json!(1) } else { json!("a") })).collect();
    let properties = json!({long: {"required": required, "unknown": 1}});
    let mut object =
        json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": properties}}}]}});
    let joined = joined_by(|| {
        assert_eq!(check(&object, kind.shape()).len(), 100);
        assert_eq!(prune(&mut object, kind.shape()).len(), 1);
    });
    assert!(joined <= 101 * 1024, "{joined}");
}

#[test]
fn wrong_types_are_named_with_their_path() {
    let pod = json!({"spec": {
        "containers": [{"name": 1, "ports": [{"containerPort": "80"}], "readinessProbe": {"httpGet": {"port": "web"}},
                        "resources": {"limits": {"memory": {}}}, "env": null}],
        "terminationGracePeriodSeconds": 1.5, "activeDeadlineSeconds": 9_223_372_036_854_775_808_u64,
        "priority": 3_000_000_000_u64
    }, "status": {"startTime": "soon"}});
    let found = check(&pod, builtin_kind("v1", "Pod").shape());
    let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "spec.activeDeadlineSeconds: must be of type integer of 64 bits, got a larger one",
            "spec.containers[0].name: must be of type string, got integer",
            "spec.containers[0].ports[0].containerPort: must be of type integer, got string",
            "spec.containers[0].resources.limits.memory: must be of type string, got object",
            "spec.priority: must be of type integer of 32 bits, got a larger one",
            "spec.terminationGracePeriodSeconds: must be of type integer of 64 bits, got number",
            "status.startTime: must be of type date-time, such as 2006-01-02T15:04:05Z, got string",
        ]
    );
}

#[test]
fn invalid_quantity_is_named() {
    let pod = builtin_kind("v1", "Pod");
    let found = |memory: Value| {
        let container = json!({"name": "c", "resources": {"limits": {"memory": memory}}});
        check(&json!({"spec": {"containers": [container]}}), pod.shape())
    };
    for valid in ["1", "+1.5", "-.5", "5.", "250m", "1Gi", "1e3", "2E-1", " 1k "] {
        assert_eq!(found(valid.into()), [], "{valid}");
    }
    for other in ["", "..", "a", "1.5.5", "1ki", "1e", "1e1.5", "1\0", "1\n2", "/1"] {
        let found: Vec<_> = found(other.into()).iter().map(ToString::to_string).collect();
        let wanted = "spec.containers[0].resources.limits.memory: must be of type quantity, such as 250m or 1Gi, got string";
        assert_eq!(found, [wanted], "{other:?}");
    }
    assert_eq!(found(1.into()), []);
}

#[test]
fn data_that_is_no_base64_is_named() {
    for (kind, field) in [("Secret", "data"), ("ConfigMap", "binaryData")] {
        let kind = builtin_kind("v1", kind);
        let found = |text: &str| check(&json!({field: {"k": text}}), kind.shape());
        for valid in ["", "eA==", "eB==", "e\nA=\r\n="] {
            assert_eq!(found(valid), [], "{valid:?}");
        }
        for other in ["..", "eA", "a b=", "\0"] {
            let found: Vec<_> = found(other).iter().map(ToString::to_string).collect();
            assert_eq!(
                found,
                [format!("{field}.k: must be of type bytes in base64, got string")],
                "{other:?}"
            );
        }
    }
}

fn crd() -> Value {
    json!({
        "metadata": {"name": "boxes.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"kind": "Box", "plural": "boxes", "shortNames": ["bx"]},
            "versions": [
                {"name": "v1alpha1", "served": true, "storage": false, "deprecated": true,
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}},
                 "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}}},
                {"name": "v1", "served": true, "storage": true,
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        "size": {"type": "integer"}}}}}},
                 "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}]},
                {"name": "v0", "served": false, "storage": false}
            ]
        }
    })
}

#[test]
fn a_crd_gives_a_kind_for_each_served_version() {
    let kinds = Kind::from_crd(&crd()).expect("kinds");
    assert_eq!(kinds.iter().map(|k| k.version.as_str()).collect::<Vec<_>>(), ["v1", "v1alpha1"]);
    let (v1, old) = (&kinds[0], &kinds[1]);
    assert_eq!(
        (v1.list_kind.as_str(), v1.singular.as_str(), v1.storage_version.as_str()),
        ("BoxList", "box", "v1")
    );
    assert_eq!(v1.columns[0].json_path, ".spec.size");
    assert_eq!(old.columns[0].name, "Age");
    assert_eq!(old.deprecation_warning.as_deref(), Some("example.org/v1alpha1 Box is deprecated"));
    assert!(old.has_status && !v1.has_status);
    assert_eq!(old.scale.as_ref().and_then(|s| s.label_selector.as_deref()), Some(".status.selector"));
    assert!(v1.is_custom() && !v1.is_review());
}

#[test]
fn custom_objects_are_pruned_by_their_schema() {
    let kinds = Kind::from_crd(&crd()).expect("kinds");
    let mut object = json!({"apiVersion": "example.org/v1", "kind": "Box", "metadata": {"name": "a", "extra": 1},
        "spec": {"free": {"a": {"b": 1}}, "size": 1, "color": "red"}, "stray": 1});
    let shape = kinds[0].shape();
    let mut removed = prune(&mut object, shape);
    removed.sort();
    assert_eq!(removed, ["metadata.extra", "spec.color", "stray"]);
    assert_eq!(object["spec"], json!({"free": {"a": {"b": 1}}, "size": 1}));
}

#[test]
fn a_crd_that_cannot_serve_says_why() {
    let without = |pointer: &str, value: Value| {
        let mut crd = crd();
        *crd.pointer_mut(pointer).expect("a field") = value;
        Kind::from_crd(&crd).expect_err("a problem").to_string()
    };
    let cases = [
        (without("/spec/group", json!("")), "spec.group: Required value"),
        (
            without("/metadata/name", json!("x")),
            "metadata.name: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            without("/spec/scope", json!("World")),
            "spec.scope: Unsupported value: \"World\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        (
            without("/spec/versions/1/storage", json!(false)),
            "spec.versions: Invalid value: must have exactly one version marked as storage version",
        ),
        (
            without("/spec/versions/1/schema", json!({})),
            "spec.versions[1].schema.openAPIV3Schema: Required value: schemas are required",
        ),
    ];
    for (got, wanted) in cases {
        assert_eq!(got, wanted);
    }
}

#[test]
fn an_event_keeps_all_it_has_in_both_faces() {
    let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"name": "p"},
        "message": "m", "source": {"component": "c"}, "firstTimestamp": "t", "count": 2, "type": "Normal"});
    let other = core_to_events(core.clone());
    assert_eq!(other["apiVersion"], "events.k8s.io/v1");
    assert_eq!(
        (&other["note"], &other["regarding"]["name"], &other["deprecatedCount"]),
        (&json!("m"), &json!("p"), &json!(2))
    );
    assert_eq!(events_to_core(other), core);
}
