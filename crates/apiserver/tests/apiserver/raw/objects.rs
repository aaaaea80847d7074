//! Changes of an object: versions, patches, deletions.

use super::*;

#[tokio::test]
async fn both_versions_show_the_same_object() {
    let app = app().await;
    let old = "/apis/agents.x-k8s.io/v1alpha1/namespaces/default/sandboxes";
    let mut object = sandbox("s");
    object["apiVersion"] = "agents.x-k8s.io/v1alpha1".into();
    object["spec"]["replicas"] = 0.into();
    let request = Request::post(old).header("content-type", "application/json");
    let response = send(&app, request.body(Body::from(object.to_string())).unwrap()).await;
    let warning = response.headers()["warning"].to_str().unwrap().to_owned();
    assert_eq!(
        warning,
        "299 - \"agents.x-k8s.io/v1alpha1 Sandbox is deprecated; use agents.x-k8s.io/v1beta1 Sandbox instead\""
    );
    assert_eq!(response.status(), 201);
    let (_, new) = call(&app, "GET", &format!("{SANDBOXES}/s"), "").await;
    assert_eq!(new["spec"]["operatingMode"], "Suspended");
    let (_, scale) = call(&app, "GET", &format!("{old}/s/scale"), "").await;
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(0)));
    let patch = json!({"spec": {"replicas": 1}}).to_string();
    let (code, scale) =
        typed(&app, "PATCH", &format!("{old}/s/scale"), "application/merge-patch+json", &patch).await;
    assert_eq!((code.as_u16(), &scale["spec"]["replicas"]), (200, &json!(1)), "{scale}");
    let (_, new) = call(&app, "GET", &format!("{SANDBOXES}/s"), "").await;
    assert_eq!(
        (&new["spec"]["operatingMode"], &new["metadata"]["generation"]),
        (&json!("Running"), &json!(2))
    );
    let mut events = Events::of(&app, &format!("{old}?watch=1"), "").await;
    let event = events.next().await;
    assert_eq!(event["object"]["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(event["object"]["spec"]["replicas"], 1);
}

#[tokio::test]
async fn older_definitions_change_nothing_and_new_ones_are_served() {
    let app = app().await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let name = format!("{crds}/sandboxes.agents.x-k8s.io");
    let (_, before) = call(&app, "GET", &name, "").await;
    let versions = json!({"spec": {"versions": [{"name": "v1alpha1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let (code, after) =
        typed(&app, "PATCH", &name, "application/merge-patch+json", &versions.to_string()).await;
    assert_eq!((code.as_u16(), &after["spec"]), (200, &before["spec"]));
    assert_eq!(call(&app, "DELETE", &name, "").await.0, 403);
    assert_eq!(call(&app, "POST", SANDBOXES, &sandbox("s").to_string()).await.0, 201);

    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "snapshots.podsnapshot.gke.io"},
        "spec": {"group": "podsnapshot.gke.io", "scope": "Namespaced",
                 "names": {"plural": "snapshots", "kind": "Snapshot"},
                 "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                     "type": "object", "properties": {"spec": {"type": "object", "properties": {
                         "n": {"type": "integer", "default": 3}}}}}}}]},
    });
    let (code, made) = call(&app, "POST", crds, &definition.to_string()).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["status"]["conditions"][1]["type"], "Established");
    let path = "/apis/podsnapshot.gke.io/v1/namespaces/default/snapshots";
    let object = json!({"apiVersion": "podsnapshot.gke.io/v1", "kind": "Snapshot", "metadata": {"name": "x"}, "spec": {"y": 1}});
    let (code, made) = call(&app, "POST", path, &object.to_string()).await;
    assert_eq!((code.as_u16(), &made["spec"]), (201, &json!({"n": 3})));
    assert_eq!(call(&app, "GET", "/apis/podsnapshot.gke.io/v1", "").await.0, 200);
    assert_eq!(call(&app, "DELETE", &format!("{crds}/snapshots.podsnapshot.gke.io"), "").await.0, 200);
    assert_eq!(call(&app, "GET", path, "").await.0, 404);
}

