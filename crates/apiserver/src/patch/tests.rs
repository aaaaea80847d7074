use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::kinds::{Kind, builtin};

fn kind(api_version: &str, name: &str) -> Kind {
    builtin().into_iter().find(|k| k.api_version() == api_version && k.kind == name).expect("a kind")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

// JSON patch and merge patch.

#[test]
fn json_patches_apply_whole_or_not_at_all() {
    let object = json!({"a": {"b": 1}, "list": [1, 2]});
    let patch = json!([{"op": "test", "path": "/a/b", "value": 1}, {"op": "replace", "path": "/a/b", "value": 2},
        {"op": "add", "path": "/list/-", "value": 3}, {"op": "remove", "path": "/list/0"}]);
    assert_eq!(json(&object, &patch), Ok(json!({"a": {"b": 2}, "list": [2, 3]})));
    let failing =
        json!([{"op": "add", "path": "/x", "value": 1}, {"op": "test", "path": "/a/b", "value": 9}]);
    assert!(matches!(json(&object, &failing), Err(PatchError::Unprocessable(_))));
    assert!(matches!(json(&object, &json!({"a": 1})), Err(PatchError::Malformed(_))));
    let many: Vec<_> = (0..=MAX_OPERATIONS).map(|_| json!({"op": "remove", "path": "/a"})).collect();
    assert_eq!(json(&object, &json!(many)), Err(PatchError::TooLarge(MAX_OPERATIONS + 1)));
}

#[test]
fn a_json_patch_cannot_double_the_object_without_end() {
    let copies = (0..64).map(|number| json!({"op": "copy", "from": "", "path": format!("/{number}")}));
    assert_eq!(json(&json!({"a": "b"}), &copies.collect()), Err(PatchError::CopiesTooLarge));
    let copy = json!([{"op": "copy", "from": "/a", "path": "/b"}]);
    assert_eq!(json(&json!({"a": 1}), &copy), Ok(json!({"a": 1, "b": 1})));
}

#[test]
fn merge_patches_set_and_remove() {
    let object = json!({"a": {"b": 1, "c": 2}, "list": [1]});
    assert_eq!(
        merge(&object, &json!({"a": {"b": null, "d": 3}, "list": []})),
        Ok(json!({"a": {"c": 2, "d": 3}, "list": []}))
    );
    assert!(matches!(merge(&object, &json!([1])), Err(PatchError::Malformed(_))));
}

// Strategic merge patch.

fn pod(spec: Value) -> Value {
    json!({"spec": spec})
}

#[test]
fn strategic_patches_merge_lists_by_key() {
    let containers = json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]);
    let cases = [
        (
            "an item found by its key is merged, a new one appended",
            json!({"containers": containers}),
            json!({"containers": [{"name": "b", "image": "3"}, {"name": "c", "image": "4"}]}),
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "3"}, {"name": "c", "image": "4"}]}),
        ),
        (
            "a new item alone stands first",
            json!({"containers": containers}),
            json!({"containers": [{"name": "c"}]}),
            json!({"containers": [{"name": "c"}, {"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}),
        ),
        (
            "an item is deleted",
            json!({"containers": containers}),
            json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "x", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b", "image": "2"}]}),
        ),
        (
            "the list is replaced",
            json!({"containers": containers}),
            json!({"containers": [{"$patch": "replace"}, {"name": "z"}]}),
            json!({"containers": [{"name": "z"}]}),
        ),
        (
            "a map is replaced",
            json!({"nodeSelector": {"a": "1", "b": "2"}}),
            json!({"nodeSelector": {"$patch": "replace", "c": "3"}}),
            json!({"nodeSelector": {"c": "3"}}),
        ),
        (
            "a map is emptied",
            json!({"nodeSelector": {"a": "1"}}),
            json!({"nodeSelector": {"$patch": "delete"}}),
            json!({"nodeSelector": {}}),
        ),
        (
            "null removes, in items too",
            json!({"containers": [{"name": "a", "image": "1", "command": ["x"]}], "nodeName": "n"}),
            json!({"containers": [{"name": "a", "command": null}], "nodeName": null, "hostname": null}),
            json!({"containers": [{"name": "a", "image": "1"}]}),
        ),
        (
            "a list without merge key is replaced",
            json!({"tolerations": [{"key": "a"}], "containers": [{"name": "a", "command": ["x", "y"]}]}),
            json!({"tolerations": [{"key": "b"}], "containers": [{"name": "a", "command": ["z"]}]}),
            json!({"tolerations": [{"key": "b"}], "containers": [{"name": "a", "command": ["z"]}]}),
        ),
        (
            "nested keys: ports by containerPort, env by name",
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "w"}], "env": [{"name": "E", "value": "1"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "x"}], "env": [{"name": "F", "value": "2"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "x"}],
                "env": [{"name": "F", "value": "2"}, {"name": "E", "value": "1"}]}]}),
        ),
        (
            "retained keys drop the others",
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
        ),
        (
            "an order sorts what it names, and others keep their places",
            json!({"containers": [{"name": "a"}, {"name": "server"}, {"name": "b"}]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}], "containers": [{"name": "c"}]}),
            json!({"containers": [{"name": "server"}, {"name": "b"}, {"name": "c"}, {"name": "a"}]}),
        ),
        (
            "an order alone",
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
            json!({"containers": [{"name": "b"}, {"name": "a"}]}),
        ),
        (
            "what is new has no directives",
            json!({}),
            json!({"containers": [{"name": "a", "$retainKeys": ["name"], "image": null, "$setElementOrder/env": []}]}),
            json!({"containers": [{"name": "a"}]}),
        ),
    ];
    let shape = kind("v1", "Pod");
    for (what, object, patch, wanted) in cases {
        assert_eq!(strategic(&pod(object), &pod(patch), shape.shape()), Ok(pod(wanted)), "{what}");
    }
}

