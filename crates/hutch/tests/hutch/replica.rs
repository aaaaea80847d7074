//! `hutch controller` as a process, against an API server in this one that is reached over TLS and writes down who asks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use base64::Engine;
use http::{Method, Version};
use hutch_apiserver::{ApiServer, Identity};
use hutch_serve::{Authority, Listener, PeerAddress, Shutdown};
use hutch_testkit::cluster::kubelet;
pub(crate) use hutch_testkit::wait::eventually;
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::HUTCH;

const TOKEN: &str = "the-one-credential-of-this-test-0123456789";
/// Long enough for anything that happens at all on a busy machine; longer than a lease.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// One request of a controller.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) peer: SocketAddr,
    pub(crate) version: Version,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) watch: bool,
}

pub(crate) struct Cluster {
    server: ApiServer,
    pub(crate) client: Client,
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
    tasks: JoinSet<()>,
}

/// A running `hutch controller`.
pub(crate) struct Replica {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let folder = tempfile::tempdir().expect("tempdir");
        let config = hutch_apiserver::Config { default_node: Some("hutch".into()), ..Default::default() };
        let server = ApiServer::open(config).await.expect("an API server in memory opens");
        server.accept_token(TOKEN, Identity::admin());
        let authority = Authority::open(&folder.path().join("ca")).expect("an authority");
        let tls = authority.server_config(&[]).expect("a certificate");
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
        let ca = base64::engine::general_purpose::STANDARD.encode(authority.certificate_pem());
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'https://{}', \
             certificate-authority-data: {ca}}}}}]\nusers: [{{name: u, user: {{token: {TOKEN}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
            listener.address()
        );
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).expect("write");
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let book = asked.clone();
        let app = server.authenticated().layer(from_fn(move |request: Request, next: Next| {
            note(&book, &request);
            next.run(request)
        }));
        let client: Client = server.client(Identity::admin(), "default");
        let mut tasks = JoinSet::new();
        tasks.spawn(listener.serve_tls(app, tls, Shutdown::new()));
        tasks.spawn(kubelet(client.clone()));
        Cluster { server, client, folder, asked, tasks }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Starts a replica and waits until it logs this.
    pub(crate) async fn replica(&self, flags: &[&str], variables: &[(&str, &str)], until: &str) -> Replica {
        let mut child = Command::new(HUTCH)
            .args([
                "controller",
                "--metrics-bind-address=127.0.0.1:0",
                "--health-probe-bind-address=127.0.0.1:0",
            ])
            .args(["--enable-webhook=false", "--leader-election-namespace=default", "--kubeconfig"])
            .arg(self.kubeconfig())
            .args(flags)
            .envs(variables.iter().copied())
            .env_remove("HUTCH_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("hutch starts");
        let log: Arc<Mutex<String>> = Arc::default();
        let (lines, kept) = (BufReader::new(child.stderr.take().expect("stderr")), log.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let mut kept = kept.lock().expect("log");
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let replica = Replica { child, log };
        replica.says(until).await;
        replica
    }

    /// Takes the requests of the controllers so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().expect("book"))
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) async fn create<K>(&self, name: &str, more: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let mut object =
            json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": name}});
        for (key, value) in more.as_object().expect("an object") {
            if key == "metadata" {
                object[key]
                    .as_object_mut()
                    .expect("metadata")
                    .extend(value.as_object().expect("metadata").clone());
            } else {
                object[key] = value.clone();
            }
        }
        let object: K = serde_json::from_value(object).expect("well formed");
        self.api().create(&PostParams::default(), &object).await.expect("created")
    }

    /// A template `t` and a pool `p` of that size, full.
    pub(crate) async fn pool(&self, replicas: i32) {
        let containers = json!([{"name": "c", "image": "hutch/host"}]);
        let template = json!({"spec": {"podTemplate": {"spec": {"containers": containers}}}});
        self.create::<hutch_api::SandboxTemplate>("t", template).await;
        let pool = json!({"spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "t"}}});
        self.create::<hutch_api::SandboxWarmPool>("p", pool).await;
        self.pool_has(replicas).await;
    }

    pub(crate) async fn pool_has(&self, replicas: i32) {
        eventually("the pool is full", || async {
            let pool: hutch_api::SandboxWarmPool = self.api().get("p").await.ok()?;
            (pool.status?.ready_replicas? == replicas).then_some(())
        })
        .await;
    }

    /// A claim on the pool, once it is Ready and says so.
    pub(crate) async fn claim(&self, name: &str, more: Value) -> hutch_api::SandboxClaim {
        let mut claim = more;
        claim["spec"]["warmPoolRef"] = json!({"name": "p"});
        self.create::<hutch_api::SandboxClaim>(name, claim).await;
        eventually("the claim is Ready", || async {
            let claim: hutch_api::SandboxClaim = self.api().get(name).await.ok()?;
            claim.annotations().contains_key("agents.x-k8s.io/claim-first-ready-at").then_some(claim)
        })
        .await
    }

    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
        self.server.close().await;
    }
}

impl Replica {
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("log").clone()
    }

    pub(crate) async fn says(&self, what: &str) {
        let began = Instant::now();
        while !self.log().contains(what) {
            assert!(began.elapsed() < WAIT_LIMIT, "never printed {what:?}:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The answer's body at `path` of the server that the log names so.
    pub(crate) fn get(&self, server: &str, path: &str) -> String {
        let log = self.log();
        let line = log.lines().find(|line| line.contains(&format!("{server} served"))).expect("it is served");
        let address = line.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
        let mut stream = TcpStream::connect(address.expect("an address")).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .expect("a signal");
    }

    /// Its exit status, once it has ended.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(began.elapsed() < WAIT_LIMIT, "it does not end:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn note(book: &Mutex<Vec<Asked>>, request: &Request) {
    let agent = request.headers().get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    assert!(agent.is_some_and(|agent| agent.starts_with("hutch-controller/")), "user agent {agent:?}");
    let peer = request.extensions().get::<PeerAddress>().expect("a peer").0;
    book.lock().expect("book").push(Asked {
        peer,
        version: request.version(),
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        watch: request.uri().query().unwrap_or_default().contains("watch=true"),
    });
}
