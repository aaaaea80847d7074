//! Measures a request to a frozen sandbox and to a suspended one, compared with one that is awake.
//!
//! One connection to the router of `hutch up` is kept; sandboxd responds.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::claims::NAMESPACE;
use crate::server::Server;
use crate::stats::{Samples, millis};

const ROUNDS: usize = 20;
const NAME: &str = "sleeper";
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Poll interval of the Sandbox; no measurement includes it.
const PAUSE: Duration = Duration::from_millis(50);

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Server::start_with(&["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"])?;
    let router = server.printed("router").context("hutch up printed no address of its router")?;
    let address = router.strip_prefix("http://").context("an address")?.to_owned();
    let client = runtime.block_on(server.client())?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("agents.x-k8s.io", "v1beta1", "Sandbox"));
    let sandboxes: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &kind);
    let sandbox = serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": NAME, "annotations": {"hutch.dev/idle-after": "1s", "hutch.dev/wake-on-connect": "true"}},
        "spec": {"podTemplate": {"spec": {"containers": [
            {"name": "c", "image": "registry.k8s.io/agent-sandbox/python-runtime-sandbox:v0.1.0"}]}}},
    }))?;
    runtime.block_on(sandboxes.create(&PostParams::default(), &sandbox))?;
    let condition = |name: &'static str| runtime.block_on(until(&sandboxes, name));
    condition("Ready")?;
    let mut connection = TcpStream::connect(&address)?;
    let (mut awake, mut frozen, mut suspended, mut cold) = Default::default();
    for _ in 0..ROUNDS {
        ask(&mut connection, &mut Samples::default())?;
        ask(&mut connection, &mut awake)?;
        condition("Frozen")?;
        ask(&mut connection, &mut frozen)?;
        runtime.block_on(suspend(&sandboxes))?;
        condition("Suspended")?;
        ask(&mut connection, &mut suspended)?;
        runtime.block_on(suspend(&sandboxes))?;
        condition("Suspended")?;
        runtime.block_on(start(&sandboxes, &mut cold))?;
    }
    println!("\n### A request to a sandbox that sleeps\n\n| | p50 ms | p99 ms | n |\n|---|---|---|---|");
    for (name, samples) in [
        ("awake", &awake),
        ("frozen", &frozen),
        ("suspended to disk, woken by the request", &suspended),
        ("`operatingMode: Running` to Ready seen by a watch, for comparison", &cold),
    ] {
        println!("| {name} | {} | {} | {} |", millis(samples.p50()), millis(samples.p99()), samples.len());
    }
    Ok(())
}

fn ask(connection: &mut TcpStream, samples: &mut Samples) -> anyhow::Result<()> {
    let request = format!(
        "GET / HTTP/1.1\r\nhost: bench\r\nx-sandbox-id: {NAME}\r\nx-sandbox-namespace: {NAMESPACE}\r\nx-sandbox-port: 8888\r\n\r\n"
    );
    let started = Instant::now();
    connection.write_all(request.as_bytes())?;
    let mut answer = [0; 4096];
    let length = connection.read(&mut answer)?;
    samples.add(started.elapsed());
    if !answer[..length].starts_with(b"HTTP/1.1 200") {
        bail!("{}", String::from_utf8_lossy(&answer[..length]));
    }
    Ok(())
}

/// Suspends the Sandbox as the controller does when it is idle.
async fn suspend(sandboxes: &Api<DynamicObject>) -> anyhow::Result<()> {
    let generation = sandboxes.get(NAME).await?.metadata.generation.unwrap_or_default() + 1;
    let change = json!({
        "metadata": {"annotations": {"hutch.dev/asleep-generation": generation.to_string()}},
        "spec": {"operatingMode": "Suspended"},
    });
    sandboxes.patch(NAME, &PatchParams::default(), &Patch::Merge(change)).await?;
    Ok(())
}

async fn start(sandboxes: &Api<DynamicObject>, samples: &mut Samples) -> anyhow::Result<()> {
    use futures::TryStreamExt;
    let version = sandboxes.get(NAME).await?.metadata.resource_version.unwrap_or_default();
    let one = kube::api::WatchParams::default().fields(&format!("metadata.name={NAME}"));
    let mut events = Box::pin(sandboxes.watch(&one, &version).await?);
    let started = Instant::now();
    let change = json!({"spec": {"operatingMode": "Running"}});
    sandboxes.patch(NAME, &PatchParams::default(), &Patch::Merge(change)).await?;
    while let Some(event) = events.try_next().await? {
        if let kube::api::WatchEvent::Modified(sandbox) = event
            && is(&sandbox.data, "Ready")
        {
            samples.add(started.elapsed());
            return Ok(());
        }
    }
    bail!("the watch ended")
}

/// Returns true if an object has this condition.
pub(crate) fn is(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == condition && one["status"] == "True"))
}

async fn until(sandboxes: &Api<DynamicObject>, condition: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    while !is(&sandboxes.get(NAME).await?.data, condition) {
        if started.elapsed() > WAIT_LIMIT {
            bail!("not {condition} after {WAIT_LIMIT:?}");
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
