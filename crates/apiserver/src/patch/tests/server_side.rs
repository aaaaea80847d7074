//! Server-side apply.

use super::*;

#[test]
fn a_first_apply_owns_what_it_sets() {
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "labels": {"a": "b"}, "finalizers": ["f"]},
        "spec": {"ports": [{"port": 80, "name": "w"}], "selector": {"x": "y"}, "externalIPs": ["1.1.1.1"]}, "status": {"x": 1}});
    let created = apply(None, &object, applier("me", 0), &kind("v1", "Service")).expect("an object");
    assert_eq!(created.get("status"), None);
    assert_eq!(
        created["metadata"]["managedFields"],
        json!([{"manager": "me", "operation": "Apply", "apiVersion": "v1", "time": "2023-11-14T22:13:20Z", "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"f\"": {}}},
                "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {}}},
                    "f:selector": {}, "f:externalIPs": {}}}}])
    );
    assert_eq!(
        sorted_paths(&FieldSet::from_fields_v1(&created["metadata"]["managedFields"][0]["fieldsV1"])),
        [
            ".metadata.finalizers[=\"f\"]",
            ".metadata.labels.a",
            ".spec.externalIPs",
            ".spec.ports[port=80,protocol=\"TCP\"]",
            ".spec.ports[port=80,protocol=\"TCP\"].name",
            ".spec.ports[port=80,protocol=\"TCP\"].port",
            ".spec.selector",
        ]
    );
}

#[test]
fn an_apply_that_changes_nothing_changes_nothing() {
    let object = deployment(
        json!({"replicas": 1, "template": {"spec": {"containers": [{"name": "a", "image": "i"}]}}}),
    );
    let first = apply(None, &object, applier("me", 0), &deployments()).expect("an object");
    assert_eq!(apply(Some(&first), &object, applier("me", 60), &deployments()), Ok(first));
}

