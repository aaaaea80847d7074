//! State that all reconcilers share: caches, configuration, write scheduler, event recorder.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hutch_api::pod_snapshot::{PodSnapshot, PodSnapshotManualTrigger, is_of_trigger};
use hutch_api::state::{SandboxFork, SandboxSnapshot};
use hutch_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotation, label};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Client, Resource, ResourceExt};

use crate::binding::is_unbound;
use crate::collection::Collection;
use crate::config::Config;
use crate::gateway::Bundles;
use crate::key::Key;
use crate::memory::Memory;
use crate::owner;
use crate::pending::Pending;
use crate::record::{Note, Recorder};
use crate::scheduler::{Scheduler, Write};
use crate::span::Spans;
use crate::view::{PodView, SharedSpecs};

pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) sandboxes: Arc<Collection<Sandbox>>,
    pub(crate) claims: Arc<Collection<SandboxClaim>>,
    pub(crate) pools: Arc<Collection<SandboxWarmPool>>,
    pub(crate) templates: Arc<Collection<SandboxTemplate>>,
    pub(crate) pods: Arc<Collection<PodView>>,
    pub(crate) services: Arc<Collection<Service>>,
    pub(crate) volumes: Arc<Collection<PersistentVolumeClaim>>,
    pub(crate) policies: Arc<Collection<NetworkPolicy>>,
    /// Snapshots, forks and what clients of GKE's API see of them, if this server makes them.
    pub(crate) snapshots: Arc<Collection<SandboxSnapshot>>,
    pub(crate) forks: Arc<Collection<SandboxFork>>,
    pub(crate) triggers: Arc<Collection<PodSnapshotManualTrigger>>,
    pub(crate) pod_snapshots: Arc<Collection<PodSnapshot>>,
    pub(crate) bundles: Bundles,
    pub(crate) spans: Arc<Spans>,
    recorder: Recorder,
    /// Decides when writes are sent.
    pub(crate) scheduler: Scheduler,
    /// Sandboxes that a claim is about to adopt. The API server decides; this only keeps two claims of this process from
    /// requesting the same one.
    taking: Mutex<HashSet<Key>>,
    /// State of each pool between reconciles.
    pools_memory: Mutex<HashMap<Key, Memory>>,
    /// Times of each claim, with its uid.
    claim_times: Mutex<HashMap<Key, (String, Times)>>,
    /// Requests for the Sandboxes of claims that must be repeated.
    pub(crate) pending: Pending,
}

/// Times of a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Time at which this process saw it first.
    pub(crate) seen: Timestamp,
    /// Time at which this process made it Ready.
    pub(crate) ready: Option<Timestamp>,
}

impl Context {
    pub(crate) fn new(client: &Client, config: Config, recorder: Recorder) -> Self {
        let client = || client.clone();
        let mut pods = Collection::new(client(), pod_terms, trim_pod);
        let mut services = Collection::new(client(), |_| Vec::new(), trim_service);
        if config.watch_labelled_only {
            pods = pods.labeled(label::SANDBOX_NAME_HASH);
            services = services.labeled(label::SANDBOX_NAME_HASH);
        }
        let specs = SharedSpecs::default();
        let trim_sandbox = move |sandbox: &mut Sandbox| {
            drop_noise(sandbox);
            specs.share(&mut sandbox.spec.pod_template.spec);
        };
        Context {
            spans: Arc::new(Spans::new(config.tracer.clone())),
            scheduler: Scheduler::new(&config),
            config,
            sandboxes: Arc::new(Collection::new(client(), sandbox_terms, trim_sandbox)),
            claims: Arc::new(Collection::new(client(), claim_terms, drop_noise)),
            pools: Arc::new(Collection::new(client(), pool_terms, drop_noise)),
            templates: Arc::new(Collection::new(client(), |_| Vec::new(), drop_noise)),
            pods: Arc::new(pods),
            services: Arc::new(services),
            volumes: Arc::new(Collection::new(client(), |_| Vec::new(), trim_volume)),
            policies: Arc::new(Collection::new(client(), |_| Vec::new(), trim_policy)),
            snapshots: Arc::new(Collection::new(client(), snapshot_terms, drop_noise)),
            forks: Arc::new(Collection::new(client(), fork_terms, drop_noise)),
            triggers: Arc::new(Collection::new(client(), trigger_terms, drop_noise)),
            pod_snapshots: Arc::new(Collection::new(client(), |_| Vec::new(), drop_noise)),
            bundles: Bundles::new(client()),
            recorder,
            taking: Mutex::default(),
            pools_memory: Mutex::default(),
            claim_times: Mutex::default(),
            pending: Pending::default(),
        }
    }

