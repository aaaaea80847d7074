//! The requests about which webhooks are called.

use super::*;

/// A webhook for everything, in both kinds of configuration.
async fn everything(app: &Router, hook: &Hook) {
    let mut webhook = hook.webhook("v.example.com");
    webhook["rules"] =
        json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    configure(app, VALIDATING, "v", json!([webhook])).await;
}

/// Operation, resource, kind, and whether there is a new and an old object.
fn seen(hook: &Hook) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |review: &Value| {
        let request = &review["request"];
        let part = text(&request["subResource"]);
        let slash = if part.is_empty() { "" } else { "/" };
        format!(
            "{} {}{slash}{part} {} {}{}",
            text(&request["operation"]),
            text(&request["resource"]["resource"]),
            text(&request["kind"]["kind"]),
            if request["object"].is_null() { "" } else { "new" },
            if request["oldObject"].is_null() { "" } else { "old" },
        )
    };
    hook.received().iter().map(one).collect()
}

#[tokio::test]
async fn each_write_is_seen_as_in_kubernetes() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    everything(&app, &hook).await;
    const MERGE: &str = "application/merge-patch+json";
    let path = format!("{CONFIG_MAPS}/x");
    let (_, mut made) = call(&app, "POST", CONFIG_MAPS, &config_map("x")).await;
    made["data"]["a"] = "c".into();
    assert_eq!(call(&app, "PUT", &path, &made.to_string()).await.0, 200);
    assert_eq!(typed(&app, "PATCH", &path, MERGE, r#"{"data": {"a": "d"}}"#).await.0, 200);
    let apply = format!("{CONFIG_MAPS}/y?fieldManager=f");
    assert_eq!(typed(&app, "PATCH", &apply, "application/apply-patch+yaml", &config_map("y")).await.0, 201);
    assert_eq!(call(&app, "GET", &path, "").await.0, 200);
    assert_eq!(call(&app, "DELETE", &path, "").await.0, 200);
    assert_eq!(call(&app, "DELETE", &format!("{CONFIG_MAPS}?labelSelector=app%3Dy"), "").await.0, 200);
    assert_eq!(
        seen(&hook),
        [
            "CREATE configmaps ConfigMap new",
            "UPDATE configmaps ConfigMap newold",
            "UPDATE configmaps ConfigMap newold",
            "CREATE configmaps ConfigMap new",
            "DELETE configmaps ConfigMap old",
            "DELETE configmaps ConfigMap old",
        ]
    );
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    assert_eq!(call(&app, "POST", deployments, &deployment.to_string()).await.0, 201);
    let scale = format!("{deployments}/d/scale");
    assert_eq!(typed(&app, "PATCH", &scale, MERGE, r#"{"spec": {"replicas": 3}}"#).await.0, 200);
    let status = format!("{deployments}/d/status");
    assert_eq!(typed(&app, "PATCH", &status, MERGE, r#"{"status": {"replicas": 3}}"#).await.0, 200);
    assert_eq!(
        seen(&hook),
        [
            "CREATE deployments Deployment new",
            "UPDATE deployments/scale Scale newold",
            "UPDATE deployments/status Deployment newold",
        ]
    );
}

#[tokio::test]
async fn subresources_of_pods_and_reviews_are_seen() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    everything(&app, &hook).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}]}})
        .to_string()
    };
    assert_eq!(call(&app, "POST", pods, &pod("p")).await.0, 201);
    let exec = format!("{pods}/p/exec?command=rm&command=-r&container=c&stdout=1&stdin=false");
    call(&app, "POST", &exec, "").await;
    call(&app, "GET", &format!("{pods}/p/log"), "").await;
    let received = hook.received.lock().unwrap().last().unwrap()["request"].clone();
    assert_eq!(
        (&received["operation"], &received["object"]),
        (
            &json!("CONNECT"),
            &json!({"kind": "PodExecOptions", "apiVersion": "v1", "stdout": true, "container": "c", "command": ["rm", "-r"]})
        )
    );
    call(&app, "POST", &format!("{pods}/p/portforward?ports=80,81"), "").await;
    assert_eq!(call(&app, "POST", &format!("{pods}/p/eviction"), "").await.0, 201);
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
    assert_eq!(call(&app, "POST", token, "{}").await.0, 201);
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(call(&app, "POST", reviews, &review.to_string()).await.0, 201);
    assert_eq!(
        seen(&hook),
        [
            "CREATE pods Pod new",
            "CONNECT pods/exec PodExecOptions new",
            "CONNECT pods/portforward PodPortForwardOptions new",
            "CREATE pods/eviction Eviction new",
            "CREATE serviceaccounts/token TokenRequest new",
            "CREATE selfsubjectaccessreviews SelfSubjectAccessReview new",
        ]
    );
}

