//! The API as bytes: what clients of other languages see.

mod access;
mod bodies;
mod objects;
mod owners;
mod pod_snapshots;
mod reads;
mod snapshots;
mod templates;

use axum::Router;
use axum::body::Body;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hutch_apiserver::{ApiServer, BODY_BYTES, Config, Identity};
use serde_json::{Value, json};
use tower::ServiceExt;

const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn server() -> ApiServer {
    ApiServer::open(Config { default_node: Some("hutch".into()), ..Config::default() }).await.unwrap()
}

async fn app() -> Router {
    server().await.router_as(Identity::admin())
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> (StatusCode, String) {
    let code = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) async fn call(app: &Router, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
    typed(app, method, path, "application/json", body).await
}

pub(crate) async fn typed(
    app: &Router,
    method: &str,
    path: &str,
    media: &str,
    body: &str,
) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let response = send(app, request.body(Body::from(body.to_owned())).unwrap()).await;
    let (code, text) = text(response).await;
    (code, serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text)))
}

async fn get_as(app: &Router, path: &str, accept: &str) -> (StatusCode, Value) {
    let request = Request::get(path).header("accept", accept).body(Body::empty()).unwrap();
    let (code, text) = text(send(app, request).await).await;
    (code, serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text)))
}

fn config_map(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
        .to_string()
}

fn sandbox(name: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "hutch/host"}]}}},
    })
}

/// The next line of a watch.
async fn line(
    body: &mut (impl futures::Stream<Item = Result<bytes::Bytes, axum::Error>> + Unpin),
    rest: &mut Vec<u8>,
) -> Value {
    loop {
        if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            return serde_json::from_slice(&line).unwrap();
        }
        let more = tokio::time::timeout(std::time::Duration::from_secs(5), body.next());
        rest.extend_from_slice(&more.await.expect("an event in time").expect("the watch continues").unwrap());
    }
}

struct Events {
    body: axum::body::BodyDataStream,
    rest: Vec<u8>,
}

impl Events {
    async fn of(app: &Router, path: &str, accept: &str) -> Events {
        let request = Request::get(path).header("accept", accept).body(Body::empty()).unwrap();
        let response = send(app, request).await;
        assert_eq!(response.status(), 200);
        Events { body: response.into_body().into_data_stream(), rest: Vec::new() }
    }

    async fn next(&mut self) -> Value {
        line(&mut self.body, &mut self.rest).await
    }

    /// Type, name.
    async fn brief(&mut self) -> (String, String) {
        let event = self.next().await;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}
