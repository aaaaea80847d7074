//! Strategic merge patch.

use super::*;

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