#[tokio::test]
async fn denied_update_and_delete_change_nothing() {
    let app = app().await;
    assert_eq!(call(&app, "POST", CONFIG_MAPS, &config_map("x")).await.0, 201);
    let hook = Hook::start(|review| response(review, json!({"allowed": false}))).await;
    configure(&app, VALIDATING, "v", json!([hook.webhook("v.example.com")])).await;
    let path = format!("{CONFIG_MAPS}/x");
    let merge = "application/merge-patch+json";
    let denied = "admission webhook \"v.example.com\" denied the request without explanation";
    for (method, path, body) in [
        ("PATCH", path.as_str(), r#"{"data": {"a": "d"}}"#),
        ("DELETE", &path, "{}"),
        ("DELETE", CONFIG_MAPS, "{}"),
    ] {
        let media = if method == "PATCH" { merge } else { "application/json" };
        let (code, refused) = typed(&app, method, path, media, body).await;
        assert_eq!((code.as_u16(), &refused["message"]), (400, &json!(denied)), "{method}");
    }
    assert_eq!(call(&app, "GET", &path, "").await.1["data"]["a"], "b");
}

#[tokio::test]
async fn updates_are_mutated_and_keep_the_fields_of_the_server() {
    let app = app().await;
    let (_, made) = call(&app, "POST", CONFIG_MAPS, &config_map("x")).await;
    let hook = Hook::start(|review| {
        patch(
            review,
            &json!([{"op": "replace", "path": "/data/a", "value": "of the webhook"},
            {"op": "replace", "path": "/metadata/creationTimestamp", "value": "2000-01-01T00:00:00Z"},
            {"op": "add", "path": "/metadata/deletionTimestamp", "value": "2000-01-01T00:00:00Z"}]),
        )
    })
    .await;
    configure(&app, MUTATING, "m", json!([hook.webhook("m.example.com")])).await;
    let path = format!("{CONFIG_MAPS}/x");
    let (code, next) =
        typed(&app, "PATCH", &path, "application/merge-patch+json", r#"{"data": {"c": "d"}}"#).await;
    assert_eq!((code.as_u16(), &next["data"]), (200, &json!({"a": "of the webhook", "c": "d"})), "{next}");
    assert_eq!(next["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
    assert_eq!(next["metadata"].get("deletionTimestamp"), None);
    let (code, refused) = call(&app, "DELETE", &path, "").await;
    let why = "Internal error occurred: admission webhook \"m.example.com\" attempted to modify the object, which is not \
               supported for this operation";
    assert_eq!((code.as_u16(), &refused["message"]), (500, &json!(why)));
}

#[tokio::test]
async fn requests_of_the_node_pass_without_webhooks() {
    let server = server().await;
    let app = server.router_as(Identity::admin());
    let hook = Hook::start(|_| StatusCode::BAD_GATEWAY.into_response()).await;
    everything(&app, &hook).await;
    let node = server.router_of_node(Identity::admin());
    assert_eq!(call(&node, "POST", CONFIG_MAPS, &config_map("x")).await.0, 201);
    assert_eq!(call(&app, "POST", CONFIG_MAPS, &config_map("y")).await.0, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespace_that_is_deleted_during_a_call_gets_no_object() {
    let server = server().await;
    let app = server.router_as(Identity::admin());
    let place = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    assert_eq!(call(&app, "POST", "/api/v1/namespaces", &place.to_string()).await.0, 201);
    let (asked, called) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let hook = Hook::start(move |review| {
        asked.send(()).unwrap();
        // The webhook answers after the namespace is deleted. It runs in a thread that may block.
        tokio::task::block_in_place(|| released.lock().unwrap().recv().unwrap());
        allow(review)
    });
    let hook = hook.await;
    configure(&app, VALIDATING, "v", json!([hook.webhook("v.example.com")])).await;
    let (creator, body) = (app.clone(), config_map("x"));
    let created =
        tokio::spawn(async move { call(&creator, "POST", "/api/v1/namespaces/n/configmaps", &body).await });
    tokio::task::spawn_blocking(move || called.recv().unwrap()).await.unwrap();
    assert_eq!(call(&app, "DELETE", "/api/v1/namespaces/n", "").await.0, 200);
    release.send(()).unwrap();
    let (code, refused) = created.await.unwrap();
    assert!(code == 403 && refused["message"].as_str().unwrap().contains("is being terminated"), "{refused}");
}

#[tokio::test]
async fn options_of_a_delete_are_shown() {
    let app = app().await;
    let hook = Hook::start(allow).await;
    let (code, made) = call(&app, "POST", CONFIG_MAPS, &config_map("x")).await;
    assert_eq!(code, 201, "{made}");
    configure(&app, VALIDATING, "v", json!([hook.webhook("v.example.com")])).await;
    let uid = &made["metadata"]["uid"];
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 5,
        "propagationPolicy": "Orphan", "preconditions": {"uid": uid}});
    let (code, gone) = call(&app, "DELETE", &format!("{CONFIG_MAPS}/x"), &options.to_string()).await;
    assert_eq!(code, 200, "{gone}");
    let shown = &hook.received()[0]["request"]["options"];
    let expected = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 5,
        "propagationPolicy": "Orphan", "preconditions": {"uid": uid}});
    assert_eq!(shown, &expected);
}
