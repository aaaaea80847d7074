//! `hutch router` in front of a real API: what it prints, whom it lets in, how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hutch_apiserver::{ApiServer, Identity};
use hutch_serve::{Listener, Shutdown};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::collector::{Collector, hex, texts};
use crate::harness::HUTCH;

const WAIT_LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "a-token-of-the-api-server-of-this-test";

fn hutch(words: &[&str]) -> Output {
    let mut command = Command::new(HUTCH);
    command.args(words).env_remove("KUBECONFIG").env("HOME", "/nonexistent").output().expect("hutch starts")
}

/// The project's own API server, with a Sandbox `a` whose Pod is ready at 127.0.0.1.
struct Cluster {
    runtime: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
    client: kube::Client,
}

async fn apply(client: &kube::Client, object: Value) -> DynamicObject {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).expect(pointer).to_owned();
    let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    let made = serde_json::from_value(object.clone()).expect("an object");
    let made = api.create(&PostParams::default(), &made).await.expect("created");
    if object["status"].is_null() {
        return made;
    }
    let status = json!({"status": object["status"]});
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.expect("its status")
}

impl Cluster {
    fn start() -> Cluster {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let client = runtime.block_on(async {
            let api = ApiServer::open(hutch_apiserver::Config::default()).await.expect("the API opens");
            api.accept_token(TOKEN, Identity::admin());
            let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
            let kubeconfig = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", listener.address())}}],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            });
            std::fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).expect("written");
            let client = api.client(Identity::admin(), "default");
            tokio::spawn(listener.serve(api.authenticated(), Shutdown::new()));
            // The server lives as long as the runtime.
            std::mem::forget(api);
            client
        });
        runtime.block_on(add(&client, "a"));
        Cluster { runtime, folder, client }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A Sandbox and its ready Pod.
async fn add(client: &kube::Client, name: &str) -> String {
    let sandbox = apply(
        client,
        json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        }),
    )
    .await;
    let uid = sandbox.metadata.uid.expect("a uid");
    apply(
        client,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"agents.x-k8s.io/sandbox-name-hash": "00000000"},
                "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name,
                    "uid": uid, "controller": true}]},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
            "status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}]},
        }),
    )
    .await;
    uid
}

/// A running router.
struct Router {
    child: Child,
    addresses: Vec<(String, SocketAddr)>,
}

impl Router {
    fn start(cluster: &Cluster, flags: &[&str]) -> Router {
        Router::start_with(cluster, flags, &[])
    }

    fn start_with(cluster: &Cluster, flags: &[&str], variables: &[(&str, &str)]) -> Router {
        let log = std::fs::File::create(cluster.path().join("log")).expect("a log");
        let child = Command::new(HUTCH)
            .args(["router", "--http-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"])
            .args(["--health-probe-bind-address", "127.0.0.1:0", "--allow-loopback-pod-ip", "--kubeconfig"])
            .arg(cluster.path().join("kubeconfig"))
            .args(flags)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("hutch starts");
        let mut router = Router { child, addresses: Vec::new() };
        let output = router.child.stdout.take().expect("stdout");
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line == "ready" {
                return router;
            }
            let (name, address) = line.split_once(' ').expect("a name and an address");
            router.addresses.push((name.to_owned(), address.trim().parse().expect("an address")));
        }
        let log = std::fs::read_to_string(cluster.path().join("log")).unwrap_or_default();
        panic!("it ended before it was ready:\n{log}");
    }

    fn address(&self, name: &str) -> SocketAddr {
        self.addresses.iter().find(|(known, _)| known == name).expect("it listens").1
    }

    fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("SIGTERM");
    }

    fn status(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(started.elapsed() < WAIT_LIMIT, "hutch router does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: r\r\nconnection: close\r\n{headers}\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A program in the sandbox: answers `inside` to each request, after `pause`.
fn sandbox(pause: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().expect("cloned")).lines();
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                std::thread::sleep(pause);
                let mut stream = stream;
                let _ =
                    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\ninside");
            });
        }
    });
    port
}