#[tokio::test]
async fn deletes_keep_to_their_preconditions() {
    let app = app().await;
    let (_, made) = call(&app, "POST", CONFIG_MAPS, &config_map("a")).await;
    let path = format!("{CONFIG_MAPS}/a");
    let other = json!({"preconditions": {"uid": "other"}}).to_string();
    let (code, status) = call(&app, "DELETE", &path, &other).await;
    assert_eq!((code.as_u16(), &status["reason"]), (409, &json!("Conflict")));
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("Precondition failed: UID in precondition: other, UID in object meta: "),
        "{message}"
    );
    let own = json!({"preconditions": {"uid": made["metadata"]["uid"]}}).to_string();
    let (code, status) = call(&app, "DELETE", &path, &own).await;
    assert_eq!((code.as_u16(), &status["status"]), (200, &json!("Success")));
    let stale = json!({"metadata": {"resourceVersion": "1"}, "data": {}}).to_string();
    call(&app, "POST", CONFIG_MAPS, &config_map("a")).await;
    let (code, _) = typed(&app, "PATCH", &path, "application/merge-patch+json", &stale).await;
    assert_eq!(code, 409);
    let (code, deleted) = call(&app, "DELETE", CONFIG_MAPS, "").await;
    assert_eq!((code.as_u16(), deleted["items"].as_array().unwrap().len()), (200, 1));
    assert_eq!(call(&app, "GET", &path, "").await.0, 404);
}

#[tokio::test]
async fn a_namespace_goes_when_its_finalizer_is_taken() {
    let app = app().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    let (_, made) = call(&app, "POST", "/api/v1/namespaces", &namespace.to_string()).await;
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "n");
    assert_eq!(
        (&made["status"]["phase"], &made["spec"]["finalizers"]),
        (&json!("Active"), &json!(["kubernetes"]))
    );
    assert_eq!(call(&app, "GET", "/api/v1/namespaces/n/serviceaccounts/default", "").await.0, 200);
    let (_, going) = call(&app, "DELETE", "/api/v1/namespaces/n", "").await;
    assert_eq!(going["status"]["phase"], "Terminating");
    let (code, status) = call(&app, "POST", "/api/v1/namespaces/n/configmaps", &config_map("a")).await;
    assert_eq!(code, 403);
    assert_eq!(status["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let mut last = going.clone();
    last["spec"]["finalizers"] = json!([]);
    let (code, _) = call(&app, "PUT", "/api/v1/namespaces/n/finalize", &last.to_string()).await;
    assert_eq!(code, 200);
    assert_eq!(call(&app, "GET", "/api/v1/namespaces/n", "").await.0, 404);
}

#[tokio::test]
async fn events_have_two_faces() {
    let app = app().await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "x", "reportingInstance": "x", "action": "A",
        "reason": "R", "note": "hello", "type": "Normal",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default", "apiVersion": "v1"},
    });
    let (code, made) =
        call(&app, "POST", "/apis/events.k8s.io/v1/namespaces/default/events", &event.to_string()).await;
    assert_eq!((code.as_u16(), &made["note"]), (201, &json!("hello")), "{made}");
    let path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp";
    let (_, list) = call(&app, "GET", path, "").await;
    assert_eq!(list["items"][0]["message"], "hello");
    assert_eq!(list["kind"], "EventList");
}

#[tokio::test]
async fn server_side_apply_owns_and_conflicts() {
    let app = app().await;
    let path = |manager: &str, more: &str| format!("{CONFIG_MAPS}/a?fieldManager={manager}{more}");
    let apply = "application/apply-patch+yaml";
    let (code, made) = typed(&app, "PATCH", &path("one", ""), apply, &config_map("a")).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "one");
    let (code, again) = typed(&app, "PATCH", &path("one", ""), apply, &config_map("a")).await;
    assert_eq!(
        (code.as_u16(), &again["metadata"]["resourceVersion"]),
        (200, &made["metadata"]["resourceVersion"])
    );
    let other = config_map("a").replace("\"b\"", "\"c\"");
    let (code, status) = typed(&app, "PATCH", &path("two", ""), apply, &other).await;
    assert_eq!(
        (code.as_u16(), &status["details"]["causes"][0]["reason"]),
        (409, &json!("FieldManagerConflict")),
        "{status}"
    );
    let (code, forced) = typed(&app, "PATCH", &path("two", "&force=true"), apply, &other).await;
    assert_eq!((code.as_u16(), &forced["data"]["a"]), (200, &json!("c")));
    let (code, _) = typed(&app, "PATCH", &format!("{CONFIG_MAPS}/a"), apply, &other).await;
    assert_eq!(code, 422);
}

