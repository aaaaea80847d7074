//! Measures the memory of an idle sandbox, kernel included: the decrease of MemAvailable over many of them.

use std::time::{Duration, Instant};

use anyhow::bail;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::claims::api;
use crate::machine::available_kib;
use crate::server::Server;

const SANDBOXES: usize = 150;
const WAIT_LIMIT: Duration = Duration::from_secs(180);
/// The kernel frees and counts with a delay: memory has settled when it changed by less than this within [`SETTLE`].
const SETTLED_KIB: u64 = 512;
const SETTLE: Duration = Duration::from_secs(2);
/// Maximum number of checks.
const LOOKS: usize = 20;

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("\n### Memory of an idle sandbox: growth of MemAvailable over {SANDBOXES}\n");
    println!("| | MiB each | of it in the server itself |\n|---|---|---|");
    runtime.block_on(async {
        measure("without a runtime inside (`hutch/pause`)", json!({"image": "hutch/pause"})).await?;
        measure("with sandboxd", json!({"image": "hutch/python-runtime"})).await
    })
}

async fn measure(name: &str, container: serde_json::Value) -> anyhow::Result<()> {
    let server = Server::start()?;
    let client = server.client().await?;
    let sandboxes = api(&client, "Sandbox");
    let before = settled_kib().await;
    let server_before = server.resident_kib();
    for number in 0..SANDBOXES {
        let mut container = container.clone();
        container["name"] = "main".into();
        let sandbox = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": format!("idle-{number}")},
            "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}},
        });
        sandboxes.create(&PostParams::default(), &serde_json::from_value(sandbox)?).await?;
    }
    let started = Instant::now();
    loop {
        let list = sandboxes.list(&ListParams::default()).await?;
        let ready = |s: &kube::api::DynamicObject| {
            s.data["status"]["conditions"]
                .as_array()
                .is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
        };
        if list.items.iter().filter(|s| ready(s)).count() == SANDBOXES {
            break;
        }
        if started.elapsed() > WAIT_LIMIT {
            bail!("not all sandboxes are Ready after {WAIT_LIMIT:?}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let after = settled_kib().await;
    let each = |kib: u64| kib as f64 / SANDBOXES as f64 / 1024.0;
    let grown = before.saturating_sub(after);
    let server_grown = server.resident_kib().saturating_sub(server_before);
    println!("| {name} | {:.2} | {:.2} |", each(grown), each(server_grown));
    Ok(())
}

/// Returns `MemAvailable` once it no longer changes.
async fn settled_kib() -> u64 {
    let mut last = available_kib();
    for _ in 0..LOOKS {
        tokio::time::sleep(SETTLE).await;
        let now = available_kib();
        if now.abs_diff(last) < SETTLED_KIB {
            return now;
        }
        last = now;
    }
    last
}