#[test]
fn strategic_patches_merge_lists_of_values() {
    let shape = kind("v1", "Pod");
    let object = json!({"metadata": {"finalizers": ["a", "b"]}});
    let cases = [
        (json!({"metadata": {"finalizers": ["c", "a"]}}), json!(["c", "a", "b"])),
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}), json!(["b"])),
        (
            json!({"metadata": {"finalizers": ["c"], "$setElementOrder/finalizers": ["c", "b", "a"]}}),
            json!(["c", "b", "a"]),
        ),
    ];
    for (patch, wanted) in cases {
        let patched = strategic(&object, &patch, shape.shape()).expect("an object");
        assert_eq!(patched["metadata"]["finalizers"], wanted, "{patch}");
    }
}

#[test]
fn broken_strategic_patches_are_refused() {
    let shape = kind("v1", "Pod");
    let object = pod(json!({"containers": [{"name": "a"}], "volumes": [{"name": "v"}]}));
    let cases = [
        (
            json!({"containers": [{"image": "x"}]}),
            "map: {\"image\":\"x\"} does not contain declared merge key: name",
        ),
        (json!({"containers": [{"name": "a", "$patch": "explode"}]}), "unknown patch type found: explode"),
        (json!({"containers": ["x"]}), "an item of a list merged by name must be an object, not string"),
        (
            json!({"volumes": [{"name": "v", "$retainKeys": ["name"], "hostPath": {}}]}),
            "$retainKeys does not name the field hostPath that the patch sets",
        ),
    ];
    for (patch, wanted) in cases {
        let error = strategic(&object, &pod(patch), shape.shape()).expect_err("an error");
        assert_eq!(error, PatchError::Malformed(wanted.into()));
    }
}

// Server-side apply.

fn applier(manager: &str, second: i64) -> Applier<'_> {
    Applier { manager, force: false, subresource: "", now: at(second) }
}

fn deployment(spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}, "spec": spec})
}

fn deployments() -> Kind {
    kind("apps/v1", "Deployment")
}

fn sorted_paths(fields: &FieldSet) -> Vec<String> {
    let mut paths = fields.paths();
    paths.sort();
    paths
}

/// `manager operation path...` of each entry.
fn owners(object: &Value) -> Vec<String> {
    let managers = managers::read(object);
    managers
        .iter()
        .map(|m| format!("{} {:?} {}", m.name, m.operation, sorted_paths(&m.fields).join(" ")))
        .collect()
}

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
    // Defaulted fields belong to nobody and go with the item that carries them.
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

// Ownership by ordinary writes.

fn updater(manager: &str, second: i64) -> Updater<'_> {
    Updater { manager, api_version: "apps/v1", subresource: "", now: at(second) }
}

