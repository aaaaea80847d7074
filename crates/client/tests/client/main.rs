//! The library against a server that answers each path with a fixed object.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hutch_client::{Error, Name, Obstacle, Progress, Sandboxes, Wait};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

/// A server, and the requests that it has received.
struct Server {
    sandboxes: Sandboxes,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Objects by path. Other paths do not exist, and watches never report anything.
    fn start(objects: &[(&str, Value)]) -> Server {
        let objects: HashMap<_, _> =
            objects.iter().map(|(path, object)| ((*path).to_owned(), object.clone())).collect();
        let (objects, requests) = (Arc::new(objects), Arc::new(Mutex::new(Vec::new())));
        let received = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (objects, received) = (objects.clone(), received.clone());
            async move {
                let uri = request.uri().clone();
                if uri.query().is_some_and(|query| query.contains("watch=")) {
                    std::future::pending::<()>().await;
                }
                let (path, method) = (uri.path().to_owned(), request.method().clone());
                let body = request.into_body().collect_bytes().await.expect("a body");
                let body = String::from_utf8_lossy(&body).into_owned();
                received.lock().expect("lock").push(format!("{method} {uri} {body}").trim().to_owned());
                let response = Response::builder();
                let (status, object) = match objects.get(&path) {
                    Some(object) => (StatusCode::OK, object.clone()),
                    None => (
                        StatusCode::NOT_FOUND,
                        json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"}),
                    ),
                };
                let response = response.status(status).body(Body::from(object.to_string().into_bytes()));
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        Server { sandboxes: Sandboxes::new(Client::new(service, "default"), "default"), requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("lock").clone()
    }
}

const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
const CLAIMS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/api/v1/namespaces/default/events";

fn sandbox(mode: &str, ready: &str) -> Value {
    json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "s", "namespace": "default"},
        "spec": {"operatingMode": mode, "podTemplate": {"spec": {"containers": []}}},
        "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "DependenciesReady", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}

fn claim() -> Value {
    json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": "c"},
        "spec": {"warmPoolRef": {"name": "p"}}, "status": {"sandbox": {"name": "s"}}})
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "s",
        "annotations": {"kubectl.kubernetes.io/default-container": "second"}},
        "spec": {"containers": [{"name": "first"}, {"name": "second"}]}})
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

#[tokio::test]
async fn claim_resolves_to_the_container_of_its_sandbox() {
    let (sandbox, claim, pod) = (sandbox("Running", "True"), claim(), pod());
    let (at, claims, pods) = (format!("{SANDBOXES}/s"), format!("{CLAIMS}/c"), format!("{PODS}/s"));
    let server = Server::start(&[(&at, sandbox), (&claims, claim), (&pods, pod)]);
    let wait = Duration::from_secs(5);
    for (text, container, expected) in [("c", None, "second"), ("claim/c", Some("first"), "first")] {
        let mut progress = ();
        let mut wait = Wait::new(wait, &mut progress);
        let target =
            server.sandboxes.target(&name(text), container, false, &mut wait).await.expect("a target");
        assert_eq!((target.sandbox.as_str(), target.container.as_str()), ("s", expected));
    }
    let (name, mut progress) = (name("s"), ());
    let mut wait = Wait::new(wait, &mut progress);
    let target = server.sandboxes.target(&name, Some("third"), false, &mut wait).await;
    let error = target.expect_err("no such container");
    assert!(matches!(&error, Error::NoContainer { containers, .. } if containers.len() == 2), "{error}");
}

#[tokio::test]
async fn missing_object_names_the_kinds() {
    let server = Server::start(&[]);
    for (text, expected) in
        [("x", "Sandbox or SandboxClaim"), ("sandbox/x", "Sandbox"), ("claim/x", "SandboxClaim")]
    {
        let found = server.sandboxes.find(&name(text), &mut Wait::new(Duration::ZERO, &mut ())).await;
        let error = found.expect_err("not found");
        assert!(matches!(&error, Error::NotFound { kind, .. } if *kind == expected), "{error}");
    }
}

#[tokio::test]
async fn suspend_without_time_only_patches() {
    let at = format!("{SANDBOXES}/s");
    let server = Server::start(&[(&at, sandbox("Running", "True"))]);
    let suspended = server.sandboxes.suspend(&name("s"), &mut Wait::new(Duration::ZERO, &mut ())).await;
    assert_eq!(suspended.expect("patched").name_any(), "s");
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests[1].starts_with("PATCH") && requests[1].contains("Suspended"), "{requests:?}");
}

/// Records reports.
#[derive(Default)]
struct Reports(Vec<String>);

impl Progress for Reports {
    fn waiting(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }

    fn ended(&mut self) {
        self.0.push("ended".to_owned());
    }
}

#[tokio::test]
async fn wait_reports_the_state_and_times_out() {
    let at = format!("{SANDBOXES}/s");
    let list = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "SandboxList",
        "metadata": {"resourceVersion": "1"}, "items": [sandbox("Running", "False")]});
    let server = Server::start(&[(&at, sandbox("Running", "False")), (SANDBOXES, list)]);
    let mut reports = Reports::default();
    let mut wait = Wait::new(Duration::from_millis(50), &mut reports);
    let error = server.sandboxes.resume(&name("s"), &mut wait).await.expect_err("it is not ready");
    assert_eq!(error.to_string(), "sandbox s is not ready after 50ms: m");
    reports.0.dedup();
    assert_eq!(reports.0, ["waiting for sandbox s to be ready: m", "ended"]);
}

#[tokio::test]
async fn suspended_sandbox_has_no_target_and_no_log() {
    let at = format!("{SANDBOXES}/s");
    let server = Server::start(&[(&at, sandbox("Suspended", "False"))]);
    let mut progress = ();
    let mut wait = Wait::new(Duration::ZERO, &mut progress);
    let target = server.sandboxes.target(&name("s"), None, false, &mut wait).await;
    assert!(matches!(target, Err(Error::Blocked { obstacle: Obstacle::Suspended, .. })));
    let log = server.sandboxes.logs(&name("s"), None, &Default::default()).await;
    assert!(matches!(log, Err(Error::NoLog(sandbox)) if sandbox == "s"));
}

#[tokio::test]
async fn events_are_those_of_the_sandbox_and_its_pod() {
    let at = format!("{SANDBOXES}/s");
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"name": "s"}, "message": "m"});
    let list = json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": [event]});
    let server = Server::start(&[(&at, sandbox("Running", "True")), (EVENTS, list)]);
    let found = server.sandboxes.find(&name("s"), &mut Wait::new(Duration::ZERO, &mut ())).await;
    let events = server.sandboxes.events(&found.expect("a Sandbox")).await.expect("events");
    assert_eq!(events.len(), 2);
    let requests = server.requests();
    for kind in ["Sandbox", "Pod"] {
        let field = format!("involvedObject.kind%3D{kind}%2CinvolvedObject.name%3Ds");
        assert!(requests.iter().any(|request| request.contains(&field)), "{field}: {requests:?}");
    }
}
