//! Finds out whether the network plugin of a cluster enforces NetworkPolicy.
//!
//! A Pod that a NetworkPolicy lets connect to one port of the gateway tries another one, and reports at the first whether it
//! got through. Without a report nothing is known: a Pod that does not run proves nothing.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::condition::Plugin;
use crate::cli::ProbeArguments;

/// Value of the label `app` of the Pods of the gateway, and of those of the probe.
const GATEWAY: &str = "hutch-egress";
const PROBE: &str = "hutch-egress-probe";
/// Maximum time until the Pod has reported.
const REPORT: Duration = Duration::from_secs(180);
/// Pause after a probe, and after one without a result.
const AGAIN: Duration = Duration::from_secs(3600);
const RETRY: Duration = Duration::from_secs(60);
/// Age of objects that a gateway has left behind.
const LEFT: i64 = 600;
/// Attempts to connect, a second apart: a plugin may need a while for a new Pod. This many refusals in a row are a result.
const ATTEMPTS: usize = 20;
const REFUSALS: usize = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum time of an attempt.
const CONNECT: Duration = Duration::from_secs(2);
/// Maximum clients whose report is read at once. Others wait.
const REPORTS: usize = 64;
/// Words of a report.
const OPEN: &str = "open";
const CLOSED: &str = "closed";

/// Repeats the probe, and sends each result.
pub(super) async fn repeat(client: Client, own: IpAddr, image: String, results: mpsc::Sender<Plugin>) {
    loop {
        let result = match probe(&client, own, &image).await {
            Ok(plugin) => plugin,
            Err(error) => {
                tracing::warn!("failed to probe the network plugin; trying again: {error:#}");
                Plugin::Unknown
            }
        };
        tracing::info!(plugin = ?result, "probed whether the network plugin enforces NetworkPolicy");
        if results.send(result).await.is_err() {
            return;
        }
        sleep(if result == Plugin::Unknown { RETRY } else { AGAIN }).await;
    }
}

async fn probe(client: &Client, address: IpAddr, image: &str) -> anyhow::Result<Plugin> {
    let open = TcpListener::bind((address, 0)).await.context("a port")?;
    let closed = TcpListener::bind((address, 0)).await.context("a port")?;
    let name = format!("{PROBE}-{:08x}", rand::random::<u32>());
    let nonce = format!("{:032x}", rand::random::<u128>());
    let (pods, policies): (Api<Pod>, Api<NetworkPolicy>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    sweep(&pods).await?;
    sweep(&policies).await?;
    let policy = policy(&name, open.local_addr()?.port());
    policies.create(&PostParams::default(), &read(policy)?).await.context("the NetworkPolicy")?;
    let program = std::env::current_exe().context("this program")?;
    let pod = pod(&name, image, &program, &[open.local_addr()?, closed.local_addr()?], &nonce);
    let created = pods.create(&PostParams::default(), &read(pod)?).await;
    let reported = match created {
        Ok(_) => tokio::select! {
            reported = timeout(REPORT, report(&open, &nonce)) => reported.ok(),
            () = accept(&closed) => None,
        },
        Err(_) => None,
    };
    // Left behind, they are deleted by a later probe.
    let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
    let _ = policies.delete(&name, &DeleteParams::default()).await;
    created.context("the Pod")?;
    match reported {
        Some(plugin) => Ok(plugin),
        None => bail!("its Pod has not reported within {REPORT:?}"),
    }
}

/// Returns the address of this machine from which packets to the API server are sent. None is sent.
pub(super) fn own_address(server: &http::Uri) -> anyhow::Result<IpAddr> {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let found = (host, server.port_u16().unwrap_or(443)).to_socket_addrs()?.next();
    let found = found.with_context(|| format!("{host} has no address"))?;
    let any = if found.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(found)?;
    Ok(socket.local_addr()?.ip())
}

/// Deletes what gateways have left behind.
async fn sweep<K>(api: &Api<K>) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let left = api.list_metadata(&ListParams::default().labels(&format!("app={PROBE}"))).await?;
    let now = Timestamp::now().as_second();
    for object in left.items {
        let created = object.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
        if created.is_some_and(|created| now - created > LEFT) {
            let _ = api.delete(&object.metadata.name.unwrap_or_default(), &DeleteParams::default()).await;
        }
    }
    Ok(())
}

fn read<K: DeserializeOwned>(object: Value) -> anyhow::Result<K> {
    serde_json::from_value(object).context("an object of the probe")
}

