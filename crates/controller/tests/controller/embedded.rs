//! The controllers against Hutch's own API server, with a kubelet that only says that Pods are Ready.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hutch_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually, eventually_or};

const TEMPLATE: &str = "python";
const POOL: &str = "pool";

async fn with_pool(replicas: u32) -> Cluster {
    let cluster = Cluster::start().await;
    cluster.template(TEMPLATE, json!({})).await;
    cluster.pool(POOL, TEMPLATE, replicas).await;
    eventually("the pool is full", || async {
        let pool: SandboxWarmPool = cluster.get(POOL).await?;
        (pool.status?.ready_replicas? == i32::try_from(replicas).ok()?).then_some(())
    })
    .await;
    cluster
}

fn ready(value: &Value) -> Option<(String, String, String)> {
    let conditions = value["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

async fn claim_says(cluster: &Cluster, name: &str, reason: &str) -> Value {
    let last = std::sync::Mutex::new(None);
    let found = eventually_or(
        || format!("claim {name} says {reason}, but {:?}", last.lock().unwrap()),
        || async {
            let claim: SandboxClaim = cluster.get(name).await?;
            let value = serde_json::to_value(&claim).unwrap();
            let found = ready(&value);
            *last.lock().unwrap() = found.clone();
            (found?.1 == reason).then_some(value)
        },
    );
    found.await
}

async fn sandbox_says(cluster: &Cluster, name: &str, message: &str) -> Sandbox {
    let last = std::sync::Mutex::new(None);
    let found = eventually_or(
        || format!("sandbox {name} says {message}, but {:?}", last.lock().unwrap()),
        || async {
            let sandbox: Sandbox = cluster.get(name).await?;
            let found = ready(&serde_json::to_value(&sandbox).unwrap());
            *last.lock().unwrap() = found.clone();
            (found?.2 == message).then_some(sandbox)
        },
    );
    found.await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gets_a_pooled_sandbox_and_the_pool_is_refilled() {
    let cluster = with_pool(2).await;
    let claim = cluster
        .claim("c", POOL, json!({"metadata": {"labels": {"agents.x-k8s.io/created-by": "go-client"}}}))
        .await;
    let claim_uid = claim.uid().unwrap();
    let bound = claim_says(&cluster, "c", "DependenciesReady").await;
    let name = bound["status"]["sandbox"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("pool-"), "{name}");
    assert!(bound["status"]["sandbox"]["podIPs"][0].is_string());

    let sandbox: Sandbox = cluster.get(&name).await.unwrap();
    let labels = sandbox.labels();
    assert_eq!(labels["agents.x-k8s.io/claim-uid"], claim_uid);
    assert_eq!(labels["agents.x-k8s.io/launch-type"], "warm");
    assert_eq!(labels["agents.x-k8s.io/created-by"], "go-client");
    assert!(!labels.contains_key("agents.x-k8s.io/warm-pool-sandbox"));
    assert_eq!(sandbox.owner_references().len(), 1);
    assert_eq!(sandbox.owner_references()[0].uid, claim_uid);
    assert_eq!(sandbox.annotations()["agents.x-k8s.io/pod-name"], name);

    eventually("the Pod has left the pool", || async {
        let pod: Pod = cluster.get(&name).await?;
        let pooled = pod.labels().contains_key("agents.x-k8s.io/warm-pool-sandbox")
            || pod.annotations().contains_key("cluster-autoscaler.kubernetes.io/safe-to-evict");
        (!pooled).then_some(())
    })
    .await;
    eventually("the pool is full again", || async {
        let pool: SandboxWarmPool = cluster.get(POOL).await?;
        let all = cluster.list::<Sandbox>().await;
        (pool.status?.ready_replicas == Some(2) && all.len() == 3).then_some(())
    })
    .await;
    eventually("the claim is annotated with its times", || async {
        let claim: SandboxClaim = cluster.get("c").await?;
        let known = claim.annotations();
        let times = ["agents.x-k8s.io/controller-first-observed-at", "agents.x-k8s.io/claim-first-ready-at"];
        (times.iter().all(|key| known.get(*key).is_some_and(|time| time.ends_with('Z')))
            && known.get("agents.x-k8s.io/sandbox-name") == Some(&name))
        .then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_claims_at_once_never_share_a_sandbox() {
    let cluster = with_pool(4).await;
    let names: Vec<String> = (0..16).map(|n| format!("c{n}")).collect();
    futures::future::join_all(names.iter().map(|name| cluster.claim(name, POOL, json!({})))).await;
    let mut taken = BTreeSet::new();
    for name in &names {
        let claim = claim_says(&cluster, name, "DependenciesReady").await;
        let sandbox = claim["status"]["sandbox"]["name"].as_str().unwrap().to_owned();
        let owner = cluster.get::<Sandbox>(&sandbox).await.unwrap().owner_references()[0].uid.clone();
        assert_eq!(Some(owner.as_str()), claim["metadata"]["uid"].as_str());
        assert!(taken.insert(sandbox.clone()), "{sandbox} was given twice");
    }
    eventually("the pool is full again", || async {
        (cluster.list::<Sandbox>().await.len() == 20).then_some(())
    })
    .await;
    let owned: Vec<_> =
        cluster.list::<Sandbox>().await.iter().map(|s| s.owner_references()[0].uid.clone()).collect();
    for name in &names {
        let uid = cluster.get::<SandboxClaim>(name).await.unwrap().uid().unwrap();
        assert_eq!(owned.iter().filter(|owner| **owner == uid).count(), 1, "{name} has one sandbox");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_claim_is_quick() {
    let cluster = with_pool(8).await;
    let mut times = Vec::new();
    for n in 0..20 {
        let name = format!("c{n}");
        let mut watch = cluster.watch::<SandboxClaim>(&name).await;
        let began = Instant::now();
        cluster.claim(&name, POOL, json!({})).await;
        watch
            .until(|claim| {
                ready(&serde_json::to_value(claim).unwrap()).is_some_and(|found| found.0 == "True")
            })
            .await;
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    times.sort();
    println!("warm claim to Ready: median {:?}, all {times:?}", times[times.len() / 2]);
    // A debug build on a busy machine; what is looked for is a wait for a timer.
    assert!(times[times.len() / 2] < Duration::from_millis(100), "{times:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_claim_that_names_only_a_template_starts_cold_under_its_own_name() {
    let cluster = Cluster::start().await;
    cluster.template(TEMPLATE, json!({})).await;
    cluster
        .post("extensions.agents.x-k8s.io/v1alpha1", "sandboxclaims", json!({
            "kind": "SandboxClaim", "metadata": {"name": "old"}, "spec": {"sandboxTemplateRef": {"name": TEMPLATE}},
        }))
        .await;
    let claim = claim_says(&cluster, "old", "DependenciesReady").await;
    assert_eq!(claim["status"]["sandbox"]["name"], "old");
    let sandbox: Sandbox = cluster.get("old").await.unwrap();
    assert_eq!(sandbox.labels()["agents.x-k8s.io/launch-type"], "cold");
    assert_eq!(sandbox.spec.pod_template.spec.automount_service_account_token, Some(false));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_reports_a_missing_object_and_starts_when_it_appears() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "late", json!({})).await;
    cluster.claim("b", "shadow-pool-late-template", json!({})).await;
    let missing = claim_says(&cluster, "a", "WarmPoolNotFound").await;
    assert_eq!(ready(&missing).unwrap().2, "SandboxWarmPool \"late\" not found");
    claim_says(&cluster, "b", "WarmPoolNotFound").await;
    cluster.pool("late", "late-template", 0).await;
    let missing = claim_says(&cluster, "a", "TemplateNotFound").await;
    assert_eq!(ready(&missing).unwrap().2, "SandboxTemplate \"late-template\" not found");
    cluster.template("late-template", json!({})).await;
    claim_says(&cluster, "a", "DependenciesReady").await;
    claim_says(&cluster, "b", "DependenciesReady").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_bring_variables_volumes_and_metadata_as_the_template_allows() {
    let cluster = Cluster::start().await;
    cluster.template("strict", json!({})).await;
    cluster
        .template(
            "open",
            json!({"envVarsInjectionPolicy": "Overrides", "volumeClaimTemplatesPolicy": "Allowed"}),
        )
        .await;
    cluster.pool("strict", "strict", 0).await;
    cluster.pool("open", "open", 0).await;
    let env = json!({"spec": {"env": [{"name": "A", "value": "1"}]}});
    let volume = json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}});
    cluster.claim("env-no", "strict", env.clone()).await;
    cluster.claim("volume-no", "strict", volume.clone()).await;
    cluster
        .claim("label-no", "open", json!({"spec": {"additionalPodMetadata": {"labels": {"plain": "x"}}}}))
        .await;
    claim_says(&cluster, "env-no", "EnvVarsInjectionRejected").await;
    claim_says(&cluster, "volume-no", "VolumeClaimTemplatesError").await;
    claim_says(&cluster, "label-no", "InvalidMetadata").await;
    let mut yes = env;
    yes["spec"]["volumeClaimTemplates"] = volume["spec"]["volumeClaimTemplates"].clone();
    yes["spec"]["additionalPodMetadata"] = json!({"labels": {"sandbox.users.io/team": "x"}});
    cluster.claim("yes", "open", yes).await;
    claim_says(&cluster, "yes", "DependenciesReady").await;
    let pod: Pod = cluster.get("yes").await.unwrap();
    assert_eq!(pod.labels()["sandbox.users.io/team"], "x");
    let pod = serde_json::to_value(pod.spec).unwrap();
    assert_eq!(pod["containers"][0]["env"], json!([{"name": "A", "value": "1"}]));
    let volumes = pod["volumes"].as_array().unwrap();
    assert!(
        volumes.iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == "v-yes"),
        "{volumes:?}"
    );
    assert!(cluster.get::<PersistentVolumeClaim>("v-yes").await.is_some());

    cluster
        .patch::<SandboxClaim>(
            "yes",
            json!({"spec": {"additionalPodMetadata": {"labels": null, "annotations": {"note": "hi"}}}}),
        )
        .await;
    eventually("an edit of the claim reaches the Pod", || async {
        let pod: Pod = cluster.get("yes").await?;
        let gone = !pod.labels().contains_key("sandbox.users.io/team");
        (gone && pod.annotations().get("note").is_some_and(|note| note == "hi")).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_sleeps_and_wakes_with_its_volume_and_service() {
    let cluster = Cluster::start().await;
    cluster
        .sandbox("s", json!({"service": true, "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}))
        .await;
    let sandbox = sandbox_says(&cluster, "s", "Pod is Ready; Service Exists").await;
    let status = sandbox.status.clone().unwrap();
    assert_eq!(status.service_fqdn.as_deref(), Some("s.default.svc.cluster.local"));
    assert_eq!(sandbox.annotations()["agents.x-k8s.io/pod-name"], "s");
    let first = cluster.get::<Pod>("s").await.unwrap().uid();

    cluster.patch::<Sandbox>("s", json!({"spec": {"operatingMode": "Suspended"}})).await;
    let sandbox = sandbox_says(&cluster, "s", "Sandbox is suspended").await;
    assert!(cluster.get::<Pod>("s").await.is_none());
    assert!(cluster.get::<PersistentVolumeClaim>("v-s").await.is_some());
    assert!(cluster.get::<Service>("s").await.is_some());
    let status = sandbox.status.unwrap();
    assert!(status.selector.is_some() && status.pod_ips.is_none());

    cluster.patch::<Sandbox>("s", json!({"spec": {"operatingMode": "Running"}})).await;
    sandbox_says(&cluster, "s", "Pod is Ready; Service Exists").await;
    assert_ne!(cluster.get::<Pod>("s").await.unwrap().uid(), first);

    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(2);
    cluster
        .patch::<Sandbox>(
            "s",
            json!({"spec": {"shutdownTime": soon.to_string(), "shutdownPolicy": "Retain"}}),
        )
        .await;
    sandbox_says(&cluster, "s", "Sandbox has expired").await;
    eventually("the Pod is gone, the volume is not", || async {
        let gone = cluster.get::<Pod>("s").await.is_none() && cluster.get::<Service>("s").await.is_none();
        (gone && cluster.get::<PersistentVolumeClaim>("v-s").await.is_some()).then_some(())
    })
    .await;
    cluster.patch::<Sandbox>("s", json!({"spec": {"shutdownTime": null}})).await;
    sandbox_says(&cluster, "s", "Pod is Ready; Service Exists").await;
    let past = jiff::Timestamp::now().to_string();
    cluster.patch::<Sandbox>("s", json!({"spec": {"shutdownTime": past, "shutdownPolicy": "Delete"}})).await;
    eventually("the sandbox is gone", || async { cluster.get::<Sandbox>("s").await.is_none().then_some(()) })
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_ends_as_its_policy_says() {
    let cluster = with_pool(2).await;
    let soon = (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(2)).to_string();
    for policy in ["Retain", "Delete"] {
        let lifecycle = json!({"spec": {"lifecycle": {"shutdownTime": soon, "shutdownPolicy": policy}}});
        cluster.claim(&policy.to_lowercase(), POOL, lifecycle).await;
    }
    let bound = claim_says(&cluster, "retain", "DependenciesReady").await;
    let name = bound["status"]["sandbox"]["name"].as_str().unwrap().to_owned();
    eventually("the deleted claim is gone", || async {
        cluster.get::<SandboxClaim>("delete").await.is_none().then_some(())
    })
    .await;
    eventually("the kept claim has lost its sandbox", || async {
        let claim: SandboxClaim = cluster.get("retain").await?;
        let gone = cluster.get::<Sandbox>(&name).await.is_none();
        let found = ready(&serde_json::to_value(&claim).unwrap())?;
        (gone && found.1 == "ClaimExpired" && claim.status?.sandbox?.name.is_none()).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_and_templates_follow_their_specs() {
    let cluster = with_pool(3).await;
    assert!(cluster.get::<NetworkPolicy>("python-network-policy").await.is_some());
    let template: SandboxTemplate = cluster.get(TEMPLATE).await.unwrap();
    assert!(template.labels().contains_key("agents.x-k8s.io/sandbox-template-ref-hash"));
    cluster
        .patch::<SandboxTemplate>(TEMPLATE, json!({"spec": {"networkPolicyManagement": "Unmanaged"}}))
        .await;
    eventually("the policy is gone", || async {
        cluster.get::<NetworkPolicy>("python-network-policy").await.is_none().then_some(())
    })
    .await;

    cluster.patch::<SandboxWarmPool>(POOL, json!({"spec": {"replicas": 1}})).await;
    eventually("the pool has shrunk", || async {
        let pool: SandboxWarmPool = cluster.get(POOL).await?;
        (cluster.list::<Sandbox>().await.len() == 1 && pool.status?.replicas == Some(1)).then_some(())
    })
    .await;
    let before = cluster.list::<Sandbox>().await[0].name_any();
    let change = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/host", "args": ["new"]}]}}}});
    cluster.patch::<SandboxTemplate>(TEMPLATE, change).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(cluster.list::<Sandbox>().await[0].name_any(), before, "OnReplenish leaves members alone");
    cluster.patch::<SandboxWarmPool>(POOL, json!({"spec": {"updateStrategy": {"type": "Recreate"}}})).await;
    eventually("the member was replaced", || async {
        let all = cluster.list::<Sandbox>().await;
        (all.len() == 1 && all[0].name_any() != before).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_sandbox_follows_its_pool_to_another_template_at_once() {
    let cluster = with_pool(1).await;
    cluster.template("other", json!({})).await;
    cluster.claim("c", POOL, json!({})).await;
    let bound = claim_says(&cluster, "c", "DependenciesReady").await;
    let name = bound["status"]["sandbox"]["name"].as_str().unwrap();
    cluster.patch::<SandboxWarmPool>(POOL, json!({"spec": {"sandboxTemplateRef": {"name": "other"}}})).await;
    let hash = hutch_api::name_hash("other");
    eventually("the Sandbox and its Pod are under the policy of the other template", || async {
        let key = "agents.x-k8s.io/sandbox-template-ref-hash";
        let sandbox: Sandbox = cluster.get(name).await?;
        let pod: Pod = cluster.get(name).await?;
        (sandbox.labels().get(key) == Some(&hash) && pod.labels().get(key) == Some(&hash)).then_some(())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_between_the_two_writes_of_a_claim_gives_it_the_same_sandbox() {
    let cluster = with_pool(2).await;
    cluster.claim("c", POOL, json!({})).await;
    let bound = claim_says(&cluster, "c", "DependenciesReady").await;
    let name = bound["status"]["sandbox"]["name"].clone();
    let cluster = cluster.stop_controllers().await;
    // As if the process had died after the first write and before the second.
    let api = cluster.api::<SandboxClaim>();
    let lost = json!({"status": null, "metadata": {"annotations": null}});
    api.patch_status("c", &PatchParams::default(), &Patch::Merge(&lost)).await.unwrap();
    api.patch("c", &PatchParams::default(), &Patch::Merge(&json!({"metadata": {"annotations": null}})))
        .await
        .unwrap();
    let cluster = cluster.start_controllers();
    let bound = claim_says(&cluster, "c", "DependenciesReady").await;
    assert_eq!(bound["status"]["sandbox"]["name"], name);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_extensions_only_sandboxes_are_reconciled() {
    let cluster = Cluster::start().await.stop_controllers().await;
    let config = hutch_controller::Config { extensions: false, ..Default::default() };
    let cluster = cluster.start_controllers_with(config);
    cluster.template(TEMPLATE, json!({})).await;
    cluster.pool(POOL, TEMPLATE, 1).await;
    cluster.sandbox("s", json!({})).await;
    sandbox_says(&cluster, "s", "Pod is Ready").await;
    assert_eq!(cluster.list::<Sandbox>().await.len(), 1, "the pool has no members");
    cluster.stop().await;
}

/// Concurrent writes of other clients must not make a claim lose its Sandbox or get a second one.
#[tokio::test(flavor = "multi_thread")]
async fn claims_bind_despite_concurrent_writers() {
    let cluster = with_pool(4).await;
    let meddle = async {
        for n in 0..60 {
            for sandbox in cluster.list::<Sandbox>().await {
                let patch = json!({"metadata": {"annotations": {"example.com/n": n.to_string()}}});
                let result: Result<Sandbox, _> = cluster
                    .api()
                    .patch(&sandbox.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                    .await;
                result.ok();
            }
        }
    };
    let names: Vec<String> = (0..8).map(|n| format!("c{n}")).collect();
    let claims = futures::future::join_all(names.iter().map(|name| cluster.claim(name, POOL, json!({}))));
    futures::join!(meddle, claims);
    let mut taken = BTreeSet::new();
    for name in &names {
        let claim = claim_says(&cluster, name, "DependenciesReady").await;
        assert!(taken.insert(claim["status"]["sandbox"]["name"].as_str().unwrap().to_owned()));
    }
    let claimed = |sandbox: &&Sandbox| sandbox.owner_references()[0].kind == "SandboxClaim";
    assert_eq!(cluster.list::<Sandbox>().await.iter().filter(claimed).count(), names.len());
    cluster.stop().await;
}
