//! `hutch egress --cluster` beside a real Kubernetes, with Pods that are processes: a Sandbox reaches through it what its
//! policies allow, and no other client reaches anything.
//!
//! The names of the servers are in a hosts file that only the gateway sees.

mod audited;
mod credentials;
mod enforced;
mod peers;
mod reads;
mod replicas;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hutch_testkit::cluster::{Cluster, Options, Worker};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::control_plane::sandboxd;
use crate::deploy::manifests::folder;
use crate::harness::{HUTCH, succeeded, text};
use crate::inspected;

/// Address of the server. It is loopback, and no other test uses it.
const SERVER: &str = "127.78.0.1";
const GATEWAY: &str = "gateway";
/// Another one of the same cluster.
const SECOND: &str = "second-gateway";
/// One that does not probe the network plugin.
const UNPROBED: &str = "unprobed-gateway";
const NAMESPACE: &str = "agent-sandbox-system";
const KEY: &str = "0123456789abcdef0123456789abcdef";

struct Running {
    // Ends before its cluster.
    _worker: Worker,
    cluster: Cluster,
    /// Address that Pods know.
    gateway: SocketAddr,
    server: u16,
    /// Bytes that the server has received.
    received: Arc<Mutex<Vec<u8>>>,
}

impl Running {
    async fn start() -> Running {
        Running::start_after(|_| ()).await
    }

    /// Starts after something else has begun that needs the cluster.
    async fn start_after(begin: impl FnOnce(&Cluster)) -> Running {
        Running::start_with(begin, &[GATEWAY]).await
    }

    /// Starts with several gateways, behind one address, and their audit logs, which are strict.
    async fn start_with(begin: impl FnOnce(&Cluster), gateways: &[&str]) -> Running {
        let options = Options { node: false, ..Options::default() };
        let mut cluster = Cluster::start(options).await.expect("a cluster");
        let worker = Worker::start(&cluster, &sandboxd(cluster.folder())).await.expect("a Node");
        let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy");
        kubectl(&cluster, &["apply", "--server-side", "-k", crds]);
        begin(&cluster);
        // The gateway has the rights that its manifest gives it, and no others.
        for file in ["namespace.yaml", "rbac.yaml", "egress.yaml"] {
            kubectl(&cluster, &["apply", "--server-side", "-f", &folder().join(file).display().to_string()]);
        }
        kubectl(&cluster, &["delete", "deployment", "hutch-egress", "-n", NAMESPACE]);
        let account = cluster.service_account(NAMESPACE, "hutch-egress").await.expect("a token");
        let mut command = Command::new("kubectl");
        command.args(["config", "set-context", "--current", "--namespace", NAMESPACE, "--kubeconfig"]);
        succeeded("set-context", &command.arg(account.kubeconfig()).output().expect("kubectl starts"));
        let folder = cluster.folder().to_owned();
        let file = |name: &str| folder.join(name).display().to_string();
        let (key, hosts, public) = (file("token.key"), file("hosts"), file("public/ca.pem"));
        inspected::authority(&cluster.folder().join("public"), &["tls.example", "passed.example"]);
        reads::authority(&cluster.folder().join("ca"));
        std::fs::write(&key, KEY).expect("written");
        std::fs::write(&hosts, format!("{SERVER} web.example other.example tls.example passed.example\n"))
            .expect("written");

        let mut served = Vec::new();
        for name in gateways {
            served.push(gateway(&mut cluster, name, account.kubeconfig()).await);
        }
        let gateway = match served[..] {
            [one] => one,
            _ => replicas::balance(served).await,
        };

        let account = cluster.service_account(NAMESPACE, "agent-sandbox-controller").await.expect("a token");
        let mut command = Command::new(HUTCH);
        command.args(["controller", "--extensions", "--enable-webhook=false", "--leader-elect=false"]);
        command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
        command.arg(format!("--egress-gateway=http://{gateway}"));
        command.arg(format!("--egress-gateway-token-key-file={key}"));
        command.arg(format!("--egress-gateway-ca-file={}", file("ca/tls.crt"))).env("SSL_CERT_FILE", &public);
        command.arg("--kubeconfig").arg(account.kubeconfig());
        cluster.spawn("controller", command).expect("the controller starts");
        let (server, received) = serve();
        Running { _worker: worker, cluster, gateway, server, received }
    }