#[test]
fn fields_no_longer_applied_go_unless_someone_else_owns_them() {
    let kind = deployments();
    let both = json!({"template": {"metadata": {"labels": {"a": "1", "b": "2"}},
        "spec": {"containers": [{"name": "a", "image": "i", "tty": true}, {"name": "b", "image": "j"}]}}});
    let one = json!({"template": {"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}}});
    let mut object = apply(None, &deployment(both), applier("me", 0), &kind).expect("an object");
    // Defaulted fields have no owner and go with the item that carries them.
    object["spec"]["template"]["spec"]["containers"][1]["imagePullPolicy"] = "Always".into();
    object["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Always".into();
    let object = apply(
        Some(&object),
        &deployment(json!({"template": {"metadata": {"labels": {"b": "2"}}}})),
        applier("you", 1),
        &kind,
    )
    .expect("an object");
    let object = apply(Some(&object), &deployment(one), applier("me", 2), &kind).expect("an object");
    assert_eq!(
        object["spec"]["template"],
        json!({"metadata": {"labels": {"a": "1", "b": "2"}},
            "spec": {"containers": [{"name": "a", "image": "i", "imagePullPolicy": "Always"}]}})
    );
    assert_eq!(owners(&object)[0], "you Apply .spec.template.metadata.labels.b");
}

#[test]
fn conflicts_name_the_managers_and_the_fields() {
    let kind = deployments();
    let first = apply(None, &deployment(json!({"replicas": 1, "paused": true})), applier("first", 0), &kind)
        .expect("an object");
    let mut scaled = first.clone();
    scaled["spec"]["minReadySeconds"] = 5.into();
    let updater = Updater { manager: "kubectl", api_version: "apps/v1", subresource: "", now: at(1) };
    track_update(Some(&first), &mut scaled, updater, kind.shape());

    let error = apply(Some(&scaled), &deployment(json!({"replicas": 2})), applier("second", 2), &kind)
        .expect_err("a conflict");
    assert_eq!(error.to_string(), "Apply failed with 1 conflict: conflict with \"first\": .spec.replicas");
    let wanted = deployment(json!({"replicas": 2, "paused": false, "minReadySeconds": 6}));
    let error = apply(Some(&scaled), &wanted, applier("second", 2), &kind).expect_err("conflicts");
    assert_eq!(
        error.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"first\":\n- .spec.paused\n- .spec.replicas\n\
         conflicts with \"kubectl\" using apps/v1 at 2023-11-14T22:13:21Z:\n- .spec.minReadySeconds"
    );
    let PatchError::Conflict(conflicts) = error else { panic!("not a conflict") };
    assert_eq!(conflicts[0].message(), "conflict with \"first\"");

    // The same value is no conflict: it is shared.
    let shared = apply(Some(&scaled), &deployment(json!({"replicas": 1})), applier("second", 2), &kind)
        .expect("an object");
    assert_eq!(
        owners(&shared),
        [
            "first Apply .spec.paused .spec.replicas",
            "second Apply .spec.replicas",
            "kubectl Update .spec.minReadySeconds"
        ]
    );
    // By force the field changes hands.
    let forced = apply(Some(&scaled), &wanted, Applier { force: true, ..applier("second", 2) }, &kind)
        .expect("an object");
    assert_eq!(owners(&forced), ["second Apply .spec.minReadySeconds .spec.paused .spec.replicas"]);
    assert_eq!(forced["spec"], wanted["spec"]);
}

#[test]
fn lists_merge_as_their_type_says() {
    let pods = kind("v1", "Pod");
    let pod = |spec: Value, finalizers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": finalizers}, "spec": spec});
    let first = pod(
        json!({"containers": [{"name": "a", "command": ["x"]}, {"name": "b"}], "volumes": [{"name": "v"}]}),
        json!(["f"]),
    );
    let second = pod(json!({"containers": [{"name": "c"}, {"name": "a", "image": "i"}]}), json!(["g"]));
    let object = apply(None, &first, applier("first", 0), &pods).expect("an object");
    let object = apply(Some(&object), &second, applier("second", 1), &pods).expect("an object");
    assert_eq!(
        object["spec"]["containers"],
        json!([{"name": "c"}, {"name": "a", "command": ["x"], "image": "i"}, {"name": "b"}])
    );
    assert_eq!(object["metadata"]["finalizers"], json!(["f", "g"]));
    // A command is atomic: to add to it is to change it.
    let third = pod(json!({"containers": [{"name": "a", "command": ["x", "y"]}]}), json!([]));
    let error = apply(Some(&object), &third, applier("third", 2), &pods).expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"first\": .spec.containers[name=\"a\"].command"
    );
}

#[test]
fn objects_from_before_the_first_apply_have_an_owner() {
    let current = deployment(json!({"replicas": 1}));
    let error = apply(Some(&current), &deployment(json!({"replicas": 2})), applier("me", 5), &deployments())
        .expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1 at 2023-11-14T22:13:25Z: .spec.replicas"
    );
}

#[test]
fn what_cannot_be_applied_is_refused() {
    let cases = [
        (
            json!({"spec": {"template": {"spec": {"containers": [{"name": "x"}, {"name": "x"}]}}}}),
            "failed to create typed patch object (/; apps/v1, Kind=Deployment): .spec.template.spec.containers: duplicate \
             entries for key [name=\"x\"]",
        ),
        (json!({"metadata": {"managedFields": [{"manager": "x"}]}}), "metadata.managedFields must be nil"),
    ];
    for (object, wanted) in cases {
        let error = apply(None, &object, applier("me", 0), &deployments()).expect_err("an error");
        assert_eq!(error, PatchError::Malformed(wanted.into()));
    }
}

#[test]
fn status_is_applied_through_its_own_path() {
    let kind = deployments();
    let mut object = deployment(json!({"replicas": 1}));
    object["status"] = json!({"replicas": 3});
    let stored = apply(None, &object, applier("me", 0), &kind).expect("an object");
    object["spec"]["replicas"] = 9.into();
    let status = Applier { subresource: "status", ..applier("me", 1) };
    let stored = apply(Some(&stored), &object, status, &kind).expect("an object");
    assert_eq!((&stored["spec"]["replicas"], &stored["status"]["replicas"]), (&json!(1), &json!(3)));
    assert_eq!(stored["metadata"]["managedFields"][1]["subresource"], "status");
}

#[test]
fn custom_kinds_merge_by_their_schema() {
    let crd = json!({"metadata": {"name": "boxes.example.org"}, "spec": {"group": "example.org", "scope": "Namespaced",
        "names": {"kind": "Box", "plural": "boxes"}, "versions": [{"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
                "items": {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "plain": {"type": "array", "items": {"type": "string"}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}}}]}});
    let boxes = Kind::from_crd(&crd).expect("kinds").remove(0);
    let object = |spec: Value| json!({"apiVersion": "example.org/v1", "kind": "Box", "metadata": {"name": "b", "ownerReferences": [{"uid": "u"}]}, "spec": spec});
    let first = object(
        json!({"parts": [{"id": "a", "n": 1}], "tags": ["x"], "plain": ["p"], "free": {"k": {"l": [1]}}}),
    );
    let second = object(json!({"parts": [{"id": "b"}], "tags": ["y"], "free": {"k": {"m": 1}}}));
    let stored = apply(None, &first, applier("first", 0), &boxes).expect("an object");
    let stored = apply(Some(&stored), &second, applier("second", 1), &boxes).expect("an object");
    assert_eq!(
        stored["spec"],
        json!({"parts": [{"id": "a", "n": 1}, {"id": "b"}], "tags": ["x", "y"], "plain": ["p"], "free": {"k": {"l": [1], "m": 1}}})
    );
    assert_eq!(
        owners(&stored)[0],
        "first Apply .metadata.ownerReferences[uid=\"u\"] .spec.free.k .spec.free.k.l \
         .spec.parts[id=\"a\"] .spec.parts[id=\"a\"].id .spec.parts[id=\"a\"].n .spec.plain .spec.tags[=\"x\"]"
    );
    let error = apply(Some(&stored), &object(json!({"parts": [{"n": 1}]})), applier("first", 2), &boxes)
        .expect_err("an error");
    assert_eq!(
        error.to_string(),
        "failed to create typed patch object (/b; example.org/v1, Kind=Box): .spec.parts: associative list with keys has an \
         element that omits all key fields [\"id\"] (and doesn't have default values for any key fields)"
    );
    let stored =
        apply(Some(&stored), &object(json!({"tags": []})), applier("first", 2), &boxes).expect("an object");
    assert_eq!(stored["spec"], json!({"parts": [{"id": "b"}], "tags": ["y"], "free": {"k": {"m": 1}}}));
}
