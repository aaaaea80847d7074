//! Reviews that webhooks receive, and the effect of their answers.

use super::*;

#[tokio::test]
async fn mutated_object_is_validated_and_stored() {
    let app = app().await;
    let mutating = Hook::start(|review| {
        patch(
            review,
            &json!([{"op": "add", "path": "/data/from", "value": review["object"]["metadata"]["name"]},
            {"op": "add", "path": "/unknown", "value": 1}]),
        )
    });
    let (mutating, validating) = (mutating.await, Hook::start(allow).await);
    configure(&app, MUTATING, "m", json!([mutating.webhook("m.example.com")])).await;
    configure(&app, VALIDATING, "v", json!([validating.webhook("v.example.com")])).await;
    let (code, made) =
        call(&app, "POST", &format!("{CONFIG_MAPS}?fieldManager=tester"), &config_map("x")).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["data"], json!({"a": "b", "from": "x"}));
    assert_eq!(made.get("unknown"), None);
    let received = mutating.received();
    let (review, request) = (&received[0], &received[0]["request"]);
    assert_eq!(
        (&review["apiVersion"], &review["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    assert_eq!(review["path"], "/admit?timeout=10s");
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    for (field, expected) in [
        ("kind", &kind),
        ("requestKind", &kind),
        ("resource", &resource),
        ("requestResource", &resource),
        ("name", &json!("x")),
        ("namespace", &json!("default")),
        ("operation", &json!("CREATE")),
        ("userInfo", &json!({"username": "admin", "groups": ["system:masters", "system:authenticated"]})),
        ("dryRun", &json!(false)),
        ("oldObject", &Value::Null),
        (
            "options",
            &json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "tester"}),
        ),
    ] {
        assert_eq!(&request[field], expected, "{field}");
    }
    assert_eq!(request["object"]["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(validating.received()[0]["request"]["object"]["data"], made["data"]);
    let (_, stored) = call(&app, "GET", &format!("{CONFIG_MAPS}/x"), "").await;
    assert_eq!(stored["data"], made["data"]);
}

#[tokio::test]
async fn denial_is_the_answer_and_warnings_are_headers() {
    let app = app().await;
    let hook = Hook::start(|review| {
        let denied = review["object"]["metadata"]["name"] == "bad";
        let status = json!({"code": 409, "reason": "NotFound", "message": "no bad names"});
        response(review, json!({"allowed": !denied, "status": status, "warnings": ["mind the gap"]}))
    })
    .await;
    configure(&app, VALIDATING, "v", json!([hook.webhook("v.example.com")])).await;
    let (code, refused) = call(&app, "POST", CONFIG_MAPS, &config_map("bad")).await;
    let message = "admission webhook \"v.example.com\" denied the request: no bad names";
    assert_eq!(
        (code.as_u16(), &refused["reason"], &refused["message"]),
        (409, &json!("NotFound"), &json!(message))
    );
    assert_eq!(call(&app, "GET", &format!("{CONFIG_MAPS}/bad"), "").await.0, 404);
    let request = Request::post(CONFIG_MAPS).header("content-type", "application/json");
    let request = request.body(Body::from(config_map("good"))).unwrap();
    let made = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
    assert_eq!(
        (made.status().as_u16(), &made.headers()["warning"]),
        (201, &"299 - \"mind the gap\"".parse().unwrap())
    );
}

#[tokio::test]
async fn dry_run_is_marked_and_stores_nothing() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    let mut webhook = hook.webhook("v.example.com");
    webhook["sideEffects"] = "NoneOnDryRun".into();
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    let (code, _) = call(&app, "POST", &format!("{CONFIG_MAPS}?dryRun=All"), &config_map("x")).await;
    assert_eq!(code, 201);
    let request = &hook.received()[0]["request"];
    assert_eq!((&request["dryRun"], &request["options"]["dryRun"]), (&json!(true), &json!(["All"])));
    assert_eq!(call(&app, "GET", &format!("{CONFIG_MAPS}/x"), "").await.0, 404);
}

#[tokio::test]
async fn selectors_and_conditions_choose_the_requests() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    let place = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "on", "labels": {"hooks": "on"}}});
    assert_eq!(call(&app, "POST", "/api/v1/namespaces", &place.to_string()).await.0, 201);
    for (change, expected) in [
        (json!({}), ["default/x", "on/x", "on/y"].as_slice()),
        (json!({"namespaceSelector": {"matchLabels": {"hooks": "on"}}}), &["on/x", "on/y"]),
        (
            json!({"objectSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}}),
            &["on/y"],
        ),
        (
            json!({"matchConditions": [
                {"name": "a", "expression": "object.metadata.name == 'x'"},
                {"name": "b", "expression": "request.namespace == 'default' && request.userInfo.username == 'admin'"}]}),
            &["default/x"],
        ),
    ] {
        let mut webhook = hook.webhook("v.example.com");
        webhook.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        configure(&app, VALIDATING, "v", json!([webhook])).await;
        for (namespace, name) in [("default", "x"), ("on", "x"), ("on", "y")] {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All");
            assert_eq!(call(&app, "POST", &path, &config_map(name)).await.0, 201);
        }
        let text = |review: &Value, field: &str| review["request"][field].as_str().unwrap().to_owned();
        let seen: Vec<String> = hook
            .received()
            .iter()
            .map(|review| format!("{}/{}", text(review, "namespace"), text(review, "name")))
            .collect();
        assert_eq!(seen, expected, "{change}");
        assert_eq!(call(&app, "DELETE", &format!("{VALIDATING}/v"), "").await.0, 200);
    }
}

#[tokio::test]
async fn equivalent_versions_are_converted_and_exact_ones_are_not() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    let old = "/apis/agents.x-k8s.io/v1alpha1/namespaces/default/sandboxes";
    let sandbox = |name: &str| {
        json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "Sandbox", "metadata": {"name": name},
            "spec": {"replicas": 0, "podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}}}})
        .to_string()
    };
    for (policy, expected) in [("Equivalent", 1), ("Exact", 0)] {
        let mut webhook = hook.webhook("v.example.com");
        webhook["matchPolicy"] = policy.into();
        webhook["rules"] = json!([{"operations": ["CREATE"], "apiGroups": ["agents.x-k8s.io"],
            "apiVersions": ["v1beta1"], "resources": ["sandboxes"]}]);
        configure(&app, VALIDATING, "v", json!([webhook])).await;
        assert_eq!(call(&app, "POST", old, &sandbox(&policy.to_lowercase())).await.0, 201);
        let received = hook.received();
        assert_eq!(received.len(), expected, "{policy}");
        if let [review] = received.as_slice() {
            let request = &review["request"];
            assert_eq!(request["kind"]["version"], "v1beta1");
            assert_eq!(request["requestKind"]["version"], "v1alpha1");
            assert_eq!(request["object"]["spec"]["operatingMode"], "Suspended");
        }
        assert_eq!(call(&app, "DELETE", &format!("{VALIDATING}/v"), "").await.0, 200);
    }
}

#[tokio::test]
async fn webhook_is_called_again_when_a_later_one_changes_the_object() {
    let app = app().await;
    let count = Hook::start(|review| {
        let data = &review["object"]["data"];
        let names = data.as_object().unwrap().len().to_string();
        patch(review, &json!([{"op": "add", "path": "/data/count", "value": names}]))
    })
    .await;
    let add =
        Hook::start(|review| patch(review, &json!([{"op": "add", "path": "/data/late", "value": "1"}])))
            .await;
    let mut first = count.webhook("a.example.com");
    first["reinvocationPolicy"] = "IfNeeded".into();
    configure(&app, MUTATING, "m", json!([first, add.webhook("b.example.com")])).await;
    let (_, made) = call(&app, "POST", CONFIG_MAPS, &config_map("x")).await;
    assert_eq!(made["data"], json!({"a": "b", "count": "3", "late": "1"}));
    assert_eq!((count.received().len(), add.received().len()), (2, 1));
}

#[tokio::test]
async fn service_is_reached_through_the_pods_behind_it() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    let mut webhook = hook.webhook("v.example.com");
    webhook["clientConfig"] = json!({"service": {"name": "hook", "namespace": "default", "path": "/check"}, "caBundle": hook.authority});
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    let failed = |refused: &Value, why: &str| {
        let url = "https://hook.default.svc:443/check?timeout=10s";
        let expected = format!(
            "Internal error occurred: failed calling webhook \"v.example.com\": failed to call webhook: Post \"{url}\": {why}"
        );
        assert_eq!(refused["message"], expected);
    };
    failed(&call(&app, "POST", CONFIG_MAPS, &config_map("x")).await.1, "service \"hook\" not found");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"selector": {"app": "hook"}, "ports": [{"port": 443, "targetPort": hook.address.port()}]}});
    assert_eq!(call(&app, "POST", "/api/v1/namespaces/default/services", &service.to_string()).await.0, 201);
    failed(
        &call(&app, "POST", CONFIG_MAPS, &config_map("x")).await.1,
        "no endpoints available for service \"hook\"",
    );
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hook", "labels": {"app": "hook"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(call(&app, "POST", "/api/v1/namespaces/default/pods", &pod.to_string()).await.0, 201);
    // As the controller of endpoints writes them.
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "hook"}, "subsets": [{
        "addresses": [{"ip": "10.0.0.1", "targetRef": {"kind": "Pod", "name": "hook", "namespace": "default"}}],
        "ports": [{"port": hook.address.port()}]}]});
    assert_eq!(
        call(&app, "POST", "/api/v1/namespaces/default/endpoints", &endpoints.to_string()).await.0,
        201
    );
    let (code, made) = call(&app, "POST", CONFIG_MAPS, &config_map("x")).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(hook.received()[0]["path"], "/check?timeout=10s");
}
