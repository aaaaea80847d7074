//! One object that cannot be read keeps no other from being looked after.

use hutch_api::{Sandbox, SandboxClaim, SandboxWarmPool};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually};

/// Changes the spec without reading the rest of the answer.
async fn set_probe(cluster: &Cluster, name: &str, probe: Value, mode: &str) {
    let api = cluster.api::<PartialObjectMeta<Sandbox>>();
    let pod = json!({"spec": {"containers": [{"name": "c", "image": "hutch/host", "livenessProbe": probe}]}});
    let patch = Patch::Merge(json!({"spec": {"podTemplate": pod, "operatingMode": mode}}));
    api.patch(name, &PatchParams::default(), &patch).await.expect("the server takes it");
}

async fn sandbox_ready(cluster: &Cluster, name: &str) {
    eventually(&format!("{name} is Ready"), || async {
        let sandbox: Sandbox = cluster.api().get(name).await.ok()?;
        let conditions = sandbox.status?.conditions?;
        conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undecodable_sandbox_is_reported_and_others_continue() {
    let cluster = Cluster::start().await;
    cluster.sandbox("odd", json!({})).await;
    sandbox_ready(&cluster, "odd").await;
    // The definition takes any port, the type only those of 32 bits.
    set_probe(&cluster, "odd", json!({"httpGet": {"port": 3_000_000_000_u64}}), "Running").await;
    assert!(cluster.api::<Sandbox>().get("odd").await.is_err(), "it cannot be read");
    let said = || async {
        let events: Vec<Event> = cluster.list().await;
        let of = |event: &&Event| event.reason.as_deref() == Some("Unreadable");
        events.iter().find(of).map(|event| (event.regarding.clone(), event.note.clone().unwrap_or_default()))
    };
    let (regarding, note) = eventually("an event reports it", said).await;
    assert_eq!(regarding.unwrap().name.as_deref(), Some("odd"));
    assert!(note.contains("spec.podTemplate.spec.containers[0].livenessProbe.httpGet.port: "), "{note}");
    cluster.sandbox("next", json!({})).await;
    sandbox_ready(&cluster, "next").await;
    assert!(cluster.get::<Pod>("odd").await.is_some(), "it stays as it was");

    // The same when it is in the first list.
    let cluster = cluster.stop_controllers().await.start_controllers();
    cluster.sandbox("third", json!({})).await;
    sandbox_ready(&cluster, "third").await;
    assert!(cluster.get::<Pod>("odd").await.is_some());
    set_probe(&cluster, "odd", Value::Null, "Suspended").await;
    eventually("it can be read again, and sleeps", || async {
        cluster.get::<Pod>("odd").await.is_none().then_some(())
    })
    .await;
    cluster.stop().await;
}

async fn members(cluster: &Cluster) -> Vec<String> {
    let list = cluster.api::<PartialObjectMeta<Sandbox>>().list_metadata(&Default::default()).await;
    list.expect("a list").items.iter().map(ResourceExt::name_any).collect()
}

async fn pool_has(cluster: &Cluster, replicas: i32, ready: i32) {
    eventually(&format!("{replicas} members, {ready} of them Ready"), || async {
        let status = cluster.get::<SandboxWarmPool>("p").await?.status?;
        let counts = (status.replicas.unwrap_or(0), status.ready_replicas.unwrap_or(0));
        (counts == (replicas, ready)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_counts_an_undecodable_sandbox_after_a_restart() {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    cluster.pool("p", "t", 2).await;
    pool_has(&cluster, 2, 2).await;
    let before = members(&cluster).await;
    set_probe(&cluster, &before[0], json!({"httpGet": {"port": 3_000_000_000_u64}}), "Running").await;

    let cluster = cluster.stop_controllers().await.start_controllers();
    pool_has(&cluster, 2, 1).await;
    assert_eq!(members(&cluster).await, before);
    cluster.patch::<SandboxWarmPool>("p", json!({"spec": {"replicas": 3}})).await;
    pool_has(&cluster, 3, 2).await;
    assert_eq!(members(&cluster).await.len(), 3);

    // It can be read again.
    set_probe(&cluster, &before[0], Value::Null, "Running").await;
    pool_has(&cluster, 3, 3).await;
    // It cannot, and goes: another takes its place.
    set_probe(&cluster, &before[0], json!({"httpGet": {"port": 3_000_000_000_u64}}), "Running").await;
    let cluster = cluster.stop_controllers().await.start_controllers();
    pool_has(&cluster, 3, 2).await;
    let api = cluster.api::<PartialObjectMeta<Sandbox>>();
    // The answer may hold the object, which cannot be read.
    let _ = api.delete(&before[0], &Default::default()).await;
    pool_has(&cluster, 3, 3).await;
    assert!(!members(&cluster).await.contains(&before[0]));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quantities_may_be_numbers() {
    let cluster = Cluster::start().await;
    let container = json!({"name": "c", "image": "hutch/host", "resources": {"limits": {"cpu": 1, "memory": 67_108_864}}});
    let template = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "t"}, "spec": {"podTemplate": {"spec": {"containers": [container]}}}});
    cluster.post("extensions.agents.x-k8s.io/v1beta1", "sandboxtemplates", template).await;
    cluster.pool("p", "t", 1).await;
    cluster.claim("c", "p", json!({})).await;
    let claim = eventually("the claim has its Sandbox", || async {
        let claim: SandboxClaim = cluster.get("c").await?;
        claim.status?.sandbox?.name
    });
    let name = claim.await;
    let pod: Pod = eventually("its Pod", || async { cluster.get(&name).await }).await;
    let limits = pod.spec.unwrap().containers[0].resources.clone().unwrap().limits.unwrap();
    assert_eq!(limits["cpu"].0, "1");
    cluster.stop().await;
}
