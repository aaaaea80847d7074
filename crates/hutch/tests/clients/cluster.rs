//! A real API server with `hutch controller` and `hutch router`, and a kubelet whose Pods are processes of this machine.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use flate2::read::GzDecoder;
use hutch_testkit::cluster::{Cluster, Options};
use serde_json::json;

use super::kubelet;
use super::script::Settings;

const HUTCH: &str = env!("CARGO_BIN_EXE_hutch");
/// The program that `hutch` carries inside, compressed.
const SANDBOXD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hutch-sandboxd"));

/// File of the key that signs tokens.
const KEY: &str = "router.key";

pub(crate) struct Running {
    cluster: Cluster,
    kubelet: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(crate) async fn start() -> Running {
        let options = Options { node: false, ..Options::default() };
        let mut cluster = Cluster::start(options).await.expect("a cluster");
        let client = cluster.client("kubelet").await.expect("a client");
        let sandboxd = cluster.folder().join("sandboxd");
        let mut whole = Vec::new();
        GzDecoder::new(SANDBOXD).read_to_end(&mut whole).expect("what the build script packed");
        std::fs::write(&sandboxd, whole).expect("written");
        std::fs::set_permissions(&sandboxd, std::fs::Permissions::from_mode(0o755)).expect("executable");
        let kubelet = tokio::spawn(kubelet::run(client, sandboxd));
        start_controller(&mut cluster);
        start_routers(&mut cluster);
        let running = Running { cluster, kubelet };
        let ready = async || ["router", "scoped"].iter().all(|name| running.said(name, "ready").is_some());
        running.cluster.until("the routers listen", ready).await.unwrap();
        running
    }

    /// The rest of the line that starts with this, in what the program has printed.
    fn said(&self, program: &str, start: &str) -> Option<String> {
        let log = std::fs::read_to_string(self.cluster.program(program)?.log()).ok()?;
        log.lines().find_map(|line| line.strip_prefix(start)).map(|rest| rest.trim().to_owned())
    }

    pub(crate) fn settings(&self) -> Settings {
        let folder = self.cluster.folder();
        let users = std::fs::read_to_string(folder.join("tokens.csv")).expect("the administrator's token");
        let listens =
            |router: &str, name: &str| self.said(router, name).expect("the router says where it listens");
        let tls = json!({"router": format!("https://{}", listens("router", "https ")),
            "certificate": folder.join("server.crt"), "key": folder.join("server.key")});
        let scoped = json!({"router": format!("http://{}", listens("scoped", "http ")),
            "key": folder.join(KEY), "hutch": HUTCH});
        Settings {
            kubeconfig: self.cluster.kubeconfig().to_owned(),
            router: format!("http://{}", listens("router", "http ")),
            token: users.split(',').next().expect("a token").to_owned(),
            tls,
            scoped,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

fn start_controller(cluster: &mut Cluster) {
    let mut command = Command::new(HUTCH);
    command.args(["controller", "--extensions", "--enable-webhook=false", "--leader-elect=false"]);
    command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
    command.arg("--kubeconfig").arg(cluster.kubeconfig());
    cluster.spawn("controller", command).expect("the controller starts");
}

/// A router on free ports of loopback.
fn start_router(cluster: &mut Cluster, name: &str, flags: &[String]) {
    let mut command = Command::new(HUTCH);
    command.args(["router", "--http-bind-address=127.0.0.1:0", "--wake-on-connect"]).args(flags);
    command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
    command.arg("--kubeconfig").arg(cluster.kubeconfig());
    cluster.spawn(name, command).expect("the router starts");
}

/// One that asks the API server who somebody is. Its listener with TLS wants a certificate of the client; the API server's own is
/// as good as any.
fn start_routers(cluster: &mut Cluster) {
    let file = |name: &str| cluster.folder().join(name).display().to_string();
    let flags = [
        "--authz-mode=tokenreview".to_owned(),
        "--mtls-mode=required".to_owned(),
        "--https-bind-address=127.0.0.1:0".to_owned(),
        format!("--tls-cert-file={}", file("server.crt")),
        format!("--tls-key-file={}", file("server.key")),
        format!("--tls-client-ca-file={}", file("server.crt")),
    ];
    std::fs::write(file(KEY), "0123456789abcdef0123456789abcdef").expect("written");
    let scoped =
        ["--authz-mode=scoped-token".to_owned(), format!("--authz-scoped-token-secret-file={}", file(KEY))];
    start_router(cluster, "router", &flags);
    start_router(cluster, "scoped", &scoped);
}
