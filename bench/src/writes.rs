//! Counts the writes of a controller to a real API server for one warm claim, and for one Sandbox from create to delete, in
//! the API server's audit log. The figures do not depend on the load of the machine. Refills of the pool are not counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, bail};
use hutch_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use hutch_testkit::cluster::{Cluster, Write};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::contender::{self, Contender};
use crate::wake::is;

/// Number of claims and of Sandboxes; also the size of the pool.
const MANY: usize = 40;
/// Time for late writes after the last object is Ready.
const AFTERMATH: Duration = Duration::from_secs(3);
const NAMESPACE: &str = "default";
/// User agent of the benchmark's own writes.
const AGENT: &str = "hutch-bench";

/// Writes by verb and resource.
type Counts = BTreeMap<String, usize>;

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    hutch_testkit::Need::Kubernetes.missing().map_or(Ok(()), |reason| bail!("{reason}"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> anyhow::Result<()> {
    let mut columns: Vec<(&str, Counts, Counts)> = Vec::new();
    for contender in contender::all()? {
        let (claims, lives) = count(&contender).await.context(contender.name)?;
        columns.push((contender.name, claims, lives));
    }
    let claims: Vec<_> = columns.iter().map(|(name, claims, _)| (*name, claims)).collect();
    print("API writes of the controller for one warm claim", &claims);
    let lives: Vec<_> = columns.iter().map(|(name, _, lives)| (*name, lives)).collect();
    print("API writes of the controller for one Sandbox, create to delete", &lives);
    Ok(())
}

async fn count(contender: &Contender) -> anyhow::Result<(Counts, Counts)> {
    let cluster = contender.start(&[]).await?;
    let client = cluster.client(AGENT).await?;
    let sandboxes = life_of_sandboxes(&cluster, &client).await?;
    let (claims, from) = warm_claims(&cluster, &client).await?;
    tokio::time::sleep(AFTERMATH).await;
    let writes = cluster.audit().writes()?;
    let writer = writes.iter().find(|write| write.resource == "sandboxes/status");
    let agent = &writer.context("no status of a Sandbox was written")?.agent;
    // Writes for the pooled Sandboxes before they were claimed belong to the pool.
    Ok((counted(&writes[from..], agent, &claims), counted(&writes, agent, &sandboxes)))
}

/// Counts writes of that user agent to the named objects, and events on them. Refused writes count too, at the same cost.
fn counted(writes: &[Write], agent: &str, names: &BTreeSet<String>) -> Counts {
    let mut counts = Counts::new();
    for write in writes.iter().filter(|write| write.agent == agent) {
        let about = match write.resource.as_str() {
            // The name of an event is its object, a dot and a unique suffix.
            "events" => write.name.rsplit_once('.').map_or("", |(object, _)| object),
            _ => &write.name,
        };
        if names.contains(about) {
            let refused = if write.code < 300 { "" } else { " (refused)" };
            *counts.entry(format!("{} {}{refused}", write.verb, write.resource)).or_default() += 1;
        }
    }
    counts
}

/// Creates Sandboxes one after the other, waits until each is Ready, deletes it. Returns their names and their Pods' names.
async fn life_of_sandboxes(cluster: &Cluster, client: &Client) -> anyhow::Result<BTreeSet<String>> {
    let api: Api<Sandbox> = Api::namespaced(client.clone(), NAMESPACE);
    let mut names = BTreeSet::new();
    for n in 0..MANY {
        let name = format!("alone-{n}");
        create::<Sandbox>(client, &name, json!({"podTemplate": pod()})).await?;
        cluster
            .until(&name, async || api.get_opt(&name).await.is_ok_and(|s| s.is_some_and(|s| is_ready(&s))))
            .await?;
        api.delete(&name, &DeleteParams::default()).await?;
        cluster.until(&name, async || matches!(api.get_opt(&name).await, Ok(None))).await?;
        names.insert(name);
    }
    Ok(names)
}

/// Creates a claim for each pooled Sandbox, one after the other. Returns the names of the claims and Sandboxes, and the
/// number of writes before the first.
async fn warm_claims(cluster: &Cluster, client: &Client) -> anyhow::Result<(BTreeSet<String>, usize)> {
    create::<SandboxTemplate>(client, "t", json!({"podTemplate": pod()})).await?;
    create::<SandboxWarmPool>(client, "p", json!({"replicas": MANY, "sandboxTemplateRef": {"name": "t"}}))
        .await?;
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), NAMESPACE);
    let full = async || {
        let members = sandboxes.list(&ListParams::default()).await;
        members.is_ok_and(|members| members.iter().filter(is_ready).count() == MANY)
    };
    cluster.until("the pool is full", full).await?;
    tokio::time::sleep(AFTERMATH).await;
    let before = cluster.audit().writes()?.len();
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), NAMESPACE);
    let mut names = BTreeSet::new();
    for n in 0..MANY {
        let name = format!("claim-{n}");
        create::<SandboxClaim>(client, &name, json!({"warmPoolRef": {"name": "p"}})).await?;
        let ready = async || claims.get(&name).await.is_ok_and(|claim| is_ready(&claim));
        cluster.until(&name, ready).await?;
        let sandbox = claims.get(&name).await?.status.and_then(|status| status.sandbox?.name);
        names.insert(sandbox.context("a bound claim names its Sandbox")?);
        names.insert(name);
    }
    Ok((names, before))
}

fn pod() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}]}})
}

async fn create<K>(client: &Client, name: &str, spec: Value) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let object = json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": name}, "spec": spec});
    let object: K = serde_json::from_value(object)?;
    Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &object).await?;
    Ok(())
}

fn is_ready<K: Serialize>(object: &K) -> bool {
    let object = serde_json::to_value(object).unwrap_or_default();
    is(&object, "Ready")
}

fn print(title: &str, columns: &[(&str, &Counts)]) {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    println!(
        "\n### {title} (mean of {MANY})\n\n| | {} |\n|---|{}",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    let rows: BTreeSet<&String> = columns.iter().flat_map(|(_, counts)| counts.keys()).collect();
    let mean = |n: usize| format!("{:.2}", n as f64 / MANY as f64);
    for row in rows {
        let cells: Vec<String> =
            columns.iter().map(|(_, counts)| mean(*counts.get(row).unwrap_or(&0))).collect();
        println!("| {row} | {} |", cells.join(" | "));
    }
    let sums: Vec<String> = columns.iter().map(|(_, counts)| mean(counts.values().sum())).collect();
    println!("| **all** | **{}** |", sums.join("** | **"));
}
