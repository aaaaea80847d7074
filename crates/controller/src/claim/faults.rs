//! Claims with unanswered requests or stale caches, against the real API server. No watch runs here: each test fills the
//! caches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hutch_api::Sandbox;
use hutch_apiserver::{ApiServer, Identity};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::{Value, json};

use super::*;
use crate::collection::{Collection, Object};
use crate::config::Config;
use crate::context::Context;
use crate::key::Key;

struct Cluster {
    client: Client,
    ctx: Context,
    lost: Arc<AtomicU32>,
}

impl Cluster {
    /// Creates a template, an empty pool and a claim for it.
    async fn new() -> Self {
        let server = ApiServer::open(hutch_apiserver::Config::default()).await.unwrap();
        let client: Client = server.client(Identity::admin(), "default");
        let lost = Arc::new(AtomicU32::new(0));
        let (through, losing) = (client.clone(), lost.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (client, losing) = (through.clone(), losing.clone());
            let counts = request.method() != "GET" && request.uri().path().contains("/sandboxes");
            async move {
                let answer = client.send(request).await?;
                if counts
                    && losing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
                {
                    return Err(kube::Error::Service("the connection broke".into()));
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        let lossy = Client::new(service, "default");
        let (recorder, _) = crate::record::recorder(lossy.clone(), crate::REPORTER);
        let cluster = Cluster { client, ctx: Context::new(&lossy, Config::default(), recorder), lost };
        let pod = json!({"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}});
        cluster.make(&cluster.ctx.templates, "t", json!({"spec": {"podTemplate": pod}})).await;
        let spec = json!({"replicas": 0, "sandboxTemplateRef": {"name": "t"}});
        cluster.make(&cluster.ctx.pools, "p", json!({"spec": spec})).await;
        cluster.make(&cluster.ctx.claims, "c", json!({"spec": {"warmPoolRef": {"name": "p"}}})).await;
        cluster
    }

    fn api<K: Object>(&self) -> Api<K> {
        Api::default_namespaced(self.client.clone())
    }

    /// Creates an object on the server and in the cache.
    async fn make<K: Object>(&self, known: &Collection<K>, name: &str, more: Value) -> K {
        let mut object =
            json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": name}});
        json_patch::merge(&mut object, &more);
        let made = serde_json::from_value(object).unwrap();
        let made = self.api::<K>().create(&PostParams::default(), &made).await.unwrap();
        known.insert(made.clone());
        made
    }

    /// Creates a Ready Sandbox that the object owns, on the server and in the cache.
    async fn sandbox<O: Resource<DynamicType = ()>>(&self, name: &str, owner: &O) -> Sandbox {
        let pool = hutch_api::name_hash("p");
        let pool = (O::kind(&()) == "SandboxWarmPool").then_some(pool);
        let uid = (O::kind(&()) == "SandboxClaim").then(|| owner.meta().uid.clone());
        let labels = json!({"agents.x-k8s.io/warm-pool-sandbox": pool, "agents.x-k8s.io/claim-uid": uid.flatten(),
            "agents.x-k8s.io/sandbox-template-ref-hash": hutch_api::name_hash("t")});
        let annotations = json!({"agents.x-k8s.io/sandbox-template-ref": "t"});
        let pod = json!({"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}});
        let owners = json!([crate::owner::reference(owner)]);
        let mut more = json!({"metadata": {"ownerReferences": owners}, "spec": {"podTemplate": pod}});
        json_patch::merge(&mut more, &json!({"metadata": {"labels": labels, "annotations": annotations}}));
        self.make(&self.ctx.sandboxes, name, more).await;
        let ready = json!({"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"status": {"podIPs": ["10.0.0.1"], "conditions": [ready]}});
        let sandbox: Sandbox = self.tell(name, status).await;
        self.ctx.sandboxes.insert(sandbox.clone());
        sandbox
    }

    async fn tell<K: Object>(&self, name: &str, status: Value) -> K {
        self.api().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap()
    }

    fn known<K: Object>(&self, known: &Collection<K>, name: &str) -> Arc<K> {
        known.get(&Key::new("default", name)).unwrap()
    }

    async fn reconcile(&self) {
        super::reconcile(&self.ctx, &Key::new("default", "c")).await;
    }

    /// Returns the names of the claim's Sandboxes on the server, and the one that its status names.
    async fn has(&self) -> (Vec<String>, Option<String>) {
        let claim = self.api::<SandboxClaim>().get("c").await.unwrap();
        let all = self.api::<Sandbox>().list(&Default::default()).await.unwrap().items;
        let mine = all.iter().filter(|sandbox| crate::owner::is_controlled_by(*sandbox, &claim));
        (
            mine.map(|sandbox| sandbox.name_any()).collect(),
            crate::binding::bound_name(&claim).map(str::to_owned),
        )
    }
}

fn only(name: &str) -> (Vec<String>, Option<String>) {
    (vec![name.to_owned()], Some(name.to_owned()))
}

#[tokio::test]
async fn unanswered_adoption_is_repeated_before_any_other() {
    let cluster = Cluster::new().await;
    let pool = cluster.known(&cluster.ctx.pools, "p");
    cluster.sandbox("a", pool.as_ref()).await;
    cluster.lost.store(1, Ordering::SeqCst);
    cluster.reconcile().await;
    assert_eq!(cluster.has().await, (vec!["a".to_owned()], None), "done, and the claim does not know it");
    cluster.sandbox("0-better", pool.as_ref()).await;
    cluster.reconcile().await;
    assert_eq!(cluster.has().await, only("a"));
}

#[tokio::test]
async fn unanswered_creation_is_repeated_before_any_adoption() {
    let cluster = Cluster::new().await;
    cluster.lost.store(1, Ordering::SeqCst);
    cluster.reconcile().await;
    assert_eq!(cluster.has().await.0, ["c"]);
    let pool = cluster.known(&cluster.ctx.pools, "p");
    cluster.sandbox("a", pool.as_ref()).await;
    cluster.reconcile().await;
    cluster.reconcile().await;
    assert_eq!(cluster.has().await, only("c"));
}

#[tokio::test]
async fn second_sandbox_that_the_status_does_not_name_is_deleted() {
    let cluster = Cluster::new().await;
    let claim = cluster.known(&cluster.ctx.claims, "c");
    cluster.sandbox("a", claim.as_ref()).await;
    cluster.sandbox("b", claim.as_ref()).await;
    let claim = cluster.tell("c", json!({"status": {"sandbox": {"name": "b"}}})).await;
    cluster.ctx.claims.insert(claim);
    cluster.reconcile().await;
    assert_eq!(cluster.has().await, only("b"));
}

#[tokio::test]
async fn stale_cache_never_changes_the_sandbox_of_a_claim() {
    let cluster = Cluster::new().await;
    let claim = cluster.known(&cluster.ctx.claims, "c");
    cluster.sandbox("gone", claim.as_ref()).await;
    cluster.api::<Sandbox>().delete("gone", &Default::default()).await.unwrap();
    let mine = cluster.sandbox("mine", claim.as_ref()).await;
    cluster.ctx.sandboxes.unlearn(&Key::of(&mine));
    let claim = cluster.tell("c", json!({"status": {"sandbox": {"name": "mine"}}})).await;
    cluster.ctx.claims.insert(claim);
    cluster.reconcile().await;
    assert_eq!(cluster.has().await, only("mine"));
}

#[tokio::test]
async fn annotations_wait_for_a_burst_of_claims_and_keep_the_time() {
    let cluster = Cluster::new().await;
    let pool = cluster.known(&cluster.ctx.pools, "p");
    cluster.sandbox("a", pool.as_ref()).await;
    let others = [cluster.ctx.scheduler.adopting(), cluster.ctx.scheduler.adopting()];
    cluster.reconcile().await;
    assert_eq!(cluster.has().await, only("a"), "the status does not wait");
    let annotations =
        || async { cluster.api::<SandboxClaim>().get("c").await.unwrap().annotations().clone() };
    assert_eq!(annotations().await.len(), 0);
    drop(others);
    cluster.reconcile().await;
    let written = annotations().await;
    assert_eq!(written["agents.x-k8s.io/sandbox-name"], "a");
    assert!(
        written["agents.x-k8s.io/claim-first-ready-at"].parse::<jiff::Timestamp>().is_ok(),
        "{written:?}"
    );
}