    /// Runs `hutch audit` on the log of a gateway.
    fn audit(&self, gateway: &str, words: &[&str]) -> Output {
        let mut command = Command::new(HUTCH);
        command.arg("audit").args(words).arg("--data-dir").arg(data(&self.cluster, gateway));
        command.output().expect("hutch starts")
    }

    /// Waits until the log of a gateway has a line with all of these parts.
    async fn until_recorded(&self, gateway: &str, words: &[&str], parts: &[&str]) {
        let holds = async || {
            let printed = text(&self.audit(gateway, words).stdout);
            printed.lines().any(|line| parts.iter().all(|part| line.contains(part)))
        };
        self.cluster.until(&format!("{words:?}: {parts:?}"), holds).await.unwrap();
    }

    fn kubectl(&self, words: &[&str]) -> String {
        kubectl(&self.cluster, words)
    }

    fn apply(&self, object: &Value) {
        let file = self.cluster.folder().join("object.json");
        std::fs::write(&file, object.to_string()).expect("written");
        self.kubectl(&["apply", "--server-side", "-f", &file.display().to_string()]);
    }

    /// A Sandbox that is Ready.
    fn sandbox(&self, name: &str) {
        self.sandbox_with(name, &json!({}));
    }

    /// A Sandbox whose Pod has this security context, when it is Ready.
    fn sandbox_with(&self, name: &str, context: &Value) {
        let container = json!({"name": "main", "image": "i", "command": ["sleep", "infinity"]});
        self.apply(&json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": name, "labels": {"app": "agent"}},
            "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container],
                "securityContext": context}}}}));
        self.kubectl(&["wait", "sandbox", name, "--for=condition=Ready", "--timeout=90s"]);
    }

    fn variable(&self, sandbox: &str, name: &str) -> String {
        let path = format!("jsonpath={{.spec.containers[0].env[?(@.name==\"{name}\")].value}}");
        self.kubectl(&["get", "pod", sandbox, "-o", &path])
    }

    fn token(&self, sandbox: &str) -> String {
        let url = self.variable(sandbox, "HTTPS_PROXY");
        let rest = url.strip_prefix("http://sandbox:").expect("a user");
        rest.split_once('@').expect("a host").0.to_owned()
    }

    fn address(&self, sandbox: &str) -> String {
        self.kubectl(&["get", "pod", sandbox, "-o", "jsonpath={.status.podIP}"])
    }

    /// Runs a script in a Sandbox.
    fn exec(&self, sandbox: &str, script: &str) -> Output {
        let mut command = Command::new(HUTCH);
        command.args(["exec", sandbox, "--", "sh", "-c", script]).stdin(Stdio::null());
        command.env("KUBECONFIG", self.cluster.kubeconfig()).env("HOME", self.cluster.folder());
        command.output().expect("hutch starts")
    }

    /// Status of the answer to a request for a host, by curl in a Sandbox. With CONNECT, that of the proxy.
    fn request(&self, sandbox: &str, host: &str, options: &str) -> String {
        // Pods have addresses, but no network of their own.
        let curl = format!(
            "curl -sS --max-time 20 -o /dev/null -w '%{{http_code}} %{{http_connect}}' {options} http://{host}:{}/",
            self.server
        );
        text(&self.exec(sandbox, &curl).stdout)
    }

    fn log(&self, program: &str) -> String {
        std::fs::read_to_string(self.cluster.program(program).expect("it runs").log()).expect("its log")
    }

    async fn until_request(&self, options: &str, status: &str) {
        let holds = async || self.request("one", "web.example", options) == status;
        self.cluster.until(&format!("{options}: {status}"), holds).await.unwrap();
    }
}

/// Folder of the persistent state of a gateway.
fn data(cluster: &Cluster, gateway: &str) -> PathBuf {
    cluster.folder().join(format!("data-{gateway}"))
}