#[tokio::test]
async fn update_without_defaulted_fields_changes_nothing() {
    let app = app().await;
    let path = "/apis/apps/v1/namespaces/default/statefulsets";
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "replicas": 0,
                 "template": {"metadata": {"labels": {"a": "b"}},
                              "spec": {"containers": [{"name": "c", "image": "hutch/host"}]}},
                 "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {
                     "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]},
    });
    let (code, made) = call(&app, "POST", path, &set.to_string()).await;
    assert_eq!(code, 201, "{made}");
    let (code, same) = call(&app, "PUT", &format!("{path}/s"), &set.to_string()).await;
    assert_eq!(code, 200, "{same}");
    assert_eq!(same["metadata"], made["metadata"]);
}

#[tokio::test]
async fn immutable_config_map_keeps_its_data() {
    let app = app().await;
    let map = json!({"metadata": {"name": "m"}, "immutable": true, "data": {"a": "b"}});
    assert_eq!(call(&app, "POST", CONFIG_MAPS, &map.to_string()).await.0, 201);
    let patch = async |patch: Value| {
        let path = format!("{CONFIG_MAPS}/m");
        typed(&app, "PATCH", &path, "application/merge-patch+json", &patch.to_string()).await
    };
    let (code, status) = patch(json!({"data": {"a": "c"}})).await;
    assert_eq!(
        (code.as_u16(), status["message"].as_str().unwrap()),
        (422, "ConfigMap \"m\" is invalid: data: Forbidden: field is immutable when `immutable` is set")
    );
    assert_eq!(patch(json!({"metadata": {"labels": {"a": "b"}}})).await.0, 200);
}

#[tokio::test]
async fn pod_of_an_unknown_runtime_class_is_forbidden() {
    let app = app().await;
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"runtimeClassName": "kata", "containers": [{"name": "c", "image": "hutch/host"}]},
    });
    let (code, status) = call(&app, "POST", PODS, &pod.to_string()).await;
    let message = "pods \"p\" is forbidden: pod rejected: RuntimeClass \"kata\" not found";
    assert_eq!((code.as_u16(), status["message"].as_str().unwrap()), (403, message));
    let class = json!({"metadata": {"name": "kata"}, "handler": "hutch"}).to_string();
    assert_eq!(call(&app, "POST", "/apis/node.k8s.io/v1/runtimeclasses", &class).await.0, 201);
    assert_eq!(call(&app, "POST", PODS, &pod.to_string()).await.0, 201);
}

#[tokio::test]
async fn defaults_of_a_later_definition_are_shown() {
    let app = app().await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                 "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                     "type": "object", "properties": {"spec": {"type": "object", "properties": {
                         "n": {"type": "integer"}}}}}}}]},
    });
    assert_eq!(call(&app, "POST", crds, &definition.to_string()).await.0, 201);
    let path = "/apis/example.com/v1/namespaces/default/things";
    let thing =
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": {}});
    let (_, made) = call(&app, "POST", path, &thing.to_string()).await;
    let version = &mut definition["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["n"]["default"] = 3.into();
    let patch = json!({"spec": {"versions": [version]}}).to_string();
    let name = format!("{crds}/things.example.com");
    assert_eq!(typed(&app, "PATCH", &name, "application/merge-patch+json", &patch).await.0, 200);
    let (_, one) = call(&app, "GET", &format!("{path}/x"), "").await;
    assert_eq!((&one["spec"], &one["metadata"]), (&json!({"n": 3}), &made["metadata"]));
    assert_eq!(call(&app, "GET", path, "").await.1["items"][0]["spec"], json!({"n": 3}));
    let mut events = Events::of(&app, &format!("{path}?watch=1"), "").await;
    assert_eq!(events.next().await["object"]["spec"], json!({"n": 3}));
}

