//! How many writes the controllers cost the API server. Every one is counted at the client; none may be refused.

use hutch_api::{Sandbox, SandboxClaim, SandboxWarmPool};
use hutch_controller::Config;
use kube::ResourceExt;
use serde_json::json;

use crate::cluster::{Cluster, Written, eventually};

/// No longer than this without a write, and nothing more is coming.
const QUIET: std::time::Duration = std::time::Duration::from_millis(1500);

async fn with_pool(replicas: u32) -> Cluster {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    cluster.pool("p", "t", replicas).await;
    eventually("the pool is full", || async {
        let pool: SandboxWarmPool = cluster.get("p").await?;
        (pool.status?.ready_replicas? == i32::try_from(replicas).ok()?).then_some(())
    })
    .await;
    cluster.quiet(QUIET).await;
    cluster
}

fn refused(written: &[Written]) -> Vec<&Written> {
    written.iter().filter(|write| !(200..300).contains(&write.status)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_claim_costs_five_writes() {
    let cluster = with_pool(1).await;
    let pooled = cluster.list::<Sandbox>().await[0].name_any();
    // Refill has its own account: without it, every write is the claim's.
    let cluster = cluster.stop_controllers().await;
    let config = Config { replenish_delay: std::time::Duration::from_secs(3600), ..Config::default() };
    let cluster = cluster.start_controllers_with(config);
    cluster.quiet(QUIET).await;
    let before = cluster.written();
    cluster.claim("c", "p", json!({})).await;
    cluster.quiet(QUIET).await;
    let claim: SandboxClaim = cluster.get("c").await.unwrap();
    let got = claim.status.unwrap().sandbox.unwrap().name.unwrap();
    let written: Vec<_> = cluster.written()[before.len()..].to_vec();
    let for_claim: Vec<_> = written.iter().filter(|write| !write.path.contains("sandboxwarmpools")).collect();
    assert_eq!(got, pooled);
    let paths: Vec<_> = for_claim.iter().map(|write| write.what()).collect();
    let mut sorted = paths.clone();
    sorted.sort();
    assert_eq!(
        sorted,
        ["PATCH pods", "PATCH sandboxclaims", "PATCH sandboxclaims/status", "PATCH sandboxes", "POST events"],
        "{written:#?}"
    );
    // The Pod's labels follow the watch, which may be faster than an answer.
    let at = |what: &str| paths.iter().position(|path| path == what);
    assert!(at("PATCH sandboxes") < at("PATCH sandboxclaims/status"), "first it is taken: {paths:?}");
    assert!(
        at("PATCH sandboxclaims/status") < at("PATCH sandboxclaims"),
        "then the client learns it: {paths:?}"
    );
    assert!(refused(&cluster.written()).is_empty(), "{:#?}", refused(&cluster.written()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_costs_three_writes_from_its_creation_to_its_end() {
    let cluster = Cluster::start().await;
    cluster.quiet(QUIET).await;
    let before = cluster.written().len();
    cluster.sandbox("s", json!({})).await;
    eventually("it is Ready", || async {
        let sandbox: Sandbox = cluster.get("s").await?;
        let conditions = sandbox.status?.conditions?;
        conditions.iter().any(|found| found.type_ == "Ready" && found.status == "True").then_some(())
    })
    .await;
    cluster.quiet(QUIET).await;
    cluster.delete::<Sandbox>("s").await;
    cluster.quiet(QUIET).await;
    let written = cluster.written();
    let mut paths: Vec<_> = written[before..].iter().map(Written::what).collect();
    paths.sort();
    assert_eq!(paths, ["PATCH sandboxes", "PATCH sandboxes/status", "POST pods"], "{written:#?}");
    assert!(refused(&written).is_empty());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn burst_of_short_sandboxes_costs_no_write_for_pod_names() {
    let cluster = Cluster::start().await.stop_controllers().await;
    cluster.stop_kubelet();
    let patient = Config { progress_delay: std::time::Duration::from_secs(3600), ..Config::default() };
    let cluster = cluster.start_controllers_with(patient);
    for n in 0..20 {
        cluster.sandbox(&format!("first-{n}"), json!({})).await;
    }
    cluster.quiet(QUIET).await;
    let before = cluster.written().len();
    for n in 0..10 {
        cluster.sandbox(&format!("later-{n}"), json!({})).await;
    }
    cluster.quiet(QUIET).await;
    let written = cluster.written();
    let paths: Vec<_> = written[before..].iter().map(Written::what).collect();
    assert_eq!(paths, ["POST pods"; 10], "{written:#?}");
    // They stay, so they are written in the end.
    let cluster = cluster.stop_controllers().await;
    let cluster = cluster.start_controllers();
    eventually("each names its Pod", || async {
        let sandboxes: Vec<Sandbox> = cluster.list().await;
        let noted =
            |it: &Sandbox| it.annotations().get("agents.x-k8s.io/pod-name") == it.metadata.name.as_ref();
        (sandboxes.len() == 30 && sandboxes.iter().all(noted)).then_some(())
    })
    .await;
    assert!(refused(&cluster.written()).is_empty(), "{:#?}", refused(&cluster.written()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pooled_sandbox_costs_three_writes_and_its_pool_little_more() {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    cluster.pool("p", "t", 4).await;
    eventually("the pool is full", || async {
        let pool: SandboxWarmPool = cluster.get("p").await?;
        (pool.status?.ready_replicas? == 4).then_some(())
    })
    .await;
    cluster.quiet(QUIET).await;
    let written = cluster.written();
    let count = |what: &str| written.iter().filter(|write| write.what() == what).count();
    let member = [
        count("POST sandboxes"),
        count("POST pods"),
        count("PATCH sandboxes/status"),
        count("PATCH sandboxes"),
    ];
    assert_eq!(member, [4, 4, 4, 0], "{written:#?}");
    assert!(
        count("PATCH sandboxwarmpools/status") <= 9,
        "at most one a change of a member, and one at first"
    );
    assert!(refused(&written).is_empty(), "{:#?}", refused(&written));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reconcile_of_a_settled_object_writes_nothing() {
    let cluster = with_pool(2).await;
    cluster.claim("c", "p", json!({})).await;
    cluster.sandbox("s", json!({"service": true})).await;
    cluster.quiet(QUIET).await;
    let cluster = cluster.stop_controllers().await;
    let before = cluster.written().len();
    let cluster = cluster.start_controllers();
    tokio::time::sleep(QUIET).await;
    let after = cluster.written();
    assert!(after[before..].is_empty(), "{:#?}", &after[before..]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_write_behind_window_edits_share_a_write_of_the_pod() {
    let cluster = Cluster::start().await.stop_controllers().await;
    let config = Config { write_behind: std::time::Duration::from_secs(1), ..Config::default() };
    let cluster = cluster.start_controllers_with(config);
    cluster.sandbox("s", json!({})).await;
    cluster.quiet(QUIET).await;
    let before = cluster.written().len();
    for n in 0..8 {
        let labels = json!({format!("example.com/l{n}"): "x"});
        cluster
            .patch::<Sandbox>("s", json!({"spec": {"podTemplate": {"metadata": {"labels": labels}}}}))
            .await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    eventually("the last edit has reached the Pod", || async {
        let pod: k8s_openapi::api::core::v1::Pod = cluster.get("s").await?;
        (0..8).all(|n| pod.labels().contains_key(&format!("example.com/l{n}"))).then_some(())
    })
    .await;
    let patches = cluster.written()[before..].iter().filter(|write| write.what() == "PATCH pods").count();
    assert!(patches < 4, "{patches} writes for eight edits");
    cluster.stop().await;
}
