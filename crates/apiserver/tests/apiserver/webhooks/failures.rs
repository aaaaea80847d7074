//! Calls that fail, and answers that are refused.

use super::*;

/// Function of a webhook.
type Answer = fn(&Value) -> Response;

/// Creates a ConfigMap and returns the code and the message.
async fn create(app: &Router, name: &str) -> (u16, String) {
    let (code, answer) = call(app, "POST", CONFIG_MAPS, &config_map(name)).await;
    (code.as_u16(), answer["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn failed_calls_follow_the_failure_policy() {
    let answers: [(&str, Answer); 7] = [
        ("an error on the server (\"oops\")", |_| {
            (StatusCode::INTERNAL_SERVER_ERROR, "oops").into_response()
        }),
        ("the server could not find the requested resource", |_| StatusCode::NOT_FOUND.into_response()),
        ("redirects are not followed", |_| {
            (StatusCode::TEMPORARY_REDIRECT, [("location", "https://127.0.0.1:1/")]).into_response()
        }),
        ("json parse error", |_| "no review".into_response()),
        ("received invalid webhook response: webhook response was absent", |_| {
            axum::Json(json!({})).into_response()
        }),
        ("received invalid webhook response: expected response.uid=", |_| {
            response(&json!({"uid": "other"}), json!({"allowed": true}))
        }),
        ("the answer has more than 3145728 bytes", |review| {
            response(review, json!({"allowed": true, "warnings": ["x".repeat(4 << 20)]}))
        }),
    ];
    let app = app().await;
    for (why, answer) in answers {
        let hook = Hook::start(answer).await;
        let mut webhook = hook.webhook("v.example.com");
        configure(&app, VALIDATING, "v", json!([webhook])).await;
        let (code, message) = create(&app, "x").await;
        let failing = "Internal error occurred: failed calling webhook \"v.example.com\": ";
        assert_eq!(code, 500, "{message}");
        assert!(message.starts_with(failing) && message.contains(why), "{why}: {message}");
        assert_eq!(call(&app, "DELETE", &format!("{VALIDATING}/v"), "").await.0, 200);
        webhook["failurePolicy"] = "Ignore".into();
        configure(&app, VALIDATING, "v", json!([webhook])).await;
        assert_eq!(create(&app, "x").await.0, 201);
        assert_eq!(hook.received().len(), 2);
        assert_eq!(call(&app, "DELETE", &format!("{VALIDATING}/v"), "").await.0, 200);
        assert_eq!(call(&app, "DELETE", &format!("{CONFIG_MAPS}/x"), "").await.0, 200);
    }
}

#[tokio::test]
async fn server_of_another_authority_is_not_trusted() {
    let (app, hook, other) = (app().await, Hook::start(allow).await, Hook::start(allow).await);
    let mut webhook = hook.webhook("v.example.com");
    webhook["clientConfig"]["caBundle"] = other.authority.as_str().into();
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    let (code, message) = create(&app, "x").await;
    assert!(code == 500 && message.contains("tls: invalid peer certificate"), "{message}");
    webhook["clientConfig"]["caBundle"] = "".into();
    assert_eq!(call(&app, "DELETE", &format!("{VALIDATING}/v"), "").await.0, 200);
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    let (code, message) = create(&app, "x").await;
    assert!(code == 500 && message.contains("caBundle is empty"), "{message}");
    assert_eq!(hook.received(), Vec::<Value>::new());
}

#[tokio::test]
async fn webhook_that_does_not_answer_times_out() {
    let app = app().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = Hook::start(allow).await;
    let mut webhook = hook.webhook("v.example.com");
    webhook["clientConfig"]["url"] = format!("https://{}", listener.local_addr().unwrap()).into();
    webhook["timeoutSeconds"] = 1.into();
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    let (code, message) = create(&app, "x").await;
    assert!(code == 500 && message.ends_with("/?timeout=1s\": context deadline exceeded"), "{message}");
}

#[tokio::test]
async fn patches_that_do_not_fit_are_refused() {
    let app = app().await;
    let patches = [
        (json!([{"op": "replace", "path": "/metadata/name", "value": "y"}]), "it changes the type, the name"),
        (
            json!([{"op": "replace", "path": "/metadata/namespace", "value": "y"}]),
            "it changes the type, the name",
        ),
        (json!([{"op": "replace", "path": "/kind", "value": "Secret"}]), "it changes the type, the name"),
        (json!([{"op": "remove", "path": "/none"}]), "cannot be applied"),
        (
            json!([{"op": "add", "path": "/data", "value": 1}]),
            "json: data: must be of type object, got integer",
        ),
        (json!({"op": "add"}), "error decoding patch"),
        (
            json!([{"op": "add", "path": "/data/x", "value": "x".repeat(2 << 20)},
            {"op": "copy", "from": "/data/x", "path": "/data/y"}]),
            "the object would have more than 3145728 bytes",
        ),
    ];
    for (change, why) in patches {
        let hook = Hook::start(move |review| patch(review, &change)).await;
        configure(&app, MUTATING, "m", json!([hook.webhook("m.example.com")])).await;
        let (code, message) = create(&app, "x").await;
        assert!(code == 500 && message.contains(why), "{why}: {message}");
        assert_eq!(call(&app, "DELETE", &format!("{MUTATING}/m"), "").await.0, 200);
    }
    let hook =
        Hook::start(|review| patch(review, &json!([{"op": "add", "path": "/data/a b", "value": "c"}]))).await;
    configure(&app, MUTATING, "m", json!([hook.webhook("m.example.com")])).await;
    let (code, message) = create(&app, "x").await;
    assert!(code == 422 && message.contains("a valid config key must consist of"), "{message}");
}

#[tokio::test]
async fn condition_that_cannot_be_evaluated_refuses_the_request() {
    let (app, hook) = (app().await, Hook::start(allow).await);
    let mut webhook = hook.webhook("v.example.com");
    webhook["matchConditions"] = json!([{"name": "a", "expression": "object.spec.none == 1"}]);
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    let (code, message) = create(&app, "x").await;
    let start = "configmaps \"x\" is forbidden: expression 'object.spec.none == 1' resulted in error: ";
    assert!(code == 403 && message.starts_with(start), "{message}");
    webhook["matchConditions"][0]["expression"] =
        "object.data.map(a, object.data.map(b, object)).size() > 0".into();
    webhook["failurePolicy"] = "Ignore".into();
    assert_eq!(call(&app, "DELETE", &format!("{VALIDATING}/v"), "").await.0, 200);
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    assert_eq!(create(&app, "x").await.0, 201);
}

#[tokio::test]
async fn webhook_for_everything_does_not_lock_its_configuration() {
    let (app, hook) = (app().await, Hook::start(|_| StatusCode::BAD_GATEWAY.into_response()).await);
    let mut webhook = hook.webhook("v.example.com");
    webhook["rules"] =
        json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    configure(&app, MUTATING, "m", json!([webhook])).await;
    assert_eq!(create(&app, "x").await.0, 500);
    for path in [format!("{MUTATING}/m"), format!("{VALIDATING}/v")] {
        assert_eq!(call(&app, "DELETE", &path, "").await.0, 200);
    }
    assert_eq!(create(&app, "x").await.0, 201);
    assert_eq!(hook.received().len(), 1);
}

#[tokio::test]
async fn webhook_that_does_not_answer_leaves_places_to_others_and_is_never_left_out() {
    let app = app().await;
    let hook = Hook::start(allow).await;
    // It accepts connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let of = |name: &str| json!({"matchLabels": {"app": name}});
    let mut slow = hook.webhook("slow.example.com");
    slow["clientConfig"]["url"] = format!("https://{address}/").into();
    (slow["objectSelector"], slow["timeoutSeconds"], slow["failurePolicy"]) =
        (of("slow"), 30.into(), "Ignore".into());
    let mut quick = hook.webhook("quick.example.com");
    (quick["objectSelector"], quick["timeoutSeconds"]) = (of("quick"), 1.into());
    configure(&app, VALIDATING, "v", json!([slow, quick])).await;
    let waiting: Vec<_> = (0..200)
        .map(|number| {
            let (app, mut object) =
                (app.clone(), serde_json::from_str::<Value>(&config_map("slow")).unwrap());
            object["metadata"]["name"] = format!("slow-{number}").into();
            tokio::spawn(async move { call(&app, "POST", CONFIG_MAPS, &object.to_string()).await })
        })
        .collect();
    // As many as can be have connected.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let (code, made) = call(&app, "POST", CONFIG_MAPS, &config_map("quick")).await;
    assert_eq!(code, 201, "{made}");
    assert!(waiting.iter().all(|task| !task.is_finished()), "none passes before the webhook had its time");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const KINDS: &str = "/apis/example.com/v1/namespaces/default/kinds";

/// Definition of [`KINDS`].
fn definition(finalizers: &Value) -> String {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "kinds.example.com", "finalizers": finalizers}, "spec": {"group": "example.com",
            "scope": "Namespaced", "names": {"plural": "kinds", "kind": "Kind"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]}});
    definition.to_string()
}

