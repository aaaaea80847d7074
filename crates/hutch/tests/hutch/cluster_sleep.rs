//! Sleep on a cluster: a real API server, `hutch controller`, `hutch router` with the rights that `deploy/` gives it and no
//! others, and a Node whose Pods are real sandboxd processes.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use hutch_api::Sandbox;
use hutch_testkit::cluster::{Cluster, Options, Worker};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::deploy::manifests::{folder, objects, read, text};
use crate::harness::HUTCH;

const NAMESPACE: &str = "default";
const ROUTER: &str = "system:serviceaccount:agent-sandbox-system:sandbox-router";
/// When these Sandboxes fall asleep, and how often use of them is reported at the most: a quarter of it.
const AFTER: Duration = Duration::from_secs(4);

struct Running {
    // Ends before its cluster.
    _worker: Worker,
    cluster: Cluster,
    client: Client,
    token: String,
}

impl Running {
    async fn start() -> Running {
        let options = Options { node: false, ..Options::default() };
        let mut cluster = Cluster::start(options).await.expect("a cluster");
        let client = cluster.client("test").await.expect("a client");
        let installed =
            Command::new(HUTCH).args(["sandboxd", "install"]).arg(cluster.folder()).output().expect("hutch");
        assert!(installed.status.success(), "{installed:?}");
        let sandboxd = PathBuf::from(String::from_utf8(installed.stdout).expect("a path").trim());
        let worker = Worker::start(&cluster, &sandboxd).await.expect("a Node");
        // What needs no program to run is there; the rest would be taken too.
        for object in objects().iter().filter(|object| object["kind"] != "CustomResourceDefinition") {
            let here = ["Namespace", "ServiceAccount"].contains(&text(object, "/kind"))
                || text(object, "/kind").contains("Role");
            apply(&client, object, !here).await;
        }
        for file in ["template.yaml", "template-with-token.yaml"] {
            for object in read(&folder().join("sandboxd").join(file)) {
                apply(&client, &object, true).await;
            }
        }
        let mut command = Command::new(HUTCH);
        command.args(["controller", "--extensions", "--enable-webhook=false", "--leader-elect=false"]);
        command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
        command.arg("--kubeconfig").arg(cluster.kubeconfig());
        cluster.spawn("controller", command).expect("the controller starts");
        let account =
            cluster.service_account("agent-sandbox-system", "sandbox-router").await.expect("a token");
        let mut command = Command::new(HUTCH);
        command.args([
            "router",
            "--http-bind-address=127.0.0.1:0",
            "--authz-mode=tokenreview",
            "--wake-on-connect",
        ]);
        command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
        command.arg("--kubeconfig").arg(account.kubeconfig());
        cluster.spawn("router", command).expect("the router starts");
        let users =
            std::fs::read_to_string(cluster.folder().join("tokens.csv")).expect("the administrator's token");
        let token = users.split(',').next().expect("a token").to_owned();
        let running = Running { _worker: worker, cluster, client, token };
        running.until("the router listens", async || running.router_log().contains("ready")).await;
        running
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        self.cluster.until(what, holds).await.unwrap();
    }

    fn router_log(&self) -> String {
        std::fs::read_to_string(self.cluster.program("router").expect("it runs").log()).expect("its log")
    }

    fn api(&self) -> Api<Sandbox> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn get(&self, name: &str) -> Value {
        serde_json::to_value(self.api().get(name).await.expect(name)).expect("JSON")
    }

    async fn until_so(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.until(&format!("{name}: {what}"), async || holds(&self.get(name).await)).await;
        self.get(name).await
    }

    /// A Sandbox that is Ready.
    async fn sandbox(&self, name: &str, annotations: Value) {
        let object = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}});
        let object = serde_json::from_value(object).expect("a Sandbox");
        self.api().create(&PostParams::default(), &object).await.expect(name);
        self.until_so(name, "ready", |sandbox| says(sandbox, "Ready")).await;
    }

    async fn patch(&self, name: &str, patch: Value) {
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect(name);
    }

    /// The status of an answer to a request through the router.
    async fn ask(&self, name: &str) -> u16 {
        let log = self.router_log();
        let address =
            log.lines().find_map(|line| line.strip_prefix("http ")).expect("where it listens").trim();
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let token = &self.token;
        let request = format!(
            "GET / HTTP/1.1\r\nhost: r\r\nconnection: close\r\nx-sandbox-id: {name}\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
    }

    /// Writes of the router's account to that Sandbox so far: those that were taken, and those that were refused.
    fn writes(&self, name: &str) -> (usize, usize) {
        let log = std::fs::read_to_string(self.cluster.folder().join("audit.log")).expect("the audit log");
        let codes: Vec<u64> = log
            .lines()
            // The last line may be half written.
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| event["stage"] == "ResponseComplete" && event["user"]["username"] == ROUTER)
            .filter(|event| {
                event["objectRef"]["resource"] == "sandboxes" && event["objectRef"]["name"] == name
            })
            .filter_map(|event| event["responseStatus"]["code"].as_u64())
            .collect();
        let taken = codes.iter().filter(|code| **code < 300).count();
        (taken, codes.iter().filter(|code| **code == 403).count())
    }
}

