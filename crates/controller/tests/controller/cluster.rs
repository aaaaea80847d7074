//! An API server in memory, a kubelet that says that Pods are Ready, and the controllers.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt, StreamBody};
use hutch_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use hutch_apiserver::{ApiServer, Identity};
use hutch_controller::Config;
use hutch_serve::Shutdown;
use hutch_testkit::cluster::kubelet;
pub(crate) use hutch_testkit::wait::{eventually, eventually_or};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::core::{ApiResource, DynamicObject, NamespaceResourceScope};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Longest wait for anything.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Cluster {
    client: Client,
    server: ApiServer,
    written: Arc<Mutex<Vec<Written>>>,
    losing: Arc<AtomicU32>,
    late: Arc<AtomicBool>,
    kubelet: JoinHandle<()>,
    controllers: Option<(Shutdown, JoinHandle<()>)>,
}

/// A request of the controllers that changes something.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    method: String,
    pub(crate) path: String,
    /// HTTP status of the answer.
    pub(crate) status: u16,
}

impl Written {
    /// Method and kind, with the subresource: `PATCH sandboxes/status`.
    pub(crate) fn what(&self) -> String {
        let parts: Vec<_> = self.path.split('/').skip_while(|part| *part != "namespaces").skip(2).collect();
        match parts.as_slice() {
            [kind, _, subresource] => format!("{} {kind}/{subresource}", self.method),
            [kind, ..] => format!("{} {kind}", self.method),
            [] => format!("{} {}", self.method, self.path),
        }
    }
}

/// The client with a note of every write and its answer. The answers to as many creations of Sandboxes as `losing` says
/// are lost, after the server has done what was asked. Watches of Sandboxes report nothing while they are `late`.
fn counted(
    client: Client,
    written: Arc<Mutex<Vec<Written>>>,
    losing: Arc<AtomicU32>,
    late: Arc<AtomicBool>,
) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, written, losing, late) = (client.clone(), written.clone(), losing.clone(), late.clone());
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let watches =
            path.ends_with("/sandboxes") && request.uri().query().unwrap_or_default().contains("watch");
        async move {
            let answer = client.send(request).await?;
            if watches {
                return Ok(answer.map(|body| held(body, late).boxed_unsync()));
            }
            let creates = method == "POST" && path.ends_with("/sandboxes");
            let one_less = |left: u32| left.checked_sub(1);
            if creates && losing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
                return Err(kube::Error::Service("the connection broke".into()));
            }
            if method != "GET" {
                let status = answer.status().as_u16();
                written.lock().unwrap().push(Written { method, path, status });
            }
            Ok::<_, kube::Error>(answer.map(BodyExt::boxed_unsync))
        }
    });
    Client::new(service, "default")
}

/// The body, of which nothing arrives while the flag is set.
fn held(body: Body, late: Arc<AtomicBool>) -> impl HttpBody<Data = Bytes, Error = kube::Error> + Send {
    let chunks = body.into_data_stream().then(move |chunk| {
        let late = late.clone();
        async move {
            while late.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            chunk.map(Frame::data)
        }
    });
    StreamBody::new(chunks)
}

