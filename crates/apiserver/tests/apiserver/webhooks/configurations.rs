//! The objects themselves.

use super::*;

#[tokio::test]
async fn configuration_gets_defaults_and_is_served_like_other_kinds() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    let mut service = hook.webhook("b.example.com");
    service["clientConfig"] = json!({"service": {"name": "s", "namespace": "n"}, "caBundle": hook.authority});
    let (code, made) = configured(&app, MUTATING, "m", json!([hook.webhook("a.example.com"), service])).await;
    assert_eq!(code, 201, "{made}");
    let first = &made["webhooks"][0];
    for (field, value) in [
        ("failurePolicy", json!("Fail")),
        ("matchPolicy", json!("Equivalent")),
        ("timeoutSeconds", json!(10)),
        ("reinvocationPolicy", json!("Never")),
        ("namespaceSelector", json!({})),
        ("objectSelector", json!({})),
    ] {
        assert_eq!(first[field], value, "{field}");
    }
    assert_eq!(first["rules"][0]["scope"], "*");
    assert_eq!(made["webhooks"][1]["clientConfig"]["service"]["port"], 443);
    assert_eq!(made["metadata"]["generation"], 1);
    let change = json!({"webhooks": [{"name": "a.example.com", "failurePolicy": "Ignore"}]}).to_string();
    let path = format!("{MUTATING}/m");
    let (code, changed) =
        typed(&app, "PATCH", &path, "application/strategic-merge-patch+json", &change).await;
    assert_eq!((code.as_u16(), &changed["metadata"]["generation"]), (200, &json!(2)), "{changed}");
    assert_eq!(changed["webhooks"].as_array().unwrap().len(), 2);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let request = Request::get(&path).header("accept", accept).body(Body::empty()).unwrap();
    let table = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
    let table = table.into_body().collect().await.unwrap().to_bytes();
    let table: Value = serde_json::from_slice(&table).unwrap();
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..2], [json!("m"), json!(2)]);
    let (_, found) = call(&app, "GET", "/apis/admissionregistration.k8s.io/v1", "").await;
    assert_eq!(
        found["resources"]
            .as_array()
            .map(|all| all.iter().any(|one| one["name"] == "mutatingwebhookconfigurations")),
        Some(true)
    );
    assert_eq!(call(&app, "DELETE", MUTATING, "").await.0, 200);
    assert_eq!(call(&app, "GET", &path, "").await.0, 404);
    let user = server().await.router_as(Identity::new("user", &[]));
    assert_eq!(configured(&user, MUTATING, "m", json!([])).await.0, 403);
}

