//! Sends many requests at once, without the checks of a client, and judges the answers.

use std::time::Duration;

use futures::{StreamExt, stream};
use http::{Method, Request};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::cases::Case;
use super::skeleton::Kind;
use crate::harness::Up;

/// Requests at a time.
pub(super) const CONCURRENT: usize = 24;
/// Maximum idle time of a connection.
const IDLE: Duration = Duration::from_secs(2);

/// A connection to the server, for one namespace.
#[derive(Clone)]
pub(super) struct Api {
    client: kube::Client,
    namespace: String,
}

/// The server's answer to a new object.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// Refused as Kubernetes does it.
    Refused,
    /// Stored; the whole object.
    Accepted(Box<Value>),
    /// Anything else; why it is wrong.
    Wrong(String),
}

impl Api {
    pub(super) async fn connect(up: &Up, namespace: &str) -> Api {
        let kubeconfig = Kubeconfig::read_from(up.kubeconfig()).expect("a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let config = config.expect("a configuration");
        // The server closes a connection that was idle for a while, perhaps while a request is on its way.
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(config.rustls_https_connector().expect("a connector"));
        let service = tower::ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer().expect("a credential"))
            .service(http.map_err(tower::BoxError::from));
        Api { client: kube::Client::new(service, namespace), namespace: namespace.into() }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The path of a kind's objects.
    pub(super) fn path(&self, kind: &Kind) -> String {
        path(kind, &self.namespace)
    }

    /// Sends a request. The error is why there is no answer.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value), String> {
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", media);
        let request = request.body(kube::client::Body::from(bytes)).expect("a request");
        let response = self.client.send(request).await.map_err(|error| format!("no answer: {error}"))?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.map_err(|error| format!("cut off: {error}"))?;
        let text = bytes.to_bytes();
        let value = serde_json::from_slice(&text);
        Ok((code, value.unwrap_or_else(|_| String::from_utf8_lossy(&text).into_owned().into())))
    }

    /// A GET, which must succeed.
    #[track_caller]
    pub(super) fn get(&self, path: &str) -> impl Future<Output = Value> {
        let (api, path) = (self.clone(), path.to_owned());
        async move {
            let (code, value) = api.send(Method::GET, &path, None).await.expect("an answer");
            assert_eq!(code, 200, "{path}: {value}");
            value
        }
    }

    /// The objects of a kind in the namespace.
    pub(super) async fn list(&self, kind: &Kind) -> Vec<Value> {
        let Value::Array(items) = self.get(&self.path(kind)).await["items"].take() else { panic!("no list") };
        items
    }

    /// Makes an object, which must succeed.
    pub(super) async fn make(&self, kind: &Kind, object: &Value) -> Value {
        let (code, made) = self.send(Method::POST, &self.path(kind), Some(object)).await.expect("an answer");
        assert_eq!(code, 201, "{object}: {made}");
        made
    }

    /// Submits the objects of these cases.
    pub(super) async fn submit(&self, cases: &[Case]) -> Vec<Answer> {
        let answers = cases.iter().map(async |case| {
            let path = path(&case.kind, case.namespace.as_deref().unwrap_or(&self.namespace));
            match self.send(Method::POST, &path, Some(&case.object)).await {
                Ok((201, object)) => Answer::Accepted(Box::new(object)),
                Ok((code, status)) => judge(case, code, &status),
                Err(error) => Answer::Wrong(error),
            }
        });
        stream::iter(answers).buffered(CONCURRENT).collect().await
    }

    /// Deletes objects and takes away the finalizers that nothing here would.
    pub(super) async fn delete(&self, kind: &Kind, names: &[String]) {
        let options = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        let done = names.iter().map(async |name| {
            let path = format!("{}/{name}", self.path(kind));
            let (code, answer) = self.send(Method::DELETE, &path, Some(&options)).await.expect("an answer");
            assert!(matches!(code, 200 | 202 | 404), "{path}: {code} {answer}");
            let held = answer["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
            if held {
                let none = json!({"metadata": {"finalizers": null}});
                let (code, answer) = self.send(Method::PATCH, &path, Some(&none)).await.expect("an answer");
                assert!(matches!(code, 200 | 404), "{path}: {code} {answer}");
            }
        });
        stream::iter(done).buffer_unordered(CONCURRENT).collect::<Vec<()>>().await;
    }
}

fn path(kind: &Kind, namespace: &str) -> String {
    let root = if kind.group.is_empty() { "api" } else { "apis" };
    format!("/{root}/{}/namespaces/{namespace}/{}", kind.api_version(), kind.plural)
}

/// A refusal must be a `Status` of Kubernetes that names the field.
fn judge(case: &Case, code: u16, status: &Value) -> Answer {
    let reason = status["reason"].as_str().unwrap_or_default();
    let expected = match code {
        400 => "BadRequest",
        404 => "NotFound",
        403 => "Forbidden",
        409 => "AlreadyExists",
        413 => "RequestEntityTooLarge",
        422 => "Invalid",
        _ => return Answer::Wrong(format!("{code}: {status}")),
    };
    if status["kind"] != "Status" || reason != expected {
        return Answer::Wrong(format!("{code} is no {expected}: {status}"));
    }
    let message = status["message"].as_str().unwrap_or_default();
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let mut texts = causes.filter_map(|cause| cause["field"].as_str()).chain([message]);
    // The field, or the one that holds it: `spec.ephemeralContainers: Forbidden` is enough for all that lies below.
    let generic = ["spec", "metadata", "template", "podTemplate"];
    let mut names: Vec<&str> = case.place.names().filter(|name| !generic.contains(name)).collect();
    match case.place.names().next() {
        _ if names.is_empty() => names.extend(case.place.names()),
        // Kubernetes' own message: the API version in the data does not match the expected API version.
        Some("apiVersion") => names.push("version"),
        // What is written there is in `data` when it is checked.
        Some("stringData") => names.push("data"),
        // Kubernetes' own message: pod rejected: RuntimeClass "x" not found.
        _ if case.place.names().last() == Some("runtimeClassName") => names.push("RuntimeClass"),
        _ => {}
    }
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_ascii_lowercase).collect()
    };
    let named = texts.any(|text| {
        let words = words(text);
        names.iter().any(|name| words.contains(&name.to_ascii_lowercase()))
    });
    if code == 409 || code == 404 || named {
        return Answer::Refused;
    }
    Answer::Wrong(format!("does not name {}: {status}", case.place))
}
