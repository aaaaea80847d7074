//! GKE's API of Pod snapshots, beside nodes that make snapshots.

use hutch_api::pod_snapshot::{PodSnapshot, PodSnapshotManualTrigger};
use hutch_api::state::SandboxSnapshot;
use hutch_api::{Sandbox, name_hash};
use hutch_controller::Config;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually};
use crate::forks::complete;

const HASH: &str = "agents.x-k8s.io/sandbox-name-hash";

/// Controllers beside nodes that make snapshots, and a Sandbox with its Pod.
async fn with_sandbox() -> Cluster {
    let cluster = Cluster::start_with(Config { snapshots: true, ..Config::default() }).await;
    sandbox(&cluster).await;
    cluster
}

async fn sandbox(cluster: &Cluster) {
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}}});
    let annotations = json!({"hutch.dev/shares-generators": "true"});
    cluster.create::<Sandbox>("a", json!({"metadata": {"annotations": annotations}, "spec": spec})).await;
    eventually("a Pod", || async { cluster.get::<Pod>("a").await }).await;
}

/// Creates a trigger; the name of its snapshot.
async fn trigger(cluster: &Cluster, name: &str) -> String {
    cluster.create::<PodSnapshotManualTrigger>(name, json!({"spec": {"targetPod": "a"}})).await;
    cluster.get::<PodSnapshotManualTrigger>(name).await.and_then(|made| made.uid()).expect("a uid")
}

async fn says(cluster: &Cluster, name: &str, reason: &str) -> Value {
    eventually(reason, || async {
        let status =
            serde_json::to_value(cluster.get::<PodSnapshotManualTrigger>(name).await?.status).unwrap();
        (status["conditions"][0]["reason"] == reason).then_some(status)
    })
    .await
}

/// Makes a snapshot, as client and node do; its name.
async fn taken(cluster: &Cluster, name: &str) -> String {
    let snapshot = trigger(cluster, name).await;
    eventually("a snapshot", || async { cluster.get::<SandboxSnapshot>(&snapshot).await }).await;
    complete(cluster, &snapshot).await;
    assert_eq!(says(cluster, name, "Complete").await["snapshotCreated"]["name"], snapshot.as_str());
    snapshot
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_of_a_trigger_is_shown_and_the_next_pod_begins_with_the_newest() {
    let cluster = with_sandbox().await;
    let first = taken(&cluster, "one").await;
    let second = taken(&cluster, "two").await;
    let of = |name: String| {
        let cluster = &cluster;
        async move { cluster.get::<PodSnapshot>(&name).await.expect("a PodSnapshot") }
    };
    let (one, two) = (of(first.clone()).await, of(second.clone()).await);
    assert!(one.creation_timestamp().unwrap().0 < two.creation_timestamp().unwrap().0);
    assert_eq!(
        (&one.labels()[HASH], one.annotations()["podsnapshot.gke.io/origin-pod"].as_str()),
        (&name_hash("a"), "a")
    );
    // The trigger is no owner.
    cluster.delete::<PodSnapshotManualTrigger>("two").await;

    let begins_with = |snapshot: Option<String>| {
        let cluster = &cluster;
        async move {
            cluster.delete::<Pod>("a").await;
            eventually("the next Pod", || async {
                let pod =
                    cluster.get::<Pod>("a").await.filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
                if pod.annotations().get("hutch.dev/restore-from") == snapshot.as_ref() {
                    return Some(());
                }
                // The controller had seen that the Pod was gone, and not yet what changed before.
                cluster.delete::<Pod>("a").await;
                None
            })
            .await;
        }
    };
    begins_with(Some(second.clone())).await;
    cluster.delete::<PodSnapshot>(&second).await;
    eventually("both are gone", || async {
        let gone = cluster.get::<PodSnapshot>(&second).await.is_none();
        (gone && cluster.get::<SandboxSnapshot>(&second).await.is_none()).then_some(())
    })
    .await;
    begins_with(Some(first.clone())).await;
    let named = |name: Value| json!({"spec": {"podTemplate": {"metadata": {"annotations": {"podsnapshot.gke.io/ps-name": name}}}}});
    cluster.patch::<Sandbox>("a", named("other".into())).await;
    begins_with(Some("other".into())).await;
    cluster.patch::<Sandbox>("a", named(Value::Null)).await;
    cluster.delete::<SandboxSnapshot>(&first).await;
    eventually("its PodSnapshot is gone", || async {
        cluster.get::<PodSnapshot>(&first).await.is_none().then_some(())
    })
    .await;
    begins_with(None).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_sandbox_of_the_name_has_no_snapshots() {
    let cluster = with_sandbox().await;
    let snapshot = taken(&cluster, "one").await;
    cluster.delete::<Sandbox>("a").await;
    eventually("it has no label", || async {
        let view = cluster.get::<PodSnapshot>(&snapshot).await?;
        (!view.labels().contains_key(HASH)).then_some(())
    })
    .await;
    cluster.delete::<Pod>("a").await;
    eventually("its Pod is gone", || async { cluster.get::<Pod>("a").await.is_none().then_some(()) }).await;
    sandbox(&cluster).await;
    assert!(!cluster.get::<Pod>("a").await.unwrap().annotations().contains_key("hutch.dev/restore-from"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_that_fails_leaves_only_its_trigger() {
    let cluster = with_sandbox().await;
    let snapshot = trigger(&cluster, "one").await;
    eventually("a PodSnapshot", || async { cluster.get::<PodSnapshot>(&snapshot).await }).await;
    let failed = json!([{"type": "Ready", "status": "False", "reason": "Failed", "message": "no room",
        "lastTransitionTime": "2026-01-02T03:04:05Z"}]);
    let patch = kube::api::Patch::Merge(json!({"status": {"conditions": failed}}));
    let api = cluster.api::<SandboxSnapshot>();
    api.patch_status(&snapshot, &kube::api::PatchParams::default(), &patch).await.unwrap();
    assert_eq!(says(&cluster, "one", "Failed").await["conditions"][0]["message"], "Failed: no room");
    eventually("both are gone", || async {
        let gone = cluster.get::<PodSnapshot>(&snapshot).await.is_none();
        (gone && cluster.get::<SandboxSnapshot>(&snapshot).await.is_none()).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_to_the_sandbox_before_a_trigger_counts() {
    let cluster = with_sandbox().await;
    let shares = |value: &str| json!({"metadata": {"annotations": {"hutch.dev/shares-generators": value}}});
    cluster.patch::<Sandbox>("a", shares("false")).await;
    let settled =
        || async { cluster.get::<Pod>("a").await?.annotations().get("hutch.dev/shares-generators").cloned() };
    eventually("the controllers know it", || async { (settled().await? == "false").then_some(()) }).await;
    cluster.delay_watches(true);
    cluster.patch::<Sandbox>("a", shares("true")).await;
    let snapshot = trigger(&cluster, "one").await;
    eventually("a snapshot", || async { cluster.get::<SandboxSnapshot>(&snapshot).await }).await;
    cluster.delay_watches(false);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_of_a_cluster_leave_the_objects_to_gke() {
    let cluster = Cluster::start().await;
    sandbox(&cluster).await;
    let snapshot = trigger(&cluster, "one").await;
    cluster.quiet(std::time::Duration::from_millis(200)).await;
    assert!(cluster.get::<SandboxSnapshot>(&snapshot).await.is_none());
    assert!(cluster.get::<PodSnapshotManualTrigger>("one").await.unwrap().status.is_none());
    cluster.stop().await;
}