/// As that of a template: it opens one port of the gateway, and nothing else.
fn policy(name: &str, port: u16) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": PROBE}},
        "spec": {
            "podSelector": {"matchLabels": {"app": PROBE, "probe": name}},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": {"matchLabels": {"app": GATEWAY}}}],
                "ports": [{"port": port, "protocol": "TCP"}]}],
        },
    })
}

fn pod(name: &str, image: &str, program: &Path, [open, closed]: &[SocketAddr; 2], nonce: &str) -> Value {
    let command = json!([
        program,
        "probe-network",
        "--open",
        open.to_string(),
        "--closed",
        closed.to_string(),
        "--nonce",
        nonce
    ]);
    json!({
        "metadata": {"name": name, "labels": {"app": PROBE, "probe": name}},
        "spec": {
            "restartPolicy": "Never", "activeDeadlineSeconds": REPORT.as_secs(),
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "probe", "image": image, "command": command,
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

/// Accepts connections without an end. Otherwise any Pod could fill the queue of the port, which would then seem closed.
async fn accept(listener: &TcpListener) {
    loop {
        if listener.accept().await.is_err() {
            sleep(PAUSE).await;
        }
    }
}

/// Waits for the report of the Pod that knows the nonce. Other Pods may connect too, and say nothing.
async fn report(open: &TcpListener, nonce: &str) -> Plugin {
    let mut reports = JoinSet::new();
    loop {
        tokio::select! {
            accepted = open.accept(), if reports.len() < REPORTS => match accepted {
                Ok((client, _)) => drop(reports.spawn(read_report(client))),
                Err(_) => sleep(PAUSE).await,
            },
            Some(line) = reports.join_next() => {
                match line.unwrap_or_default().trim_end().split_once(' ') {
                    Some((sent, OPEN)) if sent == nonce => return Plugin::Ignores,
                    Some((sent, CLOSED)) if sent == nonce => return Plugin::Enforces,
                    _ => {}
                }
            }
        }
    }
}

async fn read_report(client: TcpStream) -> String {
    let mut line = String::new();
    // Anything else has not come from the Pod.
    let _ = timeout(CONNECT, client.take(128).read_to_string(&mut line)).await;
    line
}

/// Runs in the Pod.
pub(crate) fn main(arguments: &ProbeArguments) -> std::process::ExitCode {
    let ran = crate::runtime::runtime().and_then(|runtime| runtime.block_on(run(arguments, PAUSE)));
    match ran {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &ProbeArguments, pause: Duration) -> anyhow::Result<()> {
    let mut refusals = 0;
    for _ in 0..ATTEMPTS {
        refusals = if connect(arguments.closed).await.is_some() { 0 } else { refusals + 1 };
        if refusals == REFUSALS {
            break;
        }
        sleep(pause).await;
    }
    let word = if refusals == REFUSALS { CLOSED } else { OPEN };
    for _ in 0..ATTEMPTS {
        if let Some(mut stream) = connect(arguments.open).await {
            stream.write_all(format!("{} {word}\n", arguments.nonce).as_bytes()).await.context("--open")?;
            return stream.shutdown().await.context("--open");
        }
        sleep(pause).await;
    }
    bail!("--open {}: cannot be reached", arguments.open)
}

async fn connect(address: SocketAddr) -> Option<TcpStream> {
    timeout(CONNECT, TcpStream::connect(address)).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn plugin_enforces_what_a_pod_cannot_reach() {
        let open = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut arguments = ProbeArguments {
            open: open.local_addr().unwrap(),
            closed: closed.local_addr().unwrap(),
            nonce: "n".into(),
        };
        let pause = Duration::from_millis(1);
        let (ran, plugin) = tokio::join!(run(&arguments, pause), report(&open, "n"));
        assert_eq!((ran.is_ok(), plugin), (true, Plugin::Ignores));
        drop(closed);
        let (ran, plugin) = tokio::join!(run(&arguments, pause), report(&open, "n"));
        assert_eq!((ran.is_ok(), plugin), (true, Plugin::Enforces));
        // A report with another nonce does not count.
        arguments.nonce = "other".into();
        let waited = timeout(Duration::from_millis(200), report(&open, "n"));
        let (ran, plugin) = tokio::join!(run(&arguments, pause), waited);
        assert!(ran.is_ok() && plugin.is_err());
    }
}
