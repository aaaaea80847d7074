//! Untrusted input in the objects of users.

use std::collections::HashMap;

use hutch_api::{Sandbox, SandboxClaim, SandboxWarmPool, name_hash};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually, eventually_or};

/// Two names with one hash.
fn colliding(prefix: &str) -> [String; 2] {
    let mut seen = HashMap::new();
    let mut names = (0..u32::MAX).map(|n| format!("{prefix}{n}"));
    names
        .find_map(|name| seen.insert(name_hash(&name), name.clone()).map(|other| [other, name]))
        .expect("there are more names than hashes")
}

/// Status, reason and message of the condition Ready.
async fn ready(cluster: &Cluster, claim: &str, wanted: impl Fn(&str, &str) -> bool) -> String {
    let last = std::sync::Mutex::new(None);
    eventually_or(
        || format!("claim {claim}, but {:?}", last.lock().unwrap()),
        || async {
            let claim: SandboxClaim = cluster.get(claim).await?;
            let conditions = claim.status?.conditions?;
            let ready = conditions.into_iter().find(|it| it.type_ == "Ready")?;
            *last.lock().unwrap() = Some(ready.clone());
            wanted(&ready.status, &ready.reason).then_some(ready.message)
        },
    )
    .await
}

async fn all_ready(cluster: &Cluster, names: &[String]) {
    for name in names {
        eventually(&format!("{name} is Ready"), || async {
            let conditions = cluster.get::<Sandbox>(name).await?.status?.conditions?;
            conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True").then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_whose_names_have_one_hash_have_their_own_pods_and_services() {
    let cluster = Cluster::start().await;
    let names = colliding("s");
    for name in &names {
        cluster.sandbox(name, json!({"service": true})).await;
    }
    all_ready(&cluster, &names).await;
    cluster.delete::<Sandbox>(&names[0]).await;
    cluster.patch::<Sandbox>(&names[1], json!({"spec": {"operatingMode": "Suspended"}})).await;
    eventually("the other one sleeps", || async {
        cluster.get::<Pod>(&names[1]).await.is_none().then_some(())
    })
    .await;
    assert!(cluster.get::<Pod>(&names[0]).await.is_some(), "not what the other one has");
    assert!(cluster.get::<Service>(&names[0]).await.is_some());
    cluster.patch::<Sandbox>(&names[1], json!({"spec": {"operatingMode": "Running"}})).await;
    all_ready(&cluster, &names[1..]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_whose_names_have_one_hash_have_their_own_members() {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    let names = colliding("p");
    for name in &names {
        cluster.pool(name, "t", 2).await;
    }
    let full = |name: &str| {
        let (cluster, name) = (&cluster, name.to_owned());
        async move { (cluster.get::<SandboxWarmPool>(&name).await?.status?.ready_replicas? == 2).then_some(()) }
    };
    for name in &names {
        eventually("the pool is full", || full(name)).await;
        cluster.claim(&format!("of-{name}"), name, json!({})).await;
        ready(&cluster, &format!("of-{name}"), |status, _| status == "True").await;
        let claim: SandboxClaim = cluster.get(&format!("of-{name}")).await.unwrap();
        let sandbox = claim.status.unwrap().sandbox.unwrap().name.unwrap();
        assert!(sandbox.starts_with(&format!("{name}-")), "{sandbox} is not of {name}");
    }
    cluster.patch::<SandboxWarmPool>(&names[0], json!({"spec": {"replicas": 0}})).await;
    eventually("one is empty and the other full", || async {
        let sandboxes = cluster.list::<Sandbox>().await;
        let of = |pool: &str| {
            sandboxes
                .iter()
                .filter(|it| it.owner_references().iter().any(|owner| owner.name == *pool))
                .count()
        };
        (of(&names[0]) == 0 && of(&names[1]) == 2).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_annotations_and_invalid_labels() {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    cluster.pool("p", "t", 1).await;
    let note =
        |bytes| json!({"spec": {"additionalPodMetadata": {"annotations": {"note": "x".repeat(bytes)}}}});
    cluster.claim("huge", "p", note(1 << 20)).await;
    cluster.claim("large", "p", note(200 << 10)).await;
    cluster.claim("small", "p", json!({})).await;
    let label =
        json!({"spec": {"additionalPodMetadata": {"labels": {"sandbox.users.io/a": "x".repeat(64)}}}});
    cluster.claim("label", "p", label).await;
    for claim in ["small", "large"] {
        ready(&cluster, claim, |status, _| status == "True").await;
    }
    let claim: SandboxClaim = cluster.get("large").await.unwrap();
    let sandbox = claim.status.unwrap().sandbox.unwrap().name.unwrap();
    eventually("the Pod has it", || async {
        let pod: Pod = cluster.get(&sandbox).await?;
        (pod.annotations().get("note")?.len() == 200 << 10).then_some(())
    })
    .await;
    // No Pod may have so much.
    let message = ready(&cluster, "huge", |_, reason| reason == "ReconcilerError").await;
    assert!(
        message.contains("metadata.annotations: Too long: may not be more than 262144 bytes"),
        "{message}"
    );
    let message = ready(&cluster, "label", |_, reason| reason == "InvalidMetadata").await;
    assert!(message.contains("sandbox.users.io/a"), "{message}");
    cluster.delete::<SandboxClaim>("huge").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_and_durations_at_the_ends_of_their_range() {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    cluster.pool("p", "t", 0).await;
    let with = |lifecycle: Value| json!({"spec": {"lifecycle": lifecycle}});
    cluster.claim("early", "p", with(json!({"shutdownTime": "0001-01-01T00:00:00Z"}))).await;
    let late = json!({"shutdownTime": "9999-12-31T23:59:59Z", "ttlSecondsAfterFinished": i32::MAX});
    cluster.claim("late", "p", with(late)).await;
    ready(&cluster, "early", |_, reason| reason == "ClaimExpired").await;
    ready(&cluster, "late", |status, _| status == "True").await;
    for (field, value) in [("ttlSecondsAfterFinished", json!(-1)), ("shutdownTime", json!("in a while"))] {
        let mut claim = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {"name": "refused"}, "spec": {"warmPoolRef": {"name": "p"}}});
        claim["spec"]["lifecycle"] = json!({ field: value });
        let claim: kube::core::DynamicObject = serde_json::from_value(claim).unwrap();
        let resource = kube::core::ApiResource::erase::<SandboxClaim>(&());
        let api = cluster.dynamic(&resource);
        let refused = api.create(&PostParams::default(), &claim).await.expect_err("the schema has a limit");
        assert!(refused.to_string().contains(field), "{refused}");
    }
    cluster.stop().await;
}
