//! Measures the memory of the proxy of `hutch up` with many idle connections: joined, and with requests that are read.
//!
//! Each sandbox opens its share of TLS connections, makes one request on each, and keeps them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use hutch_testkit::cluster::Usage;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

use super::NAME;
use super::server::Servers;
use crate::claims::api;
use crate::machine::raise_descriptors;
use crate::server::Server;

const CONNECTIONS: usize = 10_000;
/// Connections of each sandbox, which may have 512, and 64 whose requests are read.
const JOINED: usize = 500;
const READ: usize = 50;
/// Time in which the sandboxes start. Later, an idle connection whose requests are read would end before the last is open.
const START: Duration = Duration::from_secs(30);
/// Maximum time until all connections are open.
const WAIT_LIMIT: Duration = Duration::from_secs(180);
/// Name of the proxy's process.
const PROCESS: &str = "hutch-egress";

/// Opens connections, makes a request on each, and keeps them.
const PROGRAM: &str = "
import socket, ssl, sys, time
name, port, count, begin, pem = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
context = ssl.create_default_context()
context.load_verify_locations(cadata=pem)
kept = []
time.sleep(max(0, begin - time.time()))
for _ in range(count):
    one = context.wrap_socket(socket.create_connection((name, port), 60), server_hostname=name)
    one.sendall(b'GET /a HTTP/1.1\\r\\nHost: %s:%d\\r\\n\\r\\n' % (name.encode(), port))
    assert one.recv(4096).startswith(b'HTTP/1.1 200')
    kept.append(one)
time.sleep(3600)
";

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    raise_descriptors()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    println!("\n### Memory of the proxy: {CONNECTIONS} idle connections over TLS\n");
    println!("| | sandboxes | MiB before | MiB with them | KiB each | target for all |");
    println!("|---|---|---|---|---|---|");
    for (name, target, share, rule) in [
        ("joined", 70.0, JOINED, json!({})),
        ("requests read", 260.0, READ, json!({"http": [{"methods": ["GET"], "paths": ["/**"]}]})),
    ] {
        let sandboxes = CONNECTIONS / share;
        let (before, with) = runtime.block_on(measure(sandboxes, rule))?;
        let mib = |kib: u64| kib as f64 / 1024.0;
        let each = with.saturating_sub(before) as f64 / CONNECTIONS as f64;
        println!(
            "| {name} | {sandboxes} | {:.1} | {:.1} | {each:.1} | {target:.0} MB |",
            mib(before),
            mib(with)
        );
    }
    Ok(())
}

/// Returns the resident memory of the proxy in KiB, before and with the connections.
async fn measure(sandboxes: usize, rule: Value) -> anyhow::Result<(u64, u64)> {
    let folder = tempfile::tempdir().context("a scratch folder")?;
    super::write_hosts(folder.path())?;
    let servers = Servers::start(folder.path())?;
    let server = Server::start_among(folder.path(), &[])?;
    let client = server.client().await?;
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("policy.hutch.dev", "v1alpha1", "ClusterSandboxPolicy"));
    let policies: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let policy = serde_json::from_value(policy(servers.tls, rule))?;
    policies.create(&PostParams::default(), &policy).await?;
    let process = server.child_named(PROCESS).with_context(|| format!("no process {PROCESS}"))?;
    let before = Usage::of(process).resident_kib;
    let authority = std::fs::read_to_string(folder.path().join("ca.pem"))?;
    let begin = (SystemTime::now() + START).duration_since(UNIX_EPOCH)?.as_secs();
    for number in 0..sandboxes {
        let arguments = [servers.tls.to_string(), (CONNECTIONS / sandboxes).to_string(), begin.to_string()];
        let sandbox = serde_json::from_value(sandbox(number, &arguments, &authority))?;
        api(&client, "Sandbox").create(&PostParams::default(), &sandbox).await?;
    }
    let began = Instant::now();
    while servers.answers.load(Ordering::Relaxed) < CONNECTIONS {
        if began.elapsed() > WAIT_LIMIT {
            bail!("{} of {CONNECTIONS} connections", servers.answers.load(Ordering::Relaxed));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok((before, Usage::of(process).resident_kib))
}

fn policy(port: u16, rule: Value) -> Value {
    let mut whole = json!({"name": "bench", "hosts": [NAME], "ports": [port], "private": ["127.0.0.0/8"]});
    for (field, value) in rule.as_object().into_iter().flatten() {
        whole[field] = value.clone();
    }
    json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {"name": "bench"},
        "spec": {"appliesTo": {}, "egress": {"rules": [whole]}},
    })
}

fn sandbox(number: usize, [port, count, begin]: &[String; 3], authority: &str) -> Value {
    let command = json!(["/usr/bin/python3", "-c", PROGRAM, NAME, port, count, begin, authority]);
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": format!("idle-{number}")},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": "hutch/host", "command": command},
        ]}}},
    })
}
