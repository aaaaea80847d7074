//! Objects of Agent Sandbox's own controller, or an earlier version of it, are adopted.

use hutch_api::{Sandbox, SandboxClaim, SandboxWarmPool, name_hash};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::{self, Cluster, eventually};

const RECORD: &str = "agents.x-k8s.io/sandbox-name";

fn owned_by(kind: &str, name: &str, uid: &str) -> Value {
    json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": kind, "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true}])
}

async fn bound(cluster: &Cluster, name: &str) -> SandboxClaim {
    eventually("the claim is Ready", || async {
        let claim: SandboxClaim = cluster.get(name).await?;
        let ready = claim
            .status
            .as_ref()?
            .conditions
            .as_ref()?
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        (ready && claim.annotations().contains_key("agents.x-k8s.io/claim-first-ready-at")).then_some(claim)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_single_claims_go_and_those_of_others_stay() {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    cluster.pool("p", "t", 0).await;
    let claim = cluster.claim("c", "p", json!({})).await;
    bound(&cluster, "c").await;
    let cluster = cluster.stop_controllers().await;
    let owners = owned_by("SandboxClaim", "c", &claim.uid().unwrap());
    let policy =
        |owners: Value| json!({"metadata": {"ownerReferences": owners}, "spec": {"podSelector": {}}});
    cluster.create::<NetworkPolicy>("c-network-policy", policy(owners)).await;
    cluster.claim("other", "p", json!({})).await;
    cluster.create::<NetworkPolicy>("other-network-policy", policy(json!([]))).await;
    let cluster = cluster.start_controllers();
    bound(&cluster, "other").await;
    eventually("the old policy is gone", || async {
        cluster.get::<NetworkPolicy>("c-network-policy").await.is_none().then_some(())
    })
    .await;
    assert!(cluster.get::<NetworkPolicy>("other-network-policy").await.is_some());
    cluster.stop().await;
}

/// The other controller wrote the record as a label and died before it adopted the Sandbox; the pooled Sandboxes carry
/// that controller's marks.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_assignment_is_completed_with_its_record() {
    let cluster = Cluster::start().await.stop_controllers().await;
    cluster.template("t", json!({})).await;
    cluster.pool("p", "t", 2).await;
    let pool: SandboxWarmPool = cluster.get("p").await.unwrap();
    let of_template = json!({"agents.x-k8s.io/sandbox-template-ref": "t"});
    let marks = json!({"agents.x-k8s.io/warm-pool-sandbox": name_hash("p"), "agents.x-k8s.io/sandbox-template-ref-hash": name_hash("t"),
        "agents.x-k8s.io/sandbox-template-hash": "1", "agents.x-k8s.io/sandbox-pod-template-hash": "1"});
    for name in ["p-aaaaa", "p-zzzzz"] {
        let spec = json!({"podTemplate": {
            "metadata": {"labels": marks, "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
            "spec": {"containers": [{"name": "c", "image": "hutch/host"}]}}});
        let owners = owned_by("SandboxWarmPool", "p", &pool.uid().unwrap());
        cluster
            .create::<Sandbox>(
                name,
                json!({"metadata": {"labels": marks, "annotations": of_template, "ownerReferences": owners}, "spec": spec}),
            )
            .await;
    }
    cluster.claim("c", "p", json!({"metadata": {"labels": {RECORD: "p-zzzzz"}}})).await;
    let cluster = cluster.start_controllers();
    let claim = bound(&cluster, "c").await;
    assert_eq!(claim.status.unwrap().sandbox.unwrap().name.as_deref(), Some("p-zzzzz"));
    assert_eq!(claim.metadata.annotations.unwrap()[RECORD], "p-zzzzz");
    assert!(claim.metadata.labels.is_none_or(|labels| !labels.contains_key(RECORD)), "no longer a label");
    let sandbox: Sandbox = cluster.get("p-zzzzz").await.unwrap();
    assert_eq!(sandbox.labels()["agents.x-k8s.io/launch-type"], "warm");
    let annotations = sandbox.spec.pod_template.metadata.annotations.unwrap_or_default();
    assert!(annotations.is_empty(), "a claimed Pod is not safe to evict: {annotations:?}");
    eventually("the pool has its size again", || async {
        (cluster.list::<Sandbox>().await.len() == 3).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_get_events() {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    cluster.pool("p", "t", 1).await;
    eventually("the pool is full", || async {
        (cluster.get::<SandboxWarmPool>("p").await?.status?.ready_replicas? == 1).then_some(())
    })
    .await;
    cluster.claim("warm", "p", json!({})).await;
    let warm = bound(&cluster, "warm").await.status.unwrap().sandbox.unwrap().name.unwrap();
    cluster.pool("none", "t", 0).await;
    cluster.claim("cold", "none", json!({})).await;
    bound(&cluster, "cold").await;
    let end = json!({"spec": {"lifecycle": {"shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": "DeleteForeground"}}});
    cluster.patch::<SandboxClaim>("cold", end).await;
    let said = |events: Vec<Event>| {
        let mut said: Vec<_> = events
            .into_iter()
            .map(|event| {
                let of = event.regarding.unwrap().name.unwrap();
                format!(
                    "{of} {} {} {} {}",
                    event.type_.unwrap(),
                    event.reason.unwrap(),
                    event.action.unwrap(),
                    event.note.unwrap()
                )
            })
            .collect();
        said.sort();
        said
    };
    let expected = [
        "cold Normal ClaimExpired Claim Expired Claim expired".to_owned(),
        "cold Normal ClaimExpired Deleting Deleting Claim (ShutdownPolicy=DeleteForeground)".to_owned(),
        "cold Normal SandboxProvisioned Provisioning Created Sandbox \"cold\"".to_owned(),
        format!("warm Normal SandboxAdopted Adoption Adopted warm pool Sandbox \"{warm}\""),
    ];
    let last = std::sync::Mutex::new(Vec::new());
    cluster::eventually_or(
        || format!("{expected:?}, but {:?}", last.lock().unwrap()),
        || async {
            let found = said(cluster.list::<Event>().await);
            *last.lock().unwrap() = found.clone();
            (found == expected).then_some(())
        },
    )
    .await;
    cluster.stop().await;
}