/// One of [`KINDS`].
fn object(name: &str) -> String {
    json!({"apiVersion": "example.com/v1", "kind": "Kind", "metadata": {"name": name}, "a": 1}).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_whose_definition_is_deleted_meanwhile_is_not_stored() {
    let definition = definition(&json!([]));
    let app = app().await;
    let deleting = app.clone();
    let hook = Hook::start(move |review| {
        if review["operation"] != "CREATE" || review["name"] == "b" {
            let path = format!("{DEFINITIONS}/kinds.example.com");
            let deleted = call(&deleting, "DELETE", &path, "");
            let deleted = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(deleted));
            assert_eq!(deleted.0, 200);
        }
        allow(review)
    })
    .await;
    let mut webhook = hook.webhook("v.example.com");
    webhook["rules"][0]["apiGroups"] = json!(["example.com"]);
    webhook["rules"][0]["resources"] = json!(["kinds"]);
    configure(&app, VALIDATING, "v", json!([webhook])).await;
    assert_eq!(call(&app, "POST", DEFINITIONS, &definition).await.0, 201);
    assert_eq!(call(&app, "POST", KINDS, &object("a")).await.0, 201);
    let merge = "application/merge-patch+json";
    let (code, answer) = typed(&app, "PATCH", &format!("{KINDS}/a"), merge, r#"{"a": 2}"#).await;
    assert_eq!(code, 404, "{answer}");
    assert_eq!(call(&app, "POST", DEFINITIONS, &definition).await.0, 201);
    let (code, answer) = call(&app, "POST", KINDS, &object("b")).await;
    assert_eq!((code.as_u16(), &answer["reason"]), (404, &json!("NotFound")), "{answer}");
    assert_eq!(call(&app, "POST", DEFINITIONS, &definition).await.0, 201);
    let (_, list) = call(&app, "GET", KINDS, "").await;
    assert_eq!(list["items"], json!([]), "{list}");
}

#[tokio::test]
async fn objects_of_a_definition_go_with_its_last_finalizer_and_those_of_the_next_one_stay() {
    let definition = definition(&json!(["example.com/held"]));
    let app = app().await;
    assert_eq!(call(&app, "POST", DEFINITIONS, &definition).await.0, 201);
    assert_eq!(call(&app, "POST", KINDS, &object("old")).await.0, 201);
    let path = format!("{DEFINITIONS}/kinds.example.com");
    assert_eq!(call(&app, "DELETE", &path, "").await.0, 200);
    let merge = "application/merge-patch+json";
    let released = typed(&app, "PATCH", &path, merge, r#"{"metadata": {"finalizers": null}}"#).await;
    assert_eq!(released.0, 200, "{released:?}");
    assert_eq!(call(&app, "POST", DEFINITIONS, &definition).await.0, 201);
    assert_eq!(call(&app, "POST", KINDS, &object("new")).await.0, 201);
    let (_, list) = call(&app, "GET", KINDS, "").await;
    let names: Vec<&Value> =
        list["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["new"]);
}
