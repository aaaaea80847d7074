//! Measures what the capture of connections adds to the network namespace of a Pod (addresses, routes, rules and listeners),
//! and what a policy adds to a warm claim.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use hutch_jail::{NetworkPlan, Warden};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use serde_json::json;

use crate::audit::ratio;
use crate::claims::{NAMESPACE, api, make_pool, one, wait_for_pool};
use crate::server::Server;
use crate::stats::{Samples, millis};
use crate::wake::is;

const ROUNDS: usize = 300;
/// Between two namespaces, so that the warden has always one in stock.
const PAUSE: Duration = Duration::from_millis(5);

/// Rounds of claims, and claims on each server in a round.
const CLAIM_ROUNDS: usize = 40;
const CLAIMS: usize = 8;
const POOL: usize = 4;
/// Rules of the policy.
const RULES: usize = 50;

/// Measures and prints the tables.
pub(crate) fn run() -> anyhow::Result<()> {
    let server = Server::start()?;
    let state = server.folder().join("warden");
    std::fs::create_dir(&state)?;
    let warden = Warden::start(&server.folder().join("data/bin/warden"), &state)
        .map_err(|error| anyhow!("{error}"))?;
    let addresses = || vec![IpAddr::from([10, 88, 0, 1])];
    let plans = [NetworkPlan::closed(addresses()), hutch_egress::plan(addresses())];
    let mut samples = [Samples::default(), Samples::default()];
    for _ in 0..ROUNDS {
        for (plan, samples) in plans.iter().zip(&mut samples) {
            std::thread::sleep(PAUSE);
            let began = Instant::now();
            let network = warden.network(plan).map_err(|error| anyhow!("{error}"))?;
            samples.add(began.elapsed());
            drop(network);
        }
    }
    println!("\n### The network namespace of a Pod, interleaved\n");
    println!("| | p50 ms | p99 ms | n |\n|---|---|---|---|");
    for (name, samples) in ["closed", "captured"].iter().zip(&samples) {
        println!("| {name} | {} | {} | {} |", millis(samples.p50()), millis(samples.p99()), samples.len());
    }
    let [closed, captured] = samples.each_ref().map(Samples::p50);
    println!("\nThe capture adds {} ms. The aim is 0.2 at most.", millis(captured.saturating_sub(closed)));
    claims()
}

/// Measures warm claims on three servers in turns: without a policy twice, for the noise, and with one.
fn claims() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut servers = Vec::new();
    for rules in [0, 0, RULES] {
        let server = Server::start()?;
        let client = runtime.block_on(server.client())?;
        runtime.block_on(prepare(&client, rules))?;
        servers.push((server, client, Vec::new()));
    }
    for round in 0..CLAIM_ROUNDS {
        for turn in 0..servers.len() {
            let index = (round + turn) % servers.len();
            let (_, client, rounds) = &mut servers[index];
            rounds.push(runtime.block_on(some(client, round))?);
        }
    }
    println!(
        "\n### Warm claim, {CLAIM_ROUNDS} rounds in turns; ratio to the first row of the same round, median\n"
    );
    println!("| | p50 ms | p99 ms | ratio of p50 | n |\n|---|---|---|---|---|");
    for (name, (_, _, rounds)) in ["no policy", "no policy", "policy of 50 rules"].iter().zip(&servers) {
        let mut all = Samples::default();
        rounds.iter().for_each(|samples| all.extend(samples.clone()));
        let (p50, p99) = (millis(all.p50()), millis(all.p99()));
        println!("| {name} | {p50} | {p99} | {:.3} | {} |", ratio(rounds, &servers[0].2), all.len());
    }
    Ok(())
}

/// Creates a policy of so many rules, if any, and then the pool.
async fn prepare(client: &kube::Client, rules: usize) -> anyhow::Result<()> {
    if rules > 0 {
        let rule =
            |number: usize| json!({"name": format!("r{number}"), "hosts": [format!("h{number}.example")]});
        let rules: Vec<_> = (0..rules).map(rule).collect();
        let policy = serde_json::from_value(json!({
            "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy",
            "metadata": {"name": "bench", "namespace": NAMESPACE}, "spec": {"appliesTo": {}, "egress": {"rules": rules}},
        }))?;
        let kind = GroupVersionKind::gvk("policy.hutch.dev", "v1alpha1", "SandboxPolicy");
        let resource = ApiResource::from_gvk_with_plural(&kind, "sandboxpolicies");
        let policies: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
        policies.create(&PostParams::default(), &policy).await?;
    }
    make_pool(client, POOL).await?;
    for sandbox in api(client, "Sandbox").list(&ListParams::default()).await? {
        let enforced = is(&sandbox.data, "PolicyEnforced");
        ensure!(rules == 0 || enforced, "the policy does not hold for {:?}", sandbox.metadata.name);
    }
    Ok(())
}

/// Makes some claims, one after the other.
async fn some(client: &kube::Client, round: usize) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    for number in 0..CLAIMS {
        wait_for_pool(client, POOL).await?;
        samples.add(one(client, &format!("claim-{round}-{number}"), false).await?.0);
    }
    Ok(samples)
}
