//! Webhooks of admission, called over TLS.

mod calls;
mod configurations;
mod failures;
mod operations;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hutch_apiserver::{ApiServer, Config, Connector, Identity};
use hutch_kubelet::{ByteReader, Duplex, ExecRequest, Kubelet, LogRequest, PodId, Session, StreamError};
use hutch_serve::{Authority, Listener, Shutdown};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::raw::{CONFIG_MAPS, call, typed};

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A webhook: an HTTPS server, until it is dropped.
struct Hook {
    address: SocketAddr,
    authority: String,
    received: Arc<Mutex<Vec<Value>>>,
    shutdown: Shutdown,
    _folder: tempfile::TempDir,
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

impl Hook {
    /// Starts a webhook that answers each request of a review.
    async fn start(answer: impl Fn(&Value) -> Response + Clone + Send + Sync + 'static) -> Hook {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path()).unwrap();
        let tls = authority.server_config(&["hook.default.svc".to_owned()]).unwrap();
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let (address, shutdown) = (listener.address(), Shutdown::new());
        let received = Arc::<Mutex<Vec<Value>>>::default();
        let records = received.clone();
        let app = Router::new().fallback(move |request: Request<Body>| async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let answered = answer(&review["request"]);
            review["path"] = head.uri.to_string().into();
            records.lock().unwrap().push(review);
            answered
        });
        tokio::spawn(listener.serve_tls(app, tls, shutdown.clone()));
        let authority = STANDARD.encode(authority.certificate_pem());
        Hook { address, authority, received, shutdown, _folder: folder }
    }

    /// The reviews that were received since the last time.
    fn received(&self) -> Vec<Value> {
        std::mem::take(&mut *self.received.lock().unwrap())
    }

    fn by_url(&self) -> Value {
        json!({"url": format!("https://{}/admit", self.address), "caBundle": self.authority})
    }

    /// A webhook for all requests about ConfigMaps.
    fn webhook(&self, name: &str) -> Value {
        json!({"name": name, "clientConfig": self.by_url(), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]})
    }
}

fn response(review: &Value, mut response: Value) -> Response {
    response["uid"] = review["uid"].clone();
    axum::Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
        .into_response()
}

fn allow(review: &Value) -> Response {
    response(review, json!({"allowed": true}))
}

fn patch(review: &Value, patch: &Value) -> Response {
    let patch = STANDARD.encode(patch.to_string());
    response(review, json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
}

/// Connects to loopback.
struct Loopback;

impl Connector for Loopback {
    fn allows(&self, host: &str, _: u16) -> bool {
        host == "127.0.0.1"
    }

    fn connect<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, std::io::Result<Box<dyn Duplex>>> {
        async move { Ok(Box::new(TcpStream::connect((host, port)).await?) as Box<dyn Duplex>) }.boxed()
    }
}

/// A node whose Pods listen on loopback.
struct Node;

fn nothing<T>() -> BoxFuture<'static, Result<T, StreamError>> {
    async { Err(StreamError::NotFound("this node only has ports".into())) }.boxed()
}

impl Kubelet for Node {
    fn exec<'a>(&'a self, _: &'a PodId, _: ExecRequest) -> BoxFuture<'a, Result<Session, StreamError>> {
        nothing()
    }

    fn attach<'a>(&'a self, _: &'a PodId, _: ExecRequest) -> BoxFuture<'a, Result<Session, StreamError>> {
        nothing()
    }

    fn connect<'a>(&'a self, _: &'a PodId, port: u16) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await;
            let stream = stream.map_err(|error| StreamError::Unavailable(error.to_string()))?;
            Ok(Box::new(stream) as Box<dyn Duplex>)
        }
        .boxed()
    }

    fn logs<'a>(&'a self, _: &'a PodId, _: LogRequest) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        nothing()
    }
}

async fn server() -> ApiServer {
    let server =
        ApiServer::open(Config { default_node: Some("hutch".into()), ..Config::default() }).await.unwrap();
    server.set_connector(Arc::new(Loopback));
    server.set_kubelet(Arc::new(Node));
    server
}

async fn app() -> Router {
    server().await.router_as(Identity::admin())
}

/// Stores a configuration of these webhooks.
async fn configure(app: &Router, path: &str, name: &str, webhooks: Value) {
    let (code, made) = configured(app, path, name, webhooks).await;
    assert_eq!(code, 201, "{made}");
}

async fn configured(app: &Router, path: &str, name: &str, webhooks: Value) -> (StatusCode, Value) {
    let kind =
        if path == MUTATING { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "webhooks": webhooks});
    call(app, "POST", path, &object.to_string()).await
}

fn config_map(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": name}}, "data": {"a": "b"}})
        .to_string()
}
