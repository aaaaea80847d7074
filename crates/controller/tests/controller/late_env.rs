//! Claims with variables where the nodes can give them to a Pod that runs; the node is this test.

use std::time::Duration;

use hutch_api::{Sandbox, SandboxClaim, SandboxWarmPool, late_env};
use hutch_controller::Config;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{self, Cluster, eventually};

const ENV: &str = "hutch.dev/env";

/// Controllers that count on the node, and a full pool of one.
async fn started() -> Cluster {
    let config = Config { late_env: true, ..Config::default() };
    let cluster = Cluster::start().await.stop_controllers().await.start_controllers_with(config);
    cluster.template("t", json!({"envVarsInjectionPolicy": "Overrides"})).await;
    cluster.pool("pool", "t", 1).await;
    member(&cluster).await;
    cluster
}

/// Returns the only pooled Sandbox, once it is Ready.
async fn member(cluster: &Cluster) -> String {
    eventually("the pool is full", || async {
        let pool: SandboxWarmPool = cluster.get("pool").await?;
        let owned = |sandbox: &Sandbox| sandbox.owner_references().iter().any(|owner| owner.name == "pool");
        let member = cluster.list::<Sandbox>().await.into_iter().find(owned)?.name_any();
        (pool.status?.ready_replicas? == 1).then_some(member)
    })
    .await
}

fn wanted() -> Value {
    json!({"spec": {"env": [{"name": "A", "value": "1"}]}})
}

/// Writes a Pod's conditions as the node does.
async fn say(cluster: &Cluster, pod: &str, reason: &str) {
    let of = |kind: &str, reason: Option<&str>| json!({"type": kind, "status": "True", "reason": reason});
    let all = [of("PodScheduled", None), of("Ready", None), of(late_env::CONDITION, Some(reason))];
    let status = Patch::Merge(json!({"status": {"conditions": all}}));
    cluster.api::<Pod>().patch_status(pod, &PatchParams::default(), &status).await.expect("the node says so");
}

async fn says(cluster: &Cluster, claim: &str, reason: &str) -> SandboxClaim {
    eventually(&format!("{claim} says {reason}"), || async {
        let claim: SandboxClaim = cluster.get(claim).await?;
        let conditions = claim.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().any(|said| said.type_ == "Ready" && said.reason == reason).then(|| claim.clone())
    })
    .await
}

async fn variables(cluster: &Cluster, pod: &str) -> String {
    eventually("the Pod has the variables", || async {
        cluster.get::<Pod>(pod).await?.annotations().get(ENV).cloned()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_ready_once_its_variables_are_in_force() {
    let cluster = started().await;
    let first = member(&cluster).await;
    cluster.claim("cold", "pool", wanted()).await;
    says(&cluster, "cold", "DependenciesReady").await;
    assert!(cluster.get::<Sandbox>("cold").await.is_some(), "a Pod that says nothing is not taken");

    say(&cluster, &first, late_env::POSSIBLE).await;
    cluster.quiet(Duration::from_millis(300)).await;
    cluster.claim("warm", "pool", wanted()).await;
    assert_eq!(variables(&cluster, &first).await, r#"[{"name":"A","value":"1"}]"#);
    says(&cluster, "warm", "SandboxNotReady").await;
    say(&cluster, &first, late_env::IN_FORCE).await;
    let claim = says(&cluster, "warm", "DependenciesReady").await;
    assert_eq!(claim.status.unwrap().sandbox.unwrap().name.as_ref(), Some(&first));
    let sandbox = serde_json::to_value(cluster.get::<Sandbox>(&first).await).unwrap();
    let env = &sandbox["spec"]["podTemplate"]["spec"]["containers"][0]["env"];
    assert_eq!(*env, json!([{"name": "A", "value": "1"}]));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_life_costs_six_writes() {
    let cluster = started().await;
    let pod = member(&cluster).await;
    say(&cluster, &pod, late_env::POSSIBLE).await;
    cluster.quiet(Duration::from_millis(300)).await;
    let before = cluster.written().len();
    cluster.claim("warm", "pool", wanted()).await;
    variables(&cluster, &pod).await;
    say(&cluster, &pod, late_env::IN_FORCE).await;
    says(&cluster, "warm", "DependenciesReady").await;
    cluster.quiet(Duration::from_millis(700)).await;
    let written = cluster.written();
    let of_it = |path: &str| path.contains("/warm") || path.contains(&pod);
    let mut all: Vec<_> =
        written[before..].iter().filter(|it| of_it(&it.path)).map(cluster::Written::what).collect();
    all.sort_unstable();
    let five = ["pods", "sandboxclaims", "sandboxclaims/status", "sandboxes", "sandboxes/status"];
    assert_eq!(all, five.map(|what| format!("PATCH {what}")), "and one event");
    let events = written[before..].iter().filter(|it| it.what() == "POST events").count();
    assert_eq!(events, 1);
    cluster.stop().await;
}
