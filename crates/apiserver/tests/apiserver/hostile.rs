//! Clients that ask for more than there can be.

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hutch_apiserver::{ApiServer, Config, Identity};
use serde_json::{Value, json};
use tower::ServiceExt;

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn app() -> Router {
    let server = ApiServer::open(Config { default_node: Some("hutch".into()), ..Config::default() });
    server.await.unwrap().router_as(Identity::admin())
}

async fn call(app: &Router, method: &str, path: &str, media: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let response = app.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let code = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

fn pod(name: &str, grace: i64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": grace,
        "containers": [{"name": "a", "image": "hutch/pause"}]}})
}

#[tokio::test]
async fn a_grace_beyond_the_end_of_time_ends_with_it() {
    let app = app().await;
    let asked = json!({"gracePeriodSeconds": i64::MAX});
    let own = json!({});
    for (name, grace, query, options) in [
        ("asked", 1, "", &asked),
        ("parameter", 1, "?gracePeriodSeconds=9223372036854775807", &own),
        ("own", i64::MAX, "", &own),
    ] {
        let (code, said) = call(&app, "POST", PODS, "application/json", &pod(name, grace)).await;
        assert_eq!(code, 201, "{said}");
        let path = format!("{PODS}/{name}");
        let running = json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}});
        let media = "application/merge-patch+json";
        assert_eq!(call(&app, "PATCH", &format!("{path}/status"), media, &running).await.0, 200);
        let (code, going) =
            call(&app, "DELETE", &format!("{path}{query}"), "application/json", options).await;
        let metadata = &going["metadata"];
        assert_eq!(
            (code.as_u16(), &metadata["deletionGracePeriodSeconds"]),
            (200, &json!(i64::MAX)),
            "{going}"
        );
        assert!(metadata["deletionTimestamp"].as_str().unwrap().starts_with("9999-12-"), "{going}");
        // It can be shortened.
        let (code, _) =
            call(&app, "DELETE", &path, "application/json", &json!({"gracePeriodSeconds": 0})).await;
        assert_eq!(code, 200);
        assert_eq!(call(&app, "GET", &path, "application/json", &json!({})).await.0, 404);
    }
}

#[tokio::test]
async fn watch_with_the_largest_timeout_begins() {
    let app = app().await;
    for seconds in ["9223372036854775806", "9223372036854775807", "31622400"] {
        let path = format!("{PODS}?watch=true&timeoutSeconds={seconds}");
        let response = app.clone().oneshot(Request::get(&path).body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200, "{seconds}");
    }
}

#[tokio::test]
async fn continue_token_opens_only_the_requested_collection() {
    use base64::Engine;
    let app = app().await;
    for namespace in ["a", "default", "z"] {
        let names = json!({"metadata": {"name": namespace}});
        call(&app, "POST", "/api/v1/namespaces", "application/json", &names).await;
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let made =
            call(&app, "POST", &path, "application/json", &json!({"metadata": {"name": namespace}})).await;
        assert_eq!(made.0, 201, "{made:?}");
    }
    let served = ["a/a", "default/b", "z/z", "zz", "/zz", "\0", "\u{10ffff}"].map(|after| (after, 200));
    let refused = ["", "a/", "default/", "../a/a", "a/../a", "./a", "a//a", "/"].map(|after| (after, 400));
    for (after, wanted) in served.into_iter().chain(refused) {
        let token = json!({"v": "hutch/v1", "rv": 1, "start": after}).to_string();
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
        let path = format!("/api/v1/namespaces/default/configmaps?limit=5&continue={token}");
        let (code, list) = call(&app, "GET", &path, "application/json", &json!({})).await;
        assert_eq!(code, wanted, "{after:?}: {list}");
        let items = list["items"].as_array();
        assert!(
            items.into_iter().flatten().all(|item| item["metadata"]["namespace"] == "default"),
            "{after:?}: {list}"
        );
    }
}

#[tokio::test]
async fn an_escape_has_two_digits_and_no_sign() {
    let app = app().await;
    for (name, shown) in [("%61", Some("a")), ("%+1", None), ("%1", None), ("%", None), ("%zz", None)] {
        let request = Request::get(format!("{PODS}/{name}")).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 404, "{name}");
        let text = response.into_body().collect().await.unwrap().to_bytes();
        let said: Value = serde_json::from_slice(&text).unwrap_or_default();
        assert_eq!(said["details"]["name"].as_str(), shown, "{name}: {said}");
    }
}
