//! What all reconcilers share: the collections, the settings, the recorder of events.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hutch_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, label};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodSpec, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::{Client, Resource, ResourceExt};

use crate::claim::is_unbound;
use crate::collection::Collection;
use crate::config::Config;
use crate::key::Key;
use crate::owner;
use crate::record::{Note, Recorder};

pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) sandboxes: Arc<Collection<Sandbox>>,
    pub(crate) claims: Arc<Collection<SandboxClaim>>,
    pub(crate) pools: Arc<Collection<SandboxWarmPool>>,
    pub(crate) templates: Arc<Collection<SandboxTemplate>>,
    pub(crate) pods: Arc<Collection<Pod>>,
    pub(crate) services: Arc<Collection<Service>>,
    pub(crate) volumes: Arc<Collection<PersistentVolumeClaim>>,
    pub(crate) policies: Arc<Collection<NetworkPolicy>>,
    recorder: Recorder,
    /// Sandboxes that a claim is about to take. The API server's guard decides; this only keeps two claims of this
    /// process from asking for the same one.
    taking: Mutex<HashSet<Key>>,
    /// Pools that an event has called not progressing.
    stuck_pools: Mutex<HashSet<Key>>,
}

impl World {
    pub(crate) fn new(client: &Client, config: Config, recorder: Recorder) -> Self {
        let client = || client.clone();
        World {
            config,
            sandboxes: Arc::new(Collection::new(client(), sandbox_terms, drop_noise)),
            claims: Arc::new(Collection::new(client(), claim_terms, drop_noise)),
            pools: Arc::new(Collection::new(client(), pool_terms, drop_noise)),
            templates: Arc::new(Collection::new(client(), |_| Vec::new(), drop_noise)),
            pods: Arc::new(Collection::new(client(), pod_terms, trim_pod)),
            services: Arc::new(Collection::new(client(), |_| Vec::new(), drop_noise)),
            volumes: Arc::new(Collection::new(client(), |_| Vec::new(), drop_noise)),
            policies: Arc::new(Collection::new(client(), |_| Vec::new(), drop_noise)),
            recorder,
            taking: Mutex::default(),
            stuck_pools: Mutex::default(),
        }
    }

    pub(crate) fn record<K: Resource<DynamicType = ()>>(&self, object: &K, note: Note) {
        self.recorder.record(object, note, Timestamp::now());
    }

    pub(crate) fn taking(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stuck_pools(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.stuck_pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Index term: Pods with the label of a Sandbox's name.
pub(crate) fn name_hash_term(namespace: &str, hash: &str) -> String {
    format!("name:{namespace}/{hash}")
}

/// Index term: Sandboxes with the label of a pool's name.
pub(crate) fn pool_hash_term(namespace: &str, hash: &str) -> String {
    format!("pool:{namespace}/{hash}")
}

/// Index term: Sandboxes that the owner with that uid controls.
pub(crate) fn owner_term(uid: &str) -> String {
    format!("owner:{uid}")
}

/// Index term: claims that have no Sandbox yet, by pool.
pub(crate) fn waiting_term(namespace: &str, pool: &str) -> String {
    format!("waiting:{namespace}/{pool}")
}

/// Index term: pools, by template.
pub(crate) fn template_term(namespace: &str, template: &str) -> String {
    format!("template:{namespace}/{template}")
}

fn sandbox_terms(sandbox: &Sandbox) -> Vec<String> {
    let namespace = sandbox.namespace().unwrap_or_default();
    let pool = sandbox.labels().get(label::WARM_POOL_SANDBOX).map(|hash| pool_hash_term(&namespace, hash));
    let owner = owner::controller(sandbox).map(|owner| owner_term(&owner.uid));
    pool.into_iter().chain(owner).collect()
}

fn claim_terms(claim: &SandboxClaim) -> Vec<String> {
    let waiting = || waiting_term(&claim.namespace().unwrap_or_default(), &claim.spec.warm_pool_ref.name);
    is_unbound(claim).then(waiting).into_iter().collect()
}

fn pool_terms(pool: &SandboxWarmPool) -> Vec<String> {
    vec![template_term(&pool.namespace().unwrap_or_default(), &pool.spec.sandbox_template_ref.name)]
}

fn pod_terms(pod: &Pod) -> Vec<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let hash = pod.labels().get(label::SANDBOX_NAME_HASH);
    hash.map(|hash| name_hash_term(&namespace, hash)).into_iter().collect()
}

fn drop_noise(object: &mut impl Resource) {
    object.meta_mut().managed_fields = None;
}

/// Of a Pod's spec only the node is of interest.
fn trim_pod(pod: &mut Pod) {
    drop_noise(pod);
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(PodSpec { node_name: spec.node_name, ..PodSpec::default() });
    }
}
