//! A node with its API server, in this process, on a folder of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use hutch_apiserver::{ApiServer, Identity};
use hutch_kubelet::{Duplex, ExecRequest, Exit, Kubelet, LogRequest, PodId, StreamError};
use hutch_node::{Config, DefaultLimits, EmbeddedService, Handler, Node};
use hutch_privsep::RemoteKubelet;
use hutch_serve::Shutdown;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

/// Longest wait of a test for something that takes milliseconds on an idle machine.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The warden, built once for all tests.
pub(crate) fn warden() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "hutch-jail", "--bin", "hutch-warden"])
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the warden does not build");
        let test = std::env::current_exe().expect("the test has a path");
        test.ancestors().nth(2).expect("it lies in target/debug/deps").join("hutch-warden")
    };
    BUILT.get_or_init(build).clone()
}

/// A service of the tests, as one of the front.
struct Front(Arc<dyn EmbeddedService>);

impl Front {
    fn shared(self) -> Arc<dyn hutch_privsep::Service> {
        Arc::new(self)
    }
}

impl hutch_privsep::Service for Front {
    fn connect(&self, _pod: &PodId, port: u16) -> BoxFuture<'_, Result<Box<dyn Duplex>, StreamError>> {
        self.0.connect(port)
    }
}

pub(crate) struct Machine {
    pub(crate) client: Client,
    /// The node as the front of `hutch up` has it: over a socket pair.
    pub(crate) node: RemoteKubelet,
    process: Node,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
    pub(crate) server: ApiServer,
    shutdown: Shutdown,
}

impl Machine {
    /// Starts with a fresh API server.
    pub(crate) async fn start(dir: &Path) -> Machine {
        Machine::start_with(dir, |_| {}).await
    }

    pub(crate) async fn start_with(dir: &Path, change: impl FnOnce(&mut Config)) -> Machine {
        let config = hutch_apiserver::Config {
            data: None,
            default_node: Some("hutch".into()),
            address: "127.0.0.1:0".into(),
            ..hutch_apiserver::Config::default()
        };
        let server = ApiServer::open(config).await.expect("the API server opens");
        Machine::start_on(server, dir, change).await
    }

    /// Starts a node on an API server that is there already.
    pub(crate) async fn start_on(server: ApiServer, dir: &Path, change: impl FnOnce(&mut Config)) -> Machine {
        let client = server.client(Identity::admin(), "default");
        Machine::start_all(server, client, dir, change).await
    }

    /// Starts a node whose requests to the API server go through another client.
    pub(crate) async fn start_with_client(
        server: ApiServer,
        node: Client,
        dir: &Path,
        change: impl FnOnce(&mut Config),
    ) -> Machine {
        Machine::start_all(server, node, dir, change).await
    }

    async fn start_all(
        server: ApiServer,
        of_node: Client,
        dir: &Path,
        change: impl FnOnce(&mut Config),
    ) -> Machine {
        let client = server.client(Identity::admin(), "default");
        let mut config = Config {
            node_name: "hutch".into(),
            data_dir: dir.into(),
            pod_cidr: "10.89.0.0/16".into(),
            meminfo: "/proc/meminfo".into(),
            warden_program: warden(),
            sandboxd_program: "/bin/true".into(),
            runtime_classes: Handler::defaults(),
            defaults: DefaultLimits::default(),
            services: BTreeMap::new(),
            substitute_images: true,
            image_dir: None,
            snapshot_disk_high: 100,
            host_paths: Vec::new(),
            private_paths: Vec::new(),
            unpacker: None,
            pulled: dir.join("pulled"),
            puller: None,
            egress: None,
            journal: None,
        };
        change(&mut config);
        let shutdown = Shutdown::new();
        let services = config.services.clone().into_iter();
        let services = services.map(|(kind, service)| (kind.name().to_owned(), Front(service).shared()));
        let services: Vec<_> = services.collect();
        let process = Node::start(of_node, config, shutdown.clone()).await.expect("the node starts");
        let (front, root) = hutch_privsep::pair().expect("a socket pair");
        let served = tokio::spawn(hutch_privsep::serve(root, Arc::new(process.clone())));
        let node = RemoteKubelet::new(front, services).expect("a channel");
        Machine { client, node, process, served, server, shutdown }
    }

    /// The node itself.
    pub(crate) fn process(&self) -> Arc<Node> {
        Arc::new(self.process.clone())
    }

