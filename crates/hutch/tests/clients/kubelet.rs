//! Plays the kubelet of a cluster that has none: starts the real sandboxd, or the command that a container names, for every
//! Pod on an address of its own, and tells the API server that the Pod is ready once it listens there.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::process::{Child, Command};

/// Where the runtime's HTTP contract is served, and anything else that the tests start.
const PORT: u16 = 8888;

/// A process that stands for a Pod. With it go its address and its files.
struct Running {
    _child: Child,
    _address: Address,
    _files: tempfile::TempDir,
}

/// An address of this machine's `lo`.
struct Address(Ipv4Addr);

impl Address {
    fn add(address: Ipv4Addr) -> Address {
        change("add", address);
        Address(address)
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        change("del", self.0);
    }
}

fn change(verb: &str, address: Ipv4Addr) {
    let status = std::process::Command::new("ip")
        .args(["address", verb, &format!("{address}/32"), "dev", "lo"])
        .stderr(Stdio::null())
        .status();
    assert!(status.is_ok(), "ip is missing: {status:?}");
}

/// Runs until it is aborted; then every process and address is gone.
pub(crate) async fn run(client: Client, sandboxd: PathBuf) {
    let mut pods: HashMap<String, Running> = HashMap::new();
    let mut events =
        std::pin::pin!(watcher::watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()));
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                let uid = pod.uid().unwrap_or_default();
                if pods.contains_key(&uid) || pod.metadata.deletion_timestamp.is_some() {
                    continue;
                }
                let own = address();
                pods.insert(uid, start(&pod, own, &sandboxd));
                tokio::spawn(report(client.clone(), pod, own));
            }
            Ok(watcher::Event::Delete(pod)) => drop(pods.remove(&pod.uid().unwrap_or_default())),
            Ok(_) | Err(_) => {}
        }
    }
}

/// One that nobody else on this machine uses: several processes may run such tests, and several tests be in one.
fn address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::from(0x0a70_0000 | (std::process::id() & 0x3f) << 14 | (number & 0x3fff))
}

fn start(pod: &Pod, address: Ipv4Addr, sandboxd: &Path) -> Running {
    let spec = pod.spec.as_ref().expect("the API server gives every Pod a spec");
    let container = &spec.containers[0];
    let held = Address::add(address);
    let files = tempfile::tempdir().expect("tempdir");
    let mut command = match container.command.as_deref() {
        Some([program, arguments @ ..]) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        _ => {
            let mut command = Command::new(sandboxd);
            command.args(["--listen-host", &address.to_string()]);
            command
        }
    };
    command.envs(environment(container)).env("POD_IP", address.to_string());
    command.env("SANDBOX_BASE_DIR", files.path().join("app")).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().expect("the process of a Pod starts");
    Running { _child: child, _address: held, _files: files }
}

fn environment(container: &Container) -> HashMap<String, String> {
    let variables = container.env.iter().flatten();
    variables.filter_map(|variable| Some((variable.name.clone(), variable.value.clone()?))).collect()
}

async fn report(client: Client, pod: Pod, address: Ipv4Addr) {
    while tokio::net::TcpStream::connect((address, PORT)).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let time = jiff::Timestamp::now().to_string();
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": time});
    let status = json!({"status": {
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [condition("PodScheduled"), condition("Initialized"), condition("ContainersReady"), condition("Ready")],
    }});
    let api: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
    // It may be gone by now.
    let _ = api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await;
}