/// Starts a gateway, and returns its address when it serves.
async fn gateway(cluster: &mut Cluster, name: &str, kubeconfig: &std::path::Path) -> SocketAddr {
    let path = |name: &str| cluster.folder().join(name);
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$1\" /etc/hosts && shift && cd / && exec \"$@\"";
    command.args(["--mount", "bash", "-c", script, "bash"]).arg(path("hosts"));
    command.args([HUTCH, "egress", "--cluster", "--listen", "127.0.0.1:0"]);
    if name != UNPROBED {
        command.arg("--probe-image=i");
    }
    command.arg("--token-key-file").arg(path("token.key")).arg("--ca-dir").arg(path("ca"));
    command.args(["--audit", "strict", "--data-dir"]).arg(data(cluster, name));
    command.env("SSL_CERT_FILE", path("public/ca.pem")).arg("--kubeconfig").arg(kubeconfig);
    cluster.spawn(name, command).expect("the gateway starts");
    let address = |cluster: &Cluster| {
        let log = std::fs::read_to_string(cluster.program(name)?.log()).ok()?;
        let line = log.lines().find_map(|line| line.strip_prefix("hutch: gateway at http://"))?;
        line.trim().parse().ok()
    };
    cluster.until("the gateway serves", async || address(cluster).is_some()).await.unwrap();
    address(cluster).expect("an address")
}

fn kubectl(cluster: &Cluster, words: &[&str]) -> String {
    let mut command = Command::new("kubectl");
    command.args(words).arg("--kubeconfig").arg(cluster.kubeconfig()).stdin(Stdio::null());
    succeeded(&words.join(" "), &command.output().expect("kubectl starts"))
}

/// A server that answers each request. Its port, and what it receives.
fn serve() -> (u16, Arc<Mutex<Vec<u8>>>) {
    let received = Arc::<Mutex<Vec<u8>>>::default();
    let kept = received.clone();
    let listener = TcpListener::bind((SERVER, 0)).expect("bind");
    let port = listener.local_addr().expect("address").port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let kept = kept.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    kept.lock().expect("no panic").extend_from_slice(&bytes[..count]);
                    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if client.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, received)
}

fn policy(server: u16) -> Value {
    let rule = json!({"name": "web", "hosts": ["web.example"], "ports": [server], "protocol": "TCP",
        "private": [SERVER]});
    json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {"name": "web"},
        "spec": {"appliesTo": {"selector": {"matchLabels": {"app": "agent"}}}, "egress": {"rules": [rule]}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_reaches_allowed_hosts_through_the_gateway_of_a_cluster() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, openssl);
    let running = Running::start().await;
    running.sandbox("one");
    running.sandbox("two");
    running.apply(&policy(running.server));

    // Pods that are processes have no network plugin.
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")]['reason', 'message']}";
    let condition = || running.kubectl(&["get", "sandbox", "one", "-o", path]);
    let ignored = "NotEnforced the network plugin of the cluster does not enforce NetworkPolicy";
    running.cluster.until("the plugin is probed", async || condition().starts_with(ignored)).await.unwrap();

    let own = "--interface $POD_IP";
    running.until_request(own, "200 000").await;
    assert_eq!(running.request("one", "web.example", &format!("{own} --proxytunnel")), "200 200", "CONNECT");
    assert_eq!(
        running.request("one", "web.example", &format!("{own} --proxy $ALL_PROXY")),
        "200 000",
        "SOCKS"
    );
    assert_eq!(running.request("one", "other.example", own), "403 000");
    assert_eq!(running.request("one", "other.example", &format!("{own} --proxytunnel")), "000 403");
    assert_eq!(running.request("one", "other.example", &format!("{own} --proxy $all_proxy")), "000 000");

    let (token, gateway) = (running.token("two"), running.gateway);
    let (one, two) = (running.address("one"), running.address("two"));
    for refused in [
        // The token of another Sandbox, none, and the own token from other addresses.
        format!("{own} --proxy http://sandbox:{token}@{gateway}"),
        format!("{own} --proxy http://{gateway}"),
        "--interface 127.0.0.1".to_owned(),
        format!("--interface {two}"),
    ] {
        assert_eq!(running.request("one", "web.example", &refused), "407 000", "{refused}");
        assert_eq!(running.request("one", "web.example", &format!("{refused} --proxytunnel")), "000 407");
    }
    for refused in [
        format!("{own} --proxy socks5h://sandbox:{token}@{gateway}"),
        format!("{own} --proxy socks5h://{gateway}"),
        format!("--interface {two} --proxy $ALL_PROXY"),
    ] {
        assert_eq!(running.request("one", "web.example", &refused), "000 000", "{refused}");
    }
    assert_eq!(running.request("two", "web.example", own), "200 000");

    closed_by_its_template(&running).await;
    closed_by_what_a_cluster_does_not_enforce(&running).await;

    let mut open = tunnel(&running, &one).await;
    running.kubectl(&["delete", "clustersandboxpolicy", "web"]);
    running.until_request(own, "403 000").await;
    let ended = tokio::time::timeout(Duration::from_secs(20), open.read(&mut [0])).await;
    assert!(!matches!(ended.expect("the open connection ends"), Ok(1..)));

    let log = running.log(GATEWAY);
    assert!(log.contains("default/one") && log.contains("other.example"), "{log}");
    let received = text(&running.received.lock().expect("no panic"));
    assert!(received.contains("GET / ") && !received.to_lowercase().contains("proxy-auth"), "{received}");
    for secret in [&token, &running.token("one"), KEY] {
        assert!(!log.contains(secret) && !running.log("controller").contains(secret), "a log has a secret");
        assert!(!received.contains(secret) && !received.contains(&base64(&format!("sandbox:{secret}"))));
    }
}