#[test]
fn writers_own_what_they_change() {
    let kind = deployments();
    let mut first = deployment(json!({"replicas": 1, "paused": false}));
    track_update(None, &mut first, updater("creator", 0), kind.shape());
    assert_eq!(owners(&first), ["creator Update .spec .spec.paused .spec.replicas"]);

    let mut scaled = first.clone();
    scaled["spec"]["replicas"] = 3.into();
    track_update(Some(&first), &mut scaled, updater("scaler", 1), kind.shape());
    assert_eq!(owners(&scaled), ["creator Update .spec .spec.paused", "scaler Update .spec.replicas"]);

    let mut same = scaled.clone();
    track_update(Some(&scaled), &mut same, updater("other", 2), kind.shape());
    assert_eq!(same, scaled);

    let mut removed = scaled.clone();
    removed["spec"].as_object_mut().expect("a spec").remove("replicas");
    removed["metadata"]["labels"] = json!({"a": "b"});
    removed["metadata"]["resourceVersion"] = "9".into();
    track_update(Some(&scaled), &mut removed, updater("creator", 3), kind.shape());
    assert_eq!(owners(&removed), ["creator Update .metadata.labels .metadata.labels.a .spec .spec.paused"]);

    let mut reset = removed.clone();
    reset["metadata"]["managedFields"] = json!([{}]);
    track_update(Some(&removed), &mut reset, updater("creator", 4), kind.shape());
    assert_eq!(reset["metadata"].get("managedFields"), None);
}

#[test]
fn an_update_takes_fields_from_an_applier() {
    let kind = deployments();
    let applied = apply(None, &deployment(json!({"replicas": 1, "paused": true})), applier("me", 0), &kind)
        .expect("an object");
    let mut updated = applied.clone();
    updated["spec"]["replicas"] = 5.into();
    track_update(Some(&applied), &mut updated, updater("edit", 1), kind.shape());
    assert_eq!(owners(&updated), ["me Apply .spec.paused", "edit Update .spec.replicas"]);
}

#[test]
fn a_writer_can_hand_fields_to_another_manager() {
    let kind = deployments();
    let mut stored = deployment(json!({"replicas": 1}));
    track_update(None, &mut stored, updater("kubectl-client-side-apply", 0), kind.shape());
    let mut moved = stored.clone();
    moved["metadata"]["managedFields"][0]["manager"] = "kubectl".into();
    moved["metadata"]["managedFields"][0]["operation"] = "Apply".into();
    assert!(differs(&stored, &moved));
    track_update(Some(&stored), &mut moved, updater("kubectl", 1), kind.shape());
    assert_eq!(owners(&moved), ["kubectl Apply .spec .spec.replicas"]);
    // A writer that sends none does not mean to forget them.
    let mut bare = stored.clone();
    bare["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    track_update(Some(&stored), &mut bare, updater("other", 1), kind.shape());
    assert_eq!(bare, stored);
}

#[test]
fn another_time_alone_is_no_difference() {
    let kind = deployments();
    let at_first =
        apply(None, &deployment(json!({"replicas": 1})), applier("me", 0), &kind).expect("an object");
    let mut later = at_first.clone();
    later["metadata"]["managedFields"][0]["time"] = "2030-01-01T00:00:00Z".into();
    assert!(!differs(&at_first, &later));
    later["metadata"]["labels"] = json!({"a": "b"});
    assert!(differs(&at_first, &later));
    let mut scaled = at_first.clone();
    scaled["spec"]["replicas"] = 2.into();
    assert!(differs(&at_first, &scaled));
}

#[test]
fn the_oldest_of_too_many_writers_become_one() {
    let kind = deployments();
    let mut object = deployment(json!({}));
    for second in 0..15 {
        let before = object.clone();
        object["metadata"]["annotations"][format!("k{second:02}")] = "v".into();
        let name = format!("writer-{second:02}");
        track_update(Some(&before), &mut object, updater(&name, second), kind.shape());
    }
    let owners = owners(&object);
    assert_eq!(owners.len(), MAX_UPDATERS);
    assert!(
        owners[0].starts_with("ancient-changes Update .metadata.annotations .metadata.annotations.k00"),
        "{owners:?}"
    );
    assert!(owners[0].ends_with(".metadata.annotations.k05"), "{owners:?}");
    assert!(owners[9].starts_with("writer-14 "));
}

// The answers of Kubernetes' own libraries to the same questions: `vectors.txt` was written by the program in `vectors/`.

/// Without nulls: upstream drops them one step later.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// The object alone, and its managers without times and in a settled order.
fn apart(object: &Value) -> (Value, Vec<(String, FieldSet)>) {
    let mut owners: Vec<_> = managers::read(object)
        .into_iter()
        .map(|m| (format!("{} {:?}", m.name, m.operation), m.fields))
        .collect();
    owners.sort_by(|a, b| a.0.cmp(&b.0));
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, _| !matches!(name.as_str(), "managedFields" | "creationTimestamp"));
    }
    (object, owners)
}