#[test]
fn invalid_configuration_is_an_error() {
    for (words, named) in [
        (&["router"][..], "--authz-mode"),
        (&["router", "--authz-mode=unknown"], "--authz-mode"),
        (&["router", "--nonsense"], "--nonsense"),
        (&["router", "--authz-mode=scoped-token"], "--authz-scoped-token-secret-file"),
        (&["router", "--authz-mode=allow-all", "--config=/nonexistent"], "/nonexistent"),
    ] {
        let output = hutch(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(named) && text.lines().count() == 1, "{words:?}: {text}");
    }
    let output = hutch(&["router", "--authz-mode=allow-all", "--kubeconfig=/nonexistent"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("--kubeconfig"), "{text}");
    let output = hutch(&["router", "--help"]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("--authz-mode"));
}

#[test]
fn scoped_token_opens_its_sandbox_alone() {
    let cluster = Cluster::start();
    let key = cluster.path().join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").expect("written");
    let key = key.display().to_string();
    let file = cluster.path().join("router.yaml");
    std::fs::write(&file, format!("authz-mode: scoped-token\nauthz-scoped-token-secret-file: {key}\n"))
        .expect("written");
    let router = Router::start(&cluster, &["--config", &file.display().to_string()]);
    let port = sandbox(Duration::ZERO);
    let base = format!("x-sandbox-id: a\r\nx-sandbox-port: {port}\r\n");
    let http = router.address("http");
    assert!(get(http, "/", &base).starts_with("HTTP/1.1 401 "));
    let token = |words: &[&str]| {
        let output = hutch(&[&["token", "create", "--key-file", &key], words].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let token = String::from_utf8(output.stdout).expect("text");
        format!("{base}authorization: Bearer {}\r\n", token.trim())
    };
    let answer = get(http, "/", &token(&["a"]));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("inside"), "{answer}");
    assert!(get(http, "/", &token(&["b"])).starts_with("HTTP/1.1 403 "));
    assert!(get(http, "/", &token(&["a", "--uid", "an-earlier-life"])).starts_with("HTTP/1.1 403 "));
    assert!(get(http, "/", &token(&["a", "--namespace", "other"])).starts_with("HTTP/1.1 403 "));
    let short = cluster.path().join("short");
    std::fs::write(&short, "too short").expect("written");
    let refused = hutch(&["token", "create", "a", "--key-file", &short.display().to_string()]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(1) && text.contains("--key-file") && text.lines().count() == 1,
        "{text}"
    );
}

#[test]
fn reviewed_token_opens_every_sandbox() {
    let cluster = Cluster::start();
    let router = Router::start(&cluster, &["--authz-mode=tokenreview"]);
    let base = format!("x-sandbox-id: a\r\nx-sandbox-port: {}\r\n", sandbox(Duration::ZERO));
    let ask =
        |token: &str| get(router.address("http"), "/", &format!("{base}authorization: Bearer {token}\r\n"));
    assert!(ask(TOKEN).starts_with("HTTP/1.1 200 "));
    assert!(ask("another-token").starts_with("HTTP/1.1 401 "));
    assert!(get(router.address("http"), "/", &base).starts_with("HTTP/1.1 401 "));
}

#[test]
fn new_sandbox_is_routed_and_deleted_one_is_not() {
    let cluster = Cluster::start();
    let router = Router::start(&cluster, &["--authz-mode=allow-all"]);
    let port = sandbox(Duration::ZERO);
    let http = router.address("http");
    let ask = |name: &str| get(http, "/", &format!("x-sandbox-id: {name}\r\nx-sandbox-port: {port}\r\n"));
    assert!(ask("b").starts_with("HTTP/1.1 502 "));
    cluster.runtime.block_on(add(&cluster.client, "b"));
    assert!(ask("b").starts_with("HTTP/1.1 200 "), "at once, before a watch could tell");
    let pods: Api<DynamicObject> = Api::default_namespaced_with(
        cluster.client.clone(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod")),
    );
    let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..kube::api::DeleteParams::default() };
    cluster.runtime.block_on(pods.delete("b", &now)).expect("deleted");
    let started = Instant::now();
    while !ask("b").starts_with("HTTP/1.1 502 ") {
        assert!(started.elapsed() < WAIT_LIMIT, "it is still routed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(get(router.address("health-probe"), "/readyz", "").ends_with("ok"));
    assert!(get(router.address("health-probe"), "/healthz", "").ends_with(r#"{"status":"ok"}"#));
    let metrics = get(router.address("metrics"), "/metrics", "");
    let counted = r#"sandbox_router_requests_total{code="200",method="GET",sandbox_namespace="default"}"#;
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn request_in_progress_is_answered_after_sigterm() {
    let cluster = Cluster::start();
    let mut router = Router::start(&cluster, &["--authz-mode=allow-all"]);
    let port = sandbox(Duration::from_secs(1));
    let http = router.address("http");
    let asking = std::thread::spawn(move || {
        get(http, "/slow?key=1", &format!("x-sandbox-id: a\r\nx-sandbox-port: {port}\r\n"))
    });
    std::thread::sleep(Duration::from_millis(300));
    router.terminate();
    assert!(asking.join().expect("asked").ends_with("inside"));
    assert_eq!(router.status(), Some(0));
    let log = std::fs::read_to_string(cluster.path().join("log")).expect("a log");
    let line = log.lines().find(|line| line.contains(r#""msg":"request""#)).expect("a line for the request");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(
        (&line["path"], &line["status"], &line["sandbox_id"]),
        (&json!("/slow"), &json!(200), &json!("a"))
    );
}

/// A program in the sandbox that answers with the head of each request.
fn mirror() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(stream.try_clone().expect("cloned")).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let head = head.join("\n");
            let length = head.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{head}"
            );
        }
    });
    port
}

/// The trace context that reached the sandbox.
fn reached(answer: &str) -> (Option<String>, Option<String>) {
    let header = |name: &str| answer.lines().find_map(|line| Some(line.strip_prefix(name)?.to_owned()));
    (header("traceparent: "), header("tracestate: "))
}

#[test]
fn request_is_a_span_between_those_of_client_and_sandbox() {
    let cluster = Cluster::start();
    let (collector, endpoint) = cluster.runtime.block_on(Collector::start());
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let (traced, untraced) =
        (["--authz-mode=allow-all"], ["--authz-mode=allow-all", "--enable-tracing=false"]);
    let port = mirror();
    let base = format!("x-sandbox-id: a\r\nx-sandbox-port: {port}\r\nauthorization: Bearer hush-hush\r\n");
    let (trace, client) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let context = format!("traceparent: 00-{trace}-{client}-01\r\ntracestate: v=1\r\n");

    let mut router = Router::start_with(&cluster, &traced, &variables);
    let address = router.address("http");
    let (parent, state) = reached(&get(address, "/p?key=hush-hush", &format!("{base}{context}")));
    let parent = parent.expect("the trace is handed on");
    assert_eq!(state.as_deref(), Some("v=1"));
    let (fresh, none) = reached(&get(address, "/fresh", &base));
    assert_eq!(none, None);
    let twice = format!("{base}{context}traceparent: 00-{trace}-{client}-01\r\n");
    let (third, _) = reached(&get(address, "/twice", &twice));
    assert!(!third.expect("one of its own").contains(trace), "what is given twice names nothing");
    assert!(get(address, "/missing", "x-sandbox-id: missing\r\n").starts_with("HTTP/1.1 502 "));
    get(address, "/healthz", "");
    router.terminate();
    assert_eq!(router.status(), Some(0));

    let received = collector.received();
    assert!(received.iter().all(|(about, _)| about["service.name"] == "sandbox-router"));
    assert!(!format!("{received:?}").contains("hush"), "{received:#?}");
    let span = |path: &str| {
        let mut of = received.iter().filter(|(_, span)| texts(&span.attributes)["url.path"] == path);
        of.next().unwrap_or_else(|| panic!("no span of {path}")).1.clone()
    };
    let (first, missing) = (span("/p"), span("/missing"));
    assert_eq!((hex(&first.trace_id).as_str(), hex(&first.parent_span_id).as_str()), (trace, client));
    assert_eq!(parent, format!("00-{trace}-{}-01", hex(&first.span_id)), "the sandbox continues this span");
    let about = texts(&first.attributes);
    let told = |key: &str| about.get(key).map(String::as_str);
    assert_eq!((told("sandbox.name"), told("sandbox.namespace")), (Some("a"), Some("default")));
    assert_eq!((told("http.request.method"), first.name.as_str()), (Some("GET"), "GET"));
    let own = span("/fresh");
    assert!(own.parent_span_id.is_empty());
    assert_eq!(fresh, Some(format!("00-{}-{}-01", hex(&own.trace_id), hex(&own.span_id))));
    // 2 is an error.
    assert_eq!(missing.status.expect("a status").code, 2);
    assert_eq!(received.len(), 4, "none for /healthz");

    let router = Router::start_with(&cluster, &untraced, &variables);
    let (parent, state) = reached(&get(router.address("http"), "/p", &format!("{base}{context}")));
    assert_eq!(
        (parent, state.as_deref()),
        (Some(format!("00-{trace}-{client}-01")), Some("v=1")),
        "as it came"
    );
    assert_eq!(collector.received().len(), 4);
}