/// The NetworkPolicies of a template, and of Sandboxes without one, open the gateway alone.
async fn closed_by_its_template(running: &Running) {
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i"}]}}});
    running.apply(&json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "agents"}, "spec": spec}));
    let words = ["get", "networkpolicy", "-o", "jsonpath={.items[*].metadata.name}"];
    let names = "agents-network-policy one-sandbox-network two-sandbox-network";
    let holds = async || running.kubectl(&words) == names;
    running.cluster.until("the template has a NetworkPolicy, as the Sandboxes have", holds).await.unwrap();
    let (block, port) = (json!({"cidr": format!("{}/32", running.gateway.ip())}), running.gateway.port());
    let expected = json!([{"to": [{"ipBlock": block}], "ports": [{"port": port, "protocol": "TCP"}]}]);
    for name in names.split(' ') {
        let found = running.kubectl(&["get", "networkpolicy", name, "-o", "jsonpath={.spec.egress}"]);
        assert_eq!(serde_json::from_str::<Value>(&found).expect("JSON"), expected, "{name}");
    }
}

/// Rules for files, which a cluster does not enforce, close the network unless they are to be reported.
async fn closed_by_what_a_cluster_does_not_enforce(running: &Running) {
    let own = "--interface $POD_IP";
    let mut files = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy",
        "metadata": {"name": "files"}, "spec": {"appliesTo": {"selector": {"matchLabels": {"app": "agent"}}},
            "files": [{"path": "/etc/secrets", "access": "None"}]}});
    running.apply(&files);
    running.until_request(own, "403 000").await;
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")]['reason', 'message']}";
    let expected = "NotEnforced the network plugin of the cluster does not enforce NetworkPolicy: programs that ignore the \
        gateway may reach the network; through the gateway: policy \"files\": spec.files is enforced by `hutch up` alone: \
        no egress";
    let holds = async || running.kubectl(&["get", "sandbox", "one", "-o", path]) == expected;
    running.cluster.until("the condition names the field", holds).await.unwrap();
    files["spec"]["onUnsupported"] = "Report".into();
    running.apply(&files);
    running.until_request(own, "200 000").await;
    running.kubectl(&["delete", "clustersandboxpolicy", "files"]);
}

/// A connection through the gateway on which a request was answered.
async fn tunnel(running: &Running, source: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::new(source.parse().expect("an address"), 0)).expect("bound");
    let mut stream = socket.connect(running.gateway).await.expect("connected");
    let credential = base64(&format!("sandbox:{}", running.token("one")));
    let host = format!("web.example:{}", running.server);
    let request =
        format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Basic {credential}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    for (send, expected) in
        [("", "HTTP/1.1 200"), ("GET / HTTP/1.1\r\nHost: web.example\r\n\r\n", "HTTP/1.1 200 OK")]
    {
        stream.write_all(send.as_bytes()).await.expect("sent");
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes).await.expect("an answer");
        assert!(text(&bytes[..count]).starts_with(expected), "{}", text(&bytes[..count]));
    }
    stream
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