#[tokio::test]
async fn kind_without_a_controller_is_created_with_a_warning() {
    let app = app().await;
    let job = json!({
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": {"restartPolicy": "Never",
                                       "containers": [{"name": "c", "image": "hutch/host"}]}}},
    });
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": backend}});
    let class = json!({"metadata": {"name": "c"}, "spec": {"controller": "a.b/c"}});
    for (path, object, text) in [
        ("/apis/batch/v1/namespaces/default/jobs", job, "hutch up runs no jobs"),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
            ingress,
            "hutch up runs no ingress controller",
        ),
        ("/apis/networking.k8s.io/v1/ingressclasses", class, "hutch up runs no ingress controller"),
    ] {
        let request = Request::post(path).header("content-type", "application/json");
        let response = send(&app, request.body(Body::from(object.to_string())).unwrap()).await;
        assert_eq!(response.status(), 201, "{path}");
        let warning = response.headers()["warning"].to_str().unwrap().to_owned();
        assert!(warning.contains(text), "{warning}");
    }
}

#[tokio::test]
async fn data_of_a_controller_revision_does_not_change_and_its_number_does() {
    let app = app().await;
    let path = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let data = json!({"spec": {"template": {"$patch": "replace", "any": {"field": 1}}}});
    let revision = json!({"metadata": {"name": "r"}, "revision": 1, "data": data});
    let (code, made) = call(&app, "POST", path, &revision.to_string()).await;
    assert_eq!((code.as_u16(), &made["data"]), (201, &data), "{made}");
    let merge = async |patch: Value| {
        typed(&app, "PATCH", &format!("{path}/r"), "application/merge-patch+json", &patch.to_string()).await
    };
    assert_eq!(merge(json!({"revision": 2})).await.0, 200);
    let (code, refused) = merge(json!({"data": {"spec": {"template": {"any": null}}}})).await;
    assert_eq!((code.as_u16(), &refused["details"]["causes"][0]["field"]), (422, &json!("data")));
}

#[tokio::test]
async fn scale_of_a_replication_controller_shows_its_labels_as_selector() {
    let app = app().await;
    let path = "/api/v1/namespaces/default/replicationcontrollers";
    let template = json!({"metadata": {"labels": {"a": "b", "c": "d"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let controller = json!({"metadata": {"name": "r"}, "spec": {"template": template}});
    assert_eq!(call(&app, "POST", path, &controller.to_string()).await.0, 201);
    let (_, scale) = call(&app, "GET", &format!("{path}/r/scale"), "").await;
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(1), &json!("a=b,c=d")));
    let (_, table) =
        get_as(&app, &format!("{path}/r/scale"), "application/json;as=Table;v=v1;g=meta.k8s.io").await;
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..3], [json!("r"), json!(1), json!(0)]);
}

#[tokio::test]
async fn field_of_a_stateful_set_that_cannot_change_is_forbidden() {
    let app = app().await;
    let path = "/apis/apps/v1/namespaces/default/statefulsets";
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"metadata": {"name": "s"}, "spec": {"serviceName": "x", "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    assert_eq!(call(&app, "POST", path, &set.to_string()).await.0, 201);
    let merge = async |spec: Value| {
        let patch = json!({ "spec": spec }).to_string();
        typed(&app, "PATCH", &format!("{path}/s"), "application/merge-patch+json", &patch).await
    };
    assert_eq!(merge(json!({"replicas": 3, "minReadySeconds": 1})).await.0, 200);
    let (code, refused) = merge(json!({"serviceName": "y"})).await;
    assert_eq!(code, 422);
    assert!(
        refused["message"].as_str().unwrap().contains("updates to statefulset spec for fields other than")
    );
}