    pub(crate) async fn stop(self) -> ApiServer {
        self.shutdown.trigger();
        self.process.stopped().await;
        drop(self.node);
        self.served.await.expect("no panic").expect("no error");
        self.server
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), "default");
        let object: K = serde_json::from_value(object).expect("a valid object");
        api.create(&PostParams::default(), &object).await.expect("the object is accepted")
    }

    /// Makes a Pod of one container that runs a shell script.
    pub(crate) async fn run(&self, name: &str, script: &str, spec: Value) -> Pod {
        self.create(pod(name, script, spec)).await
    }

    /// Waits until the Pod is as wanted.
    pub(crate) async fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let until = Instant::now() + WAIT_LIMIT;
        loop {
            let pod = self.pods().get_opt(name).await.expect("the API answers");
            if let Some(pod) = &pod
                && wanted(pod)
            {
                return pod.clone();
            }
            if Instant::now() > until {
                let status = pod.map(|pod| serde_json::to_string_pretty(&pod.status).unwrap_or_default());
                let events = self.events(name).await;
                panic!(
                    "{name} is not {what}: {}\nevents: {events:#?}",
                    status.unwrap_or("no such Pod".into())
                );
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) async fn ready(&self, name: &str) -> Pod {
        self.wait(name, "ready", is_ready).await
    }

    pub(crate) async fn phase(&self, name: &str, phase: &str) -> Pod {
        self.wait(name, phase, |pod| phase_of(pod) == phase).await
    }

    pub(crate) async fn gone(&self, name: &str) {
        let until = Instant::now() + WAIT_LIMIT;
        while self.pods().get_opt(name).await.expect("the API answers").is_some() {
            assert!(Instant::now() < until, "{name} is still there");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.expect("the Pod is deleted");
        self.gone(name).await;
    }

    /// `reason: message` of the Pod's events.
    pub(crate) async fn events(&self, name: &str) -> Vec<String> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let all = api.list(&ListParams::default()).await.expect("events are listed").items;
        let own = all.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
        own.map(|e| format!("{}: {}", e.reason.unwrap_or_default(), e.message.unwrap_or_default())).collect()
    }

    pub(crate) async fn event(&self, name: &str, part: &str) -> String {
        let until = Instant::now() + WAIT_LIMIT;
        loop {
            let events = self.events(name).await;
            if let Some(found) = events.iter().find(|event| event.contains(part)) {
                return found.clone();
            }
            assert!(Instant::now() < until, "no event of {name} holds {part:?}: {events:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Runs a command in the Pod; gives its exit and what it printed.
    pub(crate) async fn exec(&self, pod: &Pod, command: &[&str]) -> (Exit, String) {
        self.exec_in(pod, None, command).await
    }

    pub(crate) async fn exec_in(
        &self,
        pod: &Pod,
        container: Option<&str>,
        command: &[&str],
    ) -> (Exit, String) {
        let request = ExecRequest {
            container: container.map(Into::into),
            command: command.iter().map(|text| (*text).to_owned()).collect(),
            stdout: true,
            ..ExecRequest::default()
        };
        let session = self.node.exec(&id(pod), request).await.expect("the command starts");
        let mut text = String::new();
        session.stdout.expect("it was requested").read_to_string(&mut text).await.expect("output is text");
        (session.exit.await, text)
    }

    pub(crate) async fn log(&self, pod: &Pod, request: LogRequest) -> String {
        let mut text = String::new();
        let mut log = self.node.logs(&id(pod), request).await.expect("there is a log");
        log.read_to_string(&mut text).await.expect("the log is text");
        text
    }
}

pub(crate) fn id(pod: &Pod) -> PodId {
    PodId { namespace: "default".into(), name: pod.name_any(), uid: pod.uid().unwrap_or_default() }
}

pub(crate) fn phase_of(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

pub(crate) fn address(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or_default()
}

/// A Pod whose one container `main` runs a shell script. Fields of `spec` are added; those of `spec.main` to the
/// container.
pub(crate) fn pod(name: &str, script: &str, mut spec: Value) -> Value {
    let mut container = json!({"name": "main", "image": "hutch/host", "command": ["/bin/sh", "-c", script]});
    if let Some(extra) = spec.as_object_mut().and_then(|spec| spec.remove("main")) {
        merge(&mut container, extra);
    }
    let mut whole = json!({"containers": [container], "terminationGracePeriodSeconds": 1});
    if let Some(more) = spec.as_object_mut().and_then(|spec| spec.remove("more")) {
        whole["containers"].as_array_mut().expect("a list").extend(more.as_array().expect("a list").clone());
    }
    merge(&mut whole, spec);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})
}

fn merge(into: &mut Value, from: Value) {
    for (key, value) in from.as_object().expect("an object") {
        into[key] = value.clone();
    }
}