    pub(crate) fn record<K: Resource<DynamicType = ()>>(&self, object: &K, note: Note) {
        let ambient = &self.config.ambient;
        self.recorder.record(object, note, ambient.now(), ambient.number());
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn taking(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time of day.
    pub(crate) fn now(&self) -> Timestamp {
        self.config.ambient.now()
    }

    /// Reads and changes the state of a pool.
    pub(crate) fn with_memory<T>(&self, pool: &Key, change: impl FnOnce(&mut Memory) -> T) -> T {
        let mut known = self.pools_memory.lock().unwrap_or_else(PoisonError::into_inner);
        change(known.entry(pool.clone()).or_default())
    }

    pub(crate) fn forget_pool(&self, pool: &Key) {
        self.pools_memory.lock().unwrap_or_else(PoisonError::into_inner).remove(pool);
        self.scheduler.forget_pool(pool);
    }

    /// Returns the times of the claim. A claim without any is first observed now.
    pub(crate) fn times(&self, claim: &SandboxClaim, now: Timestamp) -> Times {
        self.with_times(claim, now, |times| *times)
    }

    /// Records that this process has made the claim Ready.
    pub(crate) fn became_ready(&self, claim: &SandboxClaim, now: Timestamp) {
        self.with_times(claim, now, |times| times.ready = Some(now));
    }

    fn with_times<T>(&self, claim: &SandboxClaim, now: Timestamp, look: impl FnOnce(&mut Times) -> T) -> T {
        let uid = claim.uid().unwrap_or_default();
        let mut known = self.claim_times.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = Times { seen: now, ready: None };
        let (of, times) = known.entry(Key::of(claim)).or_insert_with(|| (uid.clone(), fresh));
        if *of != uid {
            (*of, *times) = (uid, fresh);
        }
        look(times)
    }

    pub(crate) fn forget_claim(&self, claim: &Key) {
        self.claim_times.lock().unwrap_or_else(PoisonError::into_inner).remove(claim);
        self.scheduler.clear(Write::ClaimAnnotations, claim);
        self.pending.forget(claim);
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

/// Index term: claims with metadata for their Pods, by pool. They need the pool and its template as long as they exist.
pub(crate) fn metadata_term(namespace: &str, pool: &str) -> String {
    format!("metadata:{namespace}/{pool}")
}

/// Index term: pools, by template.
pub(crate) fn template_term(namespace: &str, template: &str) -> String {
    format!("template:{namespace}/{template}")
}

/// Index term: forks of a snapshot.
pub(crate) fn snapshot_term(namespace: &str, snapshot: &str) -> String {
    format!("snapshot:{namespace}/{snapshot}")
}

/// Index term: triggers, by their uid, which is the name of their snapshot.
pub(crate) fn trigger_term(namespace: &str, uid: &str) -> String {
    format!("uid:{namespace}/{uid}")
}

/// Index term: snapshots that triggers have made of the Sandbox of this uid.
pub(crate) fn origin_term(sandbox_uid: &str) -> String {
    format!("origin:{sandbox_uid}")
}

fn trigger_terms(trigger: &PodSnapshotManualTrigger) -> Vec<String> {
    let namespace = trigger.namespace().unwrap_or_default();
    trigger.uid().map(|uid| trigger_term(&namespace, &uid)).into_iter().collect()
}

fn snapshot_terms(snapshot: &SandboxSnapshot) -> Vec<String> {
    let source = snapshot.spec.source.uid.as_deref().filter(|_| is_of_trigger(snapshot));
    source.map(origin_term).into_iter().collect()
}

fn fork_terms(fork: &SandboxFork) -> Vec<String> {
    let namespace = fork.namespace().unwrap_or_default();
    fork.spec.source.snapshot.iter().map(|snapshot| snapshot_term(&namespace, snapshot)).collect()
}

fn sandbox_terms(sandbox: &Sandbox) -> Vec<String> {
    let namespace = sandbox.namespace().unwrap_or_default();
    let pool = sandbox.labels().get(label::WARM_POOL_SANDBOX).map(|hash| pool_hash_term(&namespace, hash));
    let owner = owner::controller(sandbox).map(|owner| owner_term(&owner.uid));
    pool.into_iter().chain(owner).collect()
}

fn claim_terms(claim: &SandboxClaim) -> Vec<String> {
    let (namespace, pool) = (claim.namespace().unwrap_or_default(), &claim.spec.warm_pool_ref.name);
    let waiting = is_unbound(claim).then(|| waiting_term(&namespace, pool));
    let metadata = claim.spec.additional_pod_metadata.is_some();
    waiting.into_iter().chain(metadata.then(|| metadata_term(&namespace, pool))).collect()
}

fn pool_terms(pool: &SandboxWarmPool) -> Vec<String> {
    vec![template_term(&pool.namespace().unwrap_or_default(), &pool.spec.sandbox_template_ref.name)]
}

fn pod_terms(pod: &PodView) -> Vec<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let hash = pod.labels().get(label::SANDBOX_NAME_HASH);
    hash.map(|hash| name_hash_term(&namespace, hash)).into_iter().collect()
}

/// Annotations with copies of an object for other programs: never read here, and never written.
const COPIES: [&str; 5] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    annotation::SANDBOX_STATE,
    annotation::CLAIM_STATE,
    annotation::TEMPLATE_STATE,
    annotation::POOL_STATE,
];

fn drop_noise(object: &mut impl Resource) {
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    // They were decoded with capacity for four.
    metadata.owner_references.iter_mut().for_each(Vec::shrink_to_fit);
    metadata.finalizers.iter_mut().for_each(Vec::shrink_to_fit);
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| !COPIES.contains(&key.as_str()));
    }
}

fn trim_pod(pod: &mut PodView) {
    drop_noise(pod);
    pod.trim();
}

fn trim_service(service: &mut Service) {
    drop_noise(service);
    service.status = None;
}

/// Keeps only the metadata of a volume claim.
fn trim_volume(claim: &mut PersistentVolumeClaim) {
    drop_noise(claim);
    claim.spec = None;
    claim.status = None;
}

fn trim_policy(policy: &mut NetworkPolicy) {
    drop_noise(policy);
    let is_ours = |owner: &OwnerReference| owner::is_of_extensions(owner) || owner.kind == Sandbox::kind(&());
    if !owner::controller(policy).is_some_and(is_ours) {
        policy.spec = None;
    }
}

#[cfg(test)]
mod tests;