/// Each change of a valid webhook, and the cause of its refusal.
fn refusals() -> Vec<(Value, &'static str)> {
    let rule = |change: Value| {
        let mut rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
        rule.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"rules": [rule]})
    };
    let url = |url: &str| json!({"clientConfig": {"url": url}});
    let service = |service: Value| json!({"clientConfig": {"service": service}});
    let condition = |name: &str, text: &str| json!({"matchConditions": [{"name": name, "expression": text}]});
    vec![
        (json!({"name": ""}), "webhooks[0].name: Required value"),
        (json!({"name": "a.b"}), "should be a domain with at least three segments separated by dots"),
        (
            json!({"sideEffects": null}),
            "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
        ),
        (
            json!({"sideEffects": "Some"}),
            "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
        ),
        (json!({"failurePolicy": "x"}), "supported values: \"Fail\", \"Ignore\""),
        (json!({"matchPolicy": "x"}), "supported values: \"Equivalent\", \"Exact\""),
        (json!({"reinvocationPolicy": "x"}), "supported values: \"IfNeeded\", \"Never\""),
        (
            json!({"timeoutSeconds": 31}),
            "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
        ),
        (json!({"admissionReviewVersions": []}), "webhooks[0].admissionReviewVersions: Required value"),
        (json!({"admissionReviewVersions": ["v1beta1"]}), "must include at least one of v1"),
        (
            json!({"clientConfig": {}}),
            "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
        ),
        (
            url("http://127.0.0.1/"),
            "'https' is the only allowed URL scheme; desired format: https://host[/path]",
        ),
        (url("https://u:p@127.0.0.1/"), "user information is not permitted in the URL"),
        (url("https://127.0.0.1/?a=b"), "query parameters are not permitted in the URL"),
        (url("https://127.0.0.1/#a"), "fragments are not permitted in the URL"),
        (url("https://other.example/"), "--webhook-host does not name other.example:443"),
        (
            json!({"clientConfig": {"url": "https://127.0.0.1/", "caBundle": "eA=="}}),
            "unable to load root certificates",
        ),
        (service(json!({"namespace": "n"})), "webhooks[0].clientConfig.service.name: Required value"),
        (
            service(json!({"namespace": "n", "name": "s", "port": 0})),
            "port is not valid: must be between 1 and 65535",
        ),
        (service(json!({"namespace": "n", "name": "s", "path": "a//b"})), "must start with a '/'"),
        (service(json!({"namespace": "n", "name": "s", "path": "/a//b"})), "segment[1] may not be empty"),
        (rule(json!({"operations": []})), "webhooks[0].rules[0].operations: Required value"),
        (
            rule(json!({"operations": ["GET"]})),
            "webhooks[0].rules[0].operations[0]: Unsupported value: \"GET\"",
        ),
        (
            rule(json!({"operations": ["*", "CREATE"]})),
            "if '*' is present, must not specify other operations",
        ),
        (rule(json!({"apiGroups": []})), "webhooks[0].rules[0].apiGroups: Required value"),
        (rule(json!({"apiVersions": ["*", "v1"]})), "if '*' is present, must not specify other API versions"),
        (
            rule(json!({"resources": ["*/*", "pods"]})),
            "if '*/*' is present, must not specify other resources",
        ),
        (
            rule(json!({"resources": ["pods/*", "pods/log"]})),
            "if 'pods/*' is present, must not specify pods/log",
        ),
        (rule(json!({"resources": ["*", "pods"]})), "must not specify other resources without subresources"),
        (rule(json!({"scope": "All"})), "supported values: \"*\", \"Cluster\", \"Namespaced\""),
        (
            json!({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "objectSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ),
        (
            json!({"namespaceSelector": {"matchLabels": {"a b": "c"}}}),
            "webhooks[0].namespaceSelector.matchLabels",
        ),
        (condition("", "true"), "webhooks[0].matchConditions[0].name: Required value"),
        (condition("a", ""), "webhooks[0].matchConditions[0].expression: Required value"),
        (condition("a", "objekt.x"), "compilation failed: undeclared reference to 'objekt'"),
        (condition("a", "authorizer.x"), "'authorizer' is not supported by this server"),
    ]
}

#[tokio::test]
async fn invalid_configurations_are_refused_with_their_field() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    for (change, cause) in refusals() {
        let mut webhook = hook.webhook("a.example.com");
        for (field, value) in change.as_object().unwrap() {
            webhook[field] = value.clone();
        }
        let (code, refused) = configured(&app, MUTATING, "m", json!([webhook])).await;
        let message = refused["message"].as_str().unwrap();
        assert_eq!(code, 422, "{change}: {message}");
        assert!(message.contains(cause), "{change}: {message}");
    }
    let twice = json!([hook.webhook("a.example.com"), hook.webhook("a.example.com")]);
    let (_, refused) = configured(&app, VALIDATING, "v", twice).await;
    assert!(
        refused["message"].as_str().unwrap().contains("webhooks[1].name: Duplicate value: \"a.example.com\"")
    );
    let many = (0..65).map(|number| hook.webhook(&format!("a{number}.example.com"))).collect::<Value>();
    let (_, refused) = configured(&app, VALIDATING, "v", many).await;
    assert!(refused["message"].as_str().unwrap().contains("webhooks: Too many: 65"), "{refused}");
}

#[tokio::test]
async fn configuration_for_a_host_that_is_not_allowed_any_more_can_be_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { data: Some(folder.path().into()), ..Config::default() };
    let server = ApiServer::open(config.clone()).await.unwrap();
    server.set_connector(Arc::new(Loopback));
    let hook = Hook::start(allow).await;
    let app = server.router_as(Identity::admin());
    configure(&app, VALIDATING, "v", json!([hook.webhook("v.example.com")])).await;
    let (path, merge) = (format!("{VALIDATING}/v"), "application/merge-patch+json");
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}}).to_string();
    assert_eq!(typed(&app, "PATCH", &path, merge, &held).await.0, 200);
    server.close().await;
    drop((app, server));

    let app = ApiServer::open(config).await.unwrap().router_as(Identity::admin());
    let (code, refused) = call(&app, "POST", CONFIG_MAPS, &config_map("x")).await;
    let message = refused["message"].as_str().unwrap();
    assert!(code == 500 && message.contains("--webhook-host does not name 127.0.0.1"), "{message}");
    let mut changed = hook.webhook("v.example.com");
    changed["timeoutSeconds"] = 5.into();
    let (code, _) = typed(&app, "PATCH", &path, merge, &json!({"webhooks": [changed]}).to_string()).await;
    assert_eq!(code, 422);
    assert_eq!(call(&app, "DELETE", &path, "").await.0, 200);
    assert_eq!(typed(&app, "PATCH", &path, merge, r#"{"metadata": {"finalizers": null}}"#).await.0, 200);
    assert_eq!(call(&app, "GET", &path, "").await.0, 404);
}