/// Kind of object that the tests read.
pub(crate) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
}
impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + 'static
{
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        Cluster::start_with(Config::default()).await
    }

    pub(crate) async fn start_with(controllers: Config) -> Cluster {
        let config = hutch_apiserver::Config { default_node: Some("hutch".into()), ..Default::default() };
        let server = ApiServer::open(config).await.expect("an API server in memory opens");
        let client: Client = server.client(Identity::admin(), "default");
        let kubelet = tokio::spawn(kubelet(client.clone()));
        Cluster {
            client,
            server,
            written: Arc::default(),
            losing: Arc::default(),
            late: Arc::default(),
            kubelet,
            controllers: None,
        }
        .start_controllers_with(controllers)
    }

    pub(crate) fn start_controllers(self) -> Cluster {
        self.start_controllers_with(Config::default())
    }

    pub(crate) fn start_controllers_with(mut self, config: Config) -> Cluster {
        let client: Client = self.server.client(Identity::admin(), "default");
        let client = counted(client, self.written.clone(), self.losing.clone(), self.late.clone());
        let shutdown = Shutdown::new();
        let trigger = shutdown.clone();
        let task = tokio::spawn(async move {
            hutch_controller::run(client, config, shutdown).await;
        });
        self.controllers = Some((trigger, task));
        self
    }

    pub(crate) async fn stop_controllers(mut self) -> Cluster {
        if let Some((trigger, task)) = self.controllers.take() {
            trigger.trigger();
            tokio::time::timeout(WAIT_LIMIT, task).await.expect("controllers stop").expect("without a panic");
        }
        self
    }

    /// From now on no Pod becomes Ready.
    pub(crate) fn stop_kubelet(&self) {
        self.kubelet.abort();
    }

    pub(crate) async fn stop(self) {
        let cluster = self.stop_controllers().await;
        cluster.stop_kubelet();
        cluster.server.close().await;
    }

    /// Returns the writes of the controllers, in the order of the responses.
    pub(crate) fn written(&self) -> Vec<Written> {
        self.written.lock().unwrap().clone()
    }

    /// The controllers will not hear the answers to their next so many creations of Sandboxes.
    pub(crate) fn lose_answers(&self, count: u32) {
        self.losing.store(count, Ordering::SeqCst);
    }

    /// From now on the controllers' watches report no change of a Sandbox, or they do again.
    pub(crate) fn delay_watches(&self, late: bool) {
        self.late.store(late, Ordering::SeqCst);
    }

    /// Waits until the controllers have written nothing for that long.
    pub(crate) async fn quiet(&self, pause: Duration) {
        let began = Instant::now();
        let mut count = usize::MAX;
        while count != self.written().len() {
            assert!(began.elapsed() < WAIT_LIMIT, "they never stop: {:#?}", self.written());
            count = self.written().len();
            tokio::time::sleep(pause).await;
        }
    }

    pub(crate) async fn delete<K: Object>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::default()).await.expect("the server deletes");
    }

    pub(crate) fn api<K: Object>(&self) -> Api<K> {
        Api::default_namespaced(self.client.clone())
    }

    /// Objects without a type.
    pub(crate) fn dynamic(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::default_namespaced_with(self.client.clone(), resource)
    }

    pub(crate) async fn get<K: Object>(&self, name: &str) -> Option<K> {
        self.api().get_opt(name).await.expect("the server answers")
    }

    pub(crate) async fn list<K: Object>(&self) -> Vec<K> {
        self.api().list(&ListParams::default()).await.expect("the server answers").items
    }

    pub(crate) async fn patch<K: Object>(&self, name: &str, patch: Value) {
        let result: Result<K, _> =
            self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        result.unwrap_or_else(|error| panic!("patch of {name}: {error}"));
    }

    pub(crate) async fn template(&self, name: &str, more: Value) {
        let containers = json!([{"name": "c", "image": "hutch/host"}]);
        let mut spec = json!({"podTemplate": {"spec": {"containers": containers}}});
        json_patch::merge(&mut spec, &more);
        self.create::<SandboxTemplate>(name, json!({ "spec": spec })).await;
    }

    pub(crate) async fn pool(&self, name: &str, template: &str, replicas: u32) {
        let spec = json!({"replicas": replicas, "sandboxTemplateRef": {"name": template}});
        self.create::<SandboxWarmPool>(name, json!({ "spec": spec })).await;
    }

    pub(crate) async fn claim(&self, name: &str, pool: &str, more: Value) -> SandboxClaim {
        let mut claim = json!({"spec": {"warmPoolRef": {"name": pool}}});
        json_patch::merge(&mut claim, &more);
        self.create(name, claim).await
    }

    pub(crate) async fn sandbox(&self, name: &str, more: Value) {
        let mut spec =
            json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}}});
        json_patch::merge(&mut spec, &more);
        self.create::<Sandbox>(name, json!({ "spec": spec })).await;
    }

    pub(crate) async fn create<K: Object>(&self, name: &str, more: Value) -> K {
        let mut object =
            json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": name}});
        json_patch::merge(&mut object, &more);
        let object: K = serde_json::from_value(object).expect("well formed");
        self.api()
            .create(&PostParams::default(), &object)
            .await
            .unwrap_or_else(|e| panic!("create {name}: {e}"))
    }

    /// Posts an object of a version that has no type.
    pub(crate) async fn post(&self, api_version: &str, plural: &str, mut object: Value) {
        object["apiVersion"] = api_version.into();
        let request = http::Request::post(format!("/apis/{api_version}/namespaces/default/{plural}"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&object).unwrap())
            .unwrap();
        self.client.request::<Value>(request).await.unwrap_or_else(|e| panic!("post to {plural}: {e}"));
    }

    pub(crate) async fn watch<K: Object>(&self, name: &str) -> Watched<K> {
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        let version =
            self.api::<K>().list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        let stream = self.api::<K>().watch(&params, &version).await.expect("a watch opens");
        Watched(stream.boxed())
    }
}

pub(crate) struct Watched<K>(BoxStream<'static, Result<WatchEvent<K>, kube::Error>>);

impl<K> Watched<K> {
    pub(crate) async fn until(&mut self, wanted: impl Fn(&K) -> bool) {
        let found = async {
            while let Some(event) = self.0.try_next().await.expect("the watch continues") {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                    && wanted(&object)
                {
                    return;
                }
            }
            panic!("the watch ended");
        };
        tokio::time::timeout(WAIT_LIMIT, found).await.expect("in time");
    }
}