async fn apply(client: &Client, object: &Value, dry: bool) {
    let (version, kind, name) =
        (text(object, "/apiVersion"), text(object, "/kind"), text(object, "/metadata/name"));
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None if kind.starts_with("Sandbox") => Api::namespaced_with(client.clone(), NAMESPACE, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams { dry_run: dry, ..PatchParams::apply("test").force() };
    let applied = api.patch(name, &params, &Patch::Apply(object)).await;
    applied.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
}

fn says(sandbox: &Value, condition: &str) -> bool {
    let conditions = sandbox["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == condition && c["status"] == "True")
}

fn annotation<'a>(sandbox: &'a Value, key: &str) -> Option<&'a str> {
    sandbox["metadata"]["annotations"][key].as_str()
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_sandbox_is_suspended_and_the_next_request_resumes_it() {
    hutch_testkit::require!(root, kubernetes);
    let running = Running::start().await;
    without_the_right_nothing_is_reported(&running).await;
    for object in read(&folder().join("sandbox-sleep.yaml")) {
        apply(&running.client, &object, false).await;
    }
    tokio::join!(requests_keep_it_awake(&running), so_does_what_is_seen_inside_alone(&running));
    assert_eq!(running.writes("requested").1 + running.writes("inside").1, 0, "refused");
}

/// Requests are answered anyway, and a Sandbox without reports of use stays awake.
async fn without_the_right_nothing_is_reported(running: &Running) {
    running.sandbox("unreported", json!({"hutch.dev/suspend-after": "1s"})).await;
    assert_eq!(running.ask("unreported").await, 200);
    running.until("it says so", async || running.router_log().contains("activity is not reported")).await;
    let (taken, refused) = running.writes("unreported");
    assert!(taken == 0 && refused > 0, "{taken} {refused}");
    let sandbox = running.get("unreported").await;
    assert_eq!(annotation(&sandbox, "hutch.dev/last-activity"), None);
    assert_eq!(sandbox["spec"]["operatingMode"], "Running");
    running.api().delete("unreported", &Default::default()).await.expect("deleted");
}

async fn requests_keep_it_awake(running: &Running) {
    let name = "requested";
    let wanted = json!({"hutch.dev/suspend-after": "4s", "hutch.dev/wake-on-connect": "true"});
    running.sandbox(name, wanted).await;
    // A right that was just given takes a moment to be known.
    running
        .until("a report is taken", async || running.ask(name).await == 200 && running.writes(name).0 > 0)
        .await;

    // A machine that pauses for a while may let it sleep; the next request wakes it.
    let mut awake = false;
    for _ in 0..5 {
        let (begun, before) = (Instant::now(), running.writes(name).0);
        let mut requests = 0;
        awake = true;
        while begun.elapsed() < AFTER * 3 {
            assert_eq!(running.ask(name).await, 200);
            requests += 1;
            awake &= running.get(name).await["spec"]["operatingMode"] == "Running";
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let most = begun.elapsed().as_millis() / (AFTER / 4).as_millis() + 2;
        let written = running.writes(name).0 - before;
        if awake {
            assert!(
                written as u128 <= most,
                "{written} reports of {requests} requests, in {:?}",
                begun.elapsed()
            );
            assert!(requests > written * 3, "{written} reports of {requests} requests");
            break;
        }
    }
    assert!(awake, "it falls asleep in use");

    let asleep = running.until_so(name, "asleep", |sandbox| says(sandbox, "Suspended")).await;
    assert_eq!(asleep["spec"]["operatingMode"], "Suspended");
    let generation = asleep["metadata"]["generation"].as_i64().expect("a generation");
    assert_eq!(annotation(&asleep, "hutch.dev/asleep-generation"), Some(generation.to_string().as_str()));
    let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(running.client.clone(), NAMESPACE);
    running.until("its Pod is gone", async || pods.get_opt(name).await.expect("an answer").is_none()).await;

    // Every request is held, and one resume serves all.
    let asked = futures::future::join_all((0..20).map(|_| running.ask(name))).await;
    assert_eq!(asked, [200; 20]);
    let woken = running.get(name).await;
    assert_eq!(woken["metadata"]["generation"], generation + 1, "it was woken once");

    // What a user has suspended stays so.
    running.patch(name, json!({"spec": {"operatingMode": "Suspended"}})).await;
    running.until_so(name, "suspended", |sandbox| says(sandbox, "Suspended")).await;
    assert_eq!(running.ask(name).await, 502);
    assert_eq!(running.get(name).await["spec"]["operatingMode"], "Suspended");
}

/// No request passes through the router; sandboxd reports the use.
async fn so_does_what_is_seen_inside_alone(running: &Running) {
    let name = "inside";
    running.sandbox(name, json!({"hutch.dev/suspend-after": "4s", "hutch.dev/activity-port": "8080"})).await;
    for _ in 0..5 {
        let address = running.get(name).await["status"]["podIPs"][0].as_str().expect("an address").to_owned();
        let mut client = TcpStream::connect((address.as_str(), 8080)).await.expect("connected");
        client.write_all(b"GET /v1/watch/ HTTP/1.1\r\nhost: s\r\n\r\n").await.expect("sent");
        client.read_u8().await.expect("it has begun");
        let begun = Instant::now();
        let mut awake = true;
        while awake && begun.elapsed() < AFTER * 3 {
            awake = running.get(name).await["spec"]["operatingMode"] == "Running";
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        drop(client);
        let asleep = running.until_so(name, "asleep", |sandbox| says(sandbox, "Suspended")).await;
        assert!(annotation(&asleep, "hutch.dev/last-activity").is_some());
        if awake {
            return;
        }
        running.patch(name, json!({"spec": {"operatingMode": "Running"}})).await;
        running.until_so(name, "awake again", |sandbox| says(sandbox, "Ready")).await;
    }
    panic!("it falls asleep while it is in use");
}