/// A message without ` at TIME`.
fn without_times(message: &str) -> String {
    let mut parts = message.split(" at 20");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + &part["26-11-21T10:35:47Z".len()..])
}

fn check_steps(kind: &Kind, vector: &Value) {
    let mut live: Option<Value> = None;
    for step in vector["steps"].as_array().expect("steps") {
        let (manager, object) = (step["manager"].as_str().expect("a manager"), &step["object"]);
        let got = if step["op"] == "apply" {
            let applier = Applier { force: step["force"] == true, ..applier(manager, 0) };
            apply(live.as_ref(), object, applier, kind)
        } else {
            let mut updated = object.clone();
            let api_version = kind.api_version();
            let updater = Updater { api_version: &api_version, ..updater(manager, 0) };
            track_update(live.as_ref(), &mut updated, updater, kind.shape());
            Ok(updated)
        };
        match (got, step["error"].as_str()) {
            (Ok(got), None) => assert_eq!(apart(&got), apart(&step["result"]), "{step}"),
            (Err(got), Some(wanted)) => {
                assert_eq!(without_times(&got.to_string()), without_times(wanted), "{step}")
            }
            (got, wanted) => panic!("{step}: got {got:?}, wanted {wanted:?}"),
        }
        // Each step starts from what Kubernetes made of the last one.
        live = step.get("result").filter(|object| !object["metadata"].is_null()).cloned();
    }
}

#[test]
fn patches_and_applies_end_as_in_kubernetes() {
    let (mut patches, mut sequences) = (0, 0);
    for line in include_str!("vectors.txt").lines() {
        let vector: Value = serde_json::from_str(line).expect("a vector");
        let name = vector["kind"].as_str().expect("a kind");
        let kind = builtin().into_iter().find(|k| k.kind == name).expect("a built-in kind");
        if vector.get("patch").is_none() {
            sequences += 1;
            check_steps(&kind, &vector);
            continue;
        }
        patches += 1;
        let got = strategic(&vector["original"], &vector["patch"], kind.shape());
        match got {
            Ok(got) => assert_eq!(got, without_nulls(&vector["result"]), "{line}"),
            Err(error) => assert!(vector.get("error").is_some(), "{line}: {error}"),
        }
    }
    assert!(patches >= 30 && sequences >= 30, "{patches} {sequences}");
}

// What only an enemy sends.

#[test]
fn steps_that_are_none_are_left_out_at_every_depth() {
    let set = FieldSet::from_fields_v1(&json!({
        "€": {}, "f:a": {"€": {}, "aä": {}, ".": {}}, "f:b": {"x": {"f:c": {}}}, "f:d": {"f:e": {"€": {}}, "f:g": {}},
    }));
    assert_eq!(set.paths(), [".a", ".d.g"]);
    assert_eq!(set.to_fields_v1(), json!({"f:a": {}, "f:d": {"f:g": {}}}));
}

/// Looking for each item among all others would take minutes.
#[test]
fn lists_as_long_as_a_request_are_merged() {
    const MANY: usize = 60_000;
    let shape = kind("v1", "Pod");
    let numbers = |from: usize| (from..from + MANY).map(|n| Value::from(n.to_string())).collect::<Vec<_>>();
    let (first, second) = (numbers(0), numbers(MANY / 2));
    let object = json!({"metadata": {"finalizers": first}});
    let patch = json!({"metadata": {"finalizers": second}});
    let merged = strategic(&object, &patch, shape.shape()).expect("merged");
    let list = merged["metadata"]["finalizers"].as_array().expect("a list");
    assert_eq!((list.len(), &list[list.len() - 1]), (MANY + MANY / 2, &second[MANY - 1]));
    let remove = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": second}});
    let left = strategic(&merged, &remove, shape.shape()).expect("merged");
    assert_eq!(left["metadata"]["finalizers"].as_array().map(Vec::len), Some(MANY / 2));
    let volumes =
        |from: usize| numbers(from).into_iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
    let (old, new) = (volumes(0), volumes(MANY / 2));
    let merged = strategic(&pod(json!({"volumes": old})), &pod(json!({"volumes": new})), shape.shape());
    let merged = merged.expect("merged");
    assert_eq!(merged["spec"]["volumes"].as_array().map(Vec::len), Some(MANY + MANY / 2));
    let gone: Vec<_> = new.iter().map(|volume| json!({"name": volume["name"], "$patch": "delete"})).collect();
    let left = strategic(&merged, &pod(json!({"volumes": gone})), shape.shape()).expect("merged");
    assert_eq!(left["spec"]["volumes"].as_array().map(Vec::len), Some(MANY / 2));
}
