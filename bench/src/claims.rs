//! Measures warm claims on `hutch up`: from the POST of the claim to the first instruction of a command in its sandbox.
//!
//! The command is the runtime's own program, which prints CLOCK_MONOTONIC when it starts; the clock is the machine's,
//! so the difference to the time before the POST is the total.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, ApiResource, AttachParams, DeleteParams, DynamicObject, GroupVersionKind, PostParams, WatchEvent,
    WatchParams,
};
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::server::Server;
use crate::stats::{Samples, millis};
use crate::wake::is;

const ROUNDS: usize = 200;
const POOL: usize = 12;
const MANY_CLIENTS: usize = 16;
const MANY_FOR: Duration = Duration::from_secs(15);
const WAIT_LIMIT: Duration = Duration::from_secs(60);
pub(crate) const NAMESPACE: &str = "default";

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> anyhow::Result<()> {
    let server = Server::start()?;
    let client = server.client().await?;
    make_pool(&client, POOL).await?;
    let mut ready = Samples::default();
    let mut first = Samples::default();
    for round in 0..ROUNDS {
        wait_for_pool(&client, POOL).await?;
        open_connections(&client).await?;
        let (to_ready, to_first) = one(&client, &format!("one-{round}"), true).await?;
        ready.add(to_ready);
        first.extend(Samples::from_iter(to_first));
    }
    println!(
        "\n### Warm claim, one client\n\n| POST of the claim to | p50 ms | p99 ms | n |\n|---|---|---|---|"
    );
    for (name, samples) in
        [("Ready seen by the client", &ready), ("first instruction of an exec'd command", &first)]
    {
        println!("| {name} | {} | {} | {} |", millis(samples.p50()), millis(samples.p99()), samples.len());
    }
    many(&server).await
}

/// A claim takes two connections, one for the watch and one that becomes the command's stream. A client that optimizes
/// for latency opens them before it needs a sandbox.
async fn open_connections(client: &kube::Client) -> anyhow::Result<()> {
    tokio::try_join!(client.apiserver_version(), client.apiserver_version())?;
    Ok(())
}

/// Runs the target's number of concurrent clients, each of which creates a claim, waits for Ready and deletes it.
async fn many(server: &Server) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut clients = Vec::new();
    for number in 0..MANY_CLIENTS {
        let client = server.client().await?;
        clients.push(tokio::spawn(async move {
            let mut samples = Samples::default();
            let mut round = 0;
            while started.elapsed() < MANY_FOR {
                samples.add(one(&client, &format!("many-{number}-{round}"), false).await?.0);
                round += 1;
            }
            anyhow::Ok(samples)
        }));
    }
    let mut all = Samples::default();
    for client in clients {
        all.extend(client.await??);
    }
    let rate = all.len() as f64 / started.elapsed().as_secs_f64();
    println!(
        "\n### Claims with {MANY_CLIENTS} clients, each: claim, Ready, delete; pool of {POOL} refilled meanwhile\n"
    );
    println!("| claims/s | p50 ms to Ready | p99 ms |\n|---|---|---|");
    println!("| {rate:.0} | {} | {} |", millis(all.p50()), millis(all.p99()));
    Ok(())
}

/// Measures one claim: the time to Ready, and with `exec` the time to the first instruction inside.
pub(crate) async fn one(
    client: &kube::Client,
    name: &str,
    exec: bool,
) -> anyhow::Result<(Duration, Option<Duration>)> {
    let claims = api(client, "SandboxClaim");
    let object = serde_json::from_value(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"warmPoolRef": {"name": "bench"}},
    }))?;
    let before = monotonic();
    let created = claims.create(&PostParams::default(), &object).await?;
    let sandbox =
        wait_ready(&claims, name, created.metadata.resource_version.as_deref().unwrap_or("0")).await?;
    let ready = monotonic() - before;
    let first = if exec { Some(first_instruction(client, &sandbox).await? - before) } else { None };
    claims.delete(name, &DeleteParams::default()).await?;
    Ok((ready, first))
}

async fn wait_ready(claims: &Api<DynamicObject>, name: &str, version: &str) -> anyhow::Result<String> {
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(60);
    let mut events = claims.watch(&params, version).await?.boxed();
    while let Some(event) = events.try_next().await? {
        let WatchEvent::Modified(claim) = event else { continue };
        let status = &claim.data["status"];
        if let (true, Some(sandbox)) = (is(&claim.data, "Ready"), status["sandbox"]["name"].as_str()) {
            return Ok(sandbox.to_owned());
        }
    }
    bail!("claim {name} did not become Ready")
}

async fn first_instruction(client: &kube::Client, pod: &str) -> anyhow::Result<Duration> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let params = AttachParams::default().stdin(false).stderr(false);
    let mut process = pods.exec(pod, ["/.hutch/sandboxd", "--clock"], &params).await?;
    let mut printed = String::new();
    process.stdout().context("its output")?.read_to_string(&mut printed).await?;
    let nanos: u64 = printed.trim().parse().with_context(|| format!("not a time: {printed:?}"))?;
    Ok(Duration::from_nanos(nanos))
}

/// CLOCK_MONOTONIC since boot.
fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

pub(crate) fn api(client: &kube::Client, kind: &str) -> Api<DynamicObject> {
    let group = if kind == "Sandbox" { "agents.x-k8s.io" } else { "extensions.agents.x-k8s.io" };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta1", kind));
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

pub(crate) async fn make_pool(client: &kube::Client, replicas: usize) -> anyhow::Result<()> {
    let template = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "bench", "namespace": NAMESPACE},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": "hutch/python-runtime"}]}}},
    });
    let pool = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
        "metadata": {"name": "bench", "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "bench"}},
    });
    for (kind, object) in [("SandboxTemplate", template), ("SandboxWarmPool", pool)] {
        api(client, kind).create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    }
    wait_for_pool(client, replicas).await
}

pub(crate) async fn wait_for_pool(client: &kube::Client, replicas: usize) -> anyhow::Result<()> {
    let pools = api(client, "SandboxWarmPool");
    let started = Instant::now();
    loop {
        let pool = pools.get("bench").await?;
        if pool.data["status"]["readyReplicas"].as_u64() == Some(replicas as u64) {
            return Ok(());
        }
        if started.elapsed() > WAIT_LIMIT {
            bail!("the pool is not full after {WAIT_LIMIT:?}: {}", pool.data["status"]);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
