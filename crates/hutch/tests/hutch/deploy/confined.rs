//! The embedded API server behind an authorizer that goes by the roles of `deploy/`, and a kubelet that says that Pods are Ready.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::middleware::Next;
use http::{Request, StatusCode};
use hutch_apiserver::{ApiServer, Identity};
use hutch_testkit::cluster::kubelet;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::rules::{Access, Grant, access};

const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Requests.
#[derive(Default)]
pub(crate) struct Asked {
    /// Grants that were used.
    pub(crate) used: BTreeSet<String>,
    /// Accesses that no grant covers.
    pub(crate) refused: BTreeSet<Access>,
}

pub(crate) struct Cluster {
    server: ApiServer,
    pub(crate) admin: Admin,
}

/// Administrator, in one namespace.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let config = hutch_apiserver::Config { default_node: Some("hutch".into()), ..Default::default() };
        let server = ApiServer::open(config).await.expect("an API server");
        let client: Client = server.client(Identity::admin(), "default");
        tokio::spawn(kubelet(client.clone()));
        let admin = Admin { client, namespace: "default".into() };
        Cluster { server, admin }
    }

    /// A client that may do what is granted, and nothing else.
    pub(crate) fn confined(&self, grants: Vec<Grant>) -> (Client, Arc<Mutex<Asked>>) {
        let asked = Arc::new(Mutex::new(Asked::default()));
        let (app, record): (Router, _) = (self.server.router_as(Identity::admin()), asked.clone());
        let grants = Arc::new(grants);
        let app = app.layer(axum::middleware::from_fn(move |request: Request<Body>, next: Next| {
            let (grants, record) = (grants.clone(), record.clone());
            async move {
                let (parts, body) = request.into_parts();
                if let Some(access) = access(&parts) {
                    let mut record = record.lock().unwrap();
                    match grants.iter().find(|grant| grant.allows(&access)) {
                        Some(grant) => record.used.insert(grant.short()),
                        None => {
                            record.refused.insert(access);
                            return forbidden();
                        }
                    };
                }
                next.run(Request::from_parts(parts, body)).await
            }
        }));
        (hutch_serve::memory::client(app, "default"), asked)
    }
}

impl Admin {
    pub(crate) fn api(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if kind == "CustomResourceDefinition" {
            return Api::all_with(self.client.clone(), &resource);
        }
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    pub(crate) async fn create(&self, version: &str, kind: &str, name: &str, rest: Value) {
        self.try_create(version, kind, name, rest).await.expect(name);
    }

    pub(crate) async fn try_create(
        &self,
        version: &str,
        kind: &str,
        name: &str,
        rest: Value,
    ) -> kube::Result<()> {
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
        for (key, value) in rest.as_object().expect("an object") {
            match object.get_mut(key).and_then(Value::as_object_mut) {
                Some(known) => known.extend(value.as_object().expect("an object").clone()),
                None => object[key] = value.clone(),
            }
        }
        let object = serde_json::from_value(object).expect("an object");
        self.api(version, kind).create(&PostParams::default(), &object).await.map(drop)
    }

    pub(crate) async fn patch(&self, version: &str, kind: &str, name: &str, patch: Value) {
        let api = self.api(version, kind);
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect(name);
    }

    /// Waits until the object is as wanted; without an object it is `Null`.
    pub(crate) async fn until(&self, version: &str, kind: &str, name: &str, wanted: impl Fn(&Value) -> bool) {
        let api = self.api(version, kind);
        let last = Mutex::new(Value::Null);
        let found = until(async || {
            let object = api.get_opt(name).await.expect("an answer");
            let value = object.map_or(Value::Null, |object| serde_json::to_value(object).expect("JSON"));
            let found = wanted(&value);
            *last.lock().unwrap() = value;
            found
        });
        assert!(found.await, "{kind} {name} never as wanted: {}", last.lock().unwrap());
    }
}

/// Returns true if the condition holds in time.
pub(crate) async fn until(look: impl AsyncFn() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < WAIT_LIMIT {
        if look().await {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

fn forbidden() -> axum::response::Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
        "message": "no role allows it", "code": 403});
    axum::response::IntoResponse::into_response((StatusCode::FORBIDDEN, axum::Json(status)))
}

/// Ends with the future.
pub(crate) async fn beside<T>(
    background: impl Future<Output = ()> + Send + 'static,
    work: impl Future<Output = T>,
) -> T {
    let task = tokio::spawn(background);
    let outcome = work.await;
    task.abort();
    outcome
}
