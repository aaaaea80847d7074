//! Snapshots and forks: beside nodes that make snapshots, and on a cluster, which makes none.

use hutch_api::Sandbox;
use hutch_api::state::{SandboxFork, SandboxSnapshot};
use hutch_controller::Config;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually, eventually_or};

/// Starts controllers beside nodes that make snapshots.
async fn with_snapshots() -> Cluster {
    Cluster::start_with(Config { snapshots: true, ..Config::default() }).await
}

/// Creates a Sandbox that may be forked.
async fn sandbox(cluster: &Cluster, name: &str) {
    let annotations = json!({"hutch.dev/shares-generators": "true", "policy.hutch.dev/policies": "strict"});
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}}});
    let more = json!({"metadata": {"annotations": annotations}, "spec": spec});
    cluster.create::<Sandbox>(name, more).await;
}

async fn fork(cluster: &Cluster, name: &str, source: Value, replicas: i32) {
    let more = json!({"spec": {"source": source, "replicas": replicas}});
    cluster.create::<SandboxFork>(name, more).await;
}

async fn snapshot(cluster: &Cluster, name: &str) -> SandboxSnapshot {
    eventually("a snapshot", || async { cluster.get::<SandboxSnapshot>(name).await }).await
}

/// Completes a snapshot, as a node does.
pub(crate) async fn complete(cluster: &Cluster, name: &str) {
    let status = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "Completed", "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z"}]});
    let patch = Patch::Merge(json!({ "status": status }));
    cluster.api::<SandboxSnapshot>().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn fork_says(cluster: &Cluster, name: &str, reason: &str) -> Value {
    let last = std::sync::Mutex::new(Value::Null);
    let found = eventually_or(
        || format!("fork {name} says {reason}, but {}", last.lock().unwrap()),
        || async {
            let fork: SandboxFork = cluster.get(name).await?;
            let status = serde_json::to_value(&fork.status).unwrap();
            *last.lock().unwrap() = status.clone();
            (status["conditions"][0]["reason"] == reason).then_some(status)
        },
    );
    found.await
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_of_a_sandbox_makes_a_snapshot_and_sandboxes_that_live_on_their_own() {
    let cluster = with_snapshots().await;
    sandbox(&cluster, "a").await;
    fork(&cluster, "f", json!({"sandbox": "a"}), 3).await;
    let made = snapshot(&cluster, "f").await;
    assert_eq!((made.owner_references().len(), made.spec.source.sandbox.as_str()), (1, "a"));
    fork_says(&cluster, "f", "InProgress").await;
    assert_eq!(cluster.list::<Sandbox>().await.len(), 1, "it waits for the snapshot");
    complete(&cluster, "f").await;
    let status = fork_says(&cluster, "f", "Completed").await;
    assert_eq!(status["children"].as_array().map(Vec::len), Some(3));
    for (index, child) in status["children"].as_array().unwrap().iter().enumerate() {
        let sandbox: Sandbox = cluster.get(&format!("f-{index}")).await.unwrap();
        let uid = sandbox.metadata.uid.as_deref();
        assert_eq!((child["phase"].as_str(), child["uid"].as_str()), (Some("Ready"), uid));
        assert!(sandbox.owner_references().is_empty());
        assert_eq!(sandbox.labels()["hutch.dev/fork"], "f");
        assert_eq!(sandbox.annotations()["policy.hutch.dev/policies"], "strict");
        let restored = sandbox.spec.pod_template.metadata.annotations.unwrap();
        assert_eq!(restored["hutch.dev/restore-from"], "f");
    }
    // It is over: a Sandbox that is deleted later does not come back.
    cluster.delete::<Sandbox>("f-1").await;
    fork(&cluster, "again", json!({"snapshot": "f"}), 1).await;
    fork_says(&cluster, "again", "Completed").await;
    assert!(cluster.get::<Sandbox>("f-1").await.is_none());
    assert!(cluster.get::<SandboxSnapshot>("again").await.is_none(), "it has a snapshot");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_reports_names_that_others_have_and_sources_that_are_missing() {
    let cluster = with_snapshots().await;
    sandbox(&cluster, "a").await;
    sandbox(&cluster, "f-1").await;
    fork(&cluster, "f", json!({"sandbox": "a"}), 2).await;
    snapshot(&cluster, "f").await;
    complete(&cluster, "f").await;
    let status = fork_says(&cluster, "f", "Failed").await;
    let children = status["children"].as_array().unwrap().iter();
    assert_eq!(children.map(|child| &child["phase"]).collect::<Vec<_>>(), ["Ready", "Failed"]);
    let message = "1 of 2 Sandboxes have failed: f-1: a Sandbox of that name exists that is not of this fork";
    assert_eq!(status["conditions"][0]["message"], message);
    fork(&cluster, "absent", json!({"sandbox": "nothing"}), 1).await;
    let status = fork_says(&cluster, "absent", "Failed").await;
    assert_eq!(status["conditions"][0]["message"], "there is no Sandbox nothing");
    cluster.sandbox("bare", json!({})).await;
    fork(&cluster, "same", json!({"sandbox": "bare"}), 1).await;
    fork_says(&cluster, "same", "NeedsAfterRestore").await;
    assert!(cluster.get::<SandboxSnapshot>("same").await.is_none());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_to_the_source_before_a_fork_counts() {
    let cluster = with_snapshots().await;
    cluster.sandbox("a", json!({})).await;
    eventually("a Pod", || async { cluster.get::<Pod>("a").await }).await;
    cluster.delay_watches(true);
    let shares = json!({"metadata": {"annotations": {"hutch.dev/shares-generators": "true"}}});
    cluster.patch::<Sandbox>("a", shares).await;
    fork(&cluster, "f", json!({"sandbox": "a"}), 1).await;
    snapshot(&cluster, "f").await;
    cluster.delay_watches(false);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_answers_that_it_makes_no_snapshots() {
    let cluster = Cluster::start().await;
    fork(&cluster, "f", json!({"sandbox": "a"}), 2).await;
    let spec = json!({"source": {"sandbox": "a"}, "content": "Full"});
    cluster.create::<SandboxSnapshot>("s", json!({ "spec": spec })).await;
    let status = fork_says(&cluster, "f", "NotSupportedHere").await;
    let ready = &status["conditions"][0];
    let said = (ready["status"].as_str(), ready["message"].as_str());
    assert_eq!(said, (Some("False"), Some("Snapshots are made by `hutch up` alone")));
    eventually("the snapshot is answered", || async {
        let snapshot: SandboxSnapshot = cluster.get("s").await?;
        let conditions = snapshot.status?.conditions?;
        (conditions[0].reason == "NotSupportedHere").then_some(())
    })
    .await;
    assert!(cluster.list::<Sandbox>().await.is_empty());
    cluster.stop().await;
}
