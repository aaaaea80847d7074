//! Maps changes to the objects that they requeue.

use std::sync::Arc;

use hutch_api::condition::{FINISHED, READY};
use hutch_api::pod_snapshot::PodSnapshotManualTrigger;
use hutch_api::{SHADOW_POOL_PREFIX, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, label};
use hutch_reconcile::queue::{self, Backoff};
use kube::{Resource, ResourceExt};

use crate::cache::Change;
use crate::claim::is_in_force;
use crate::collection::{Collection, Object};
use crate::condition;
use crate::config::Config;
use crate::context::{
    Context, metadata_term, origin_term, snapshot_term, template_term, trigger_term, waiting_term,
};
use crate::key::Key;
use crate::metrics::QueueMetrics;
use crate::owner;
use crate::view::PodView;

/// Work queue of one kind.
pub(crate) type Queue = queue::Queue<Key, QueueMetrics>;

/// Concurrent reconciles of forks.
const FORK_WORKERS: usize = 2;
/// Concurrent reconciles of triggers. One, so that two snapshots of a Sandbox do not begin at once.
const TRIGGER_WORKERS: usize = 1;
/// Concurrent reconciles of PodSnapshots.
const POD_SNAPSHOT_WORKERS: usize = 2;

/// Work queue of each kind.
pub(crate) struct Queues {
    pub(crate) sandboxes: Arc<Queue>,
    pub(crate) claims: Arc<Queue>,
    pub(crate) pools: Arc<Queue>,
    pub(crate) templates: Arc<Queue>,
    /// Only where this server makes snapshots.
    pub(crate) forks: Option<Arc<Queue>>,
    /// The same.
    pub(crate) pod_snapshots: Option<PodSnapshotQueues>,
}

/// Work queues of GKE's API of Pod snapshots.
#[derive(Clone)]
pub(crate) struct PodSnapshotQueues {
    pub(crate) triggers: Arc<Queue>,
    pub(crate) views: Arc<Queue>,
}

impl Queues {
    pub(crate) fn new(config: &Config) -> Self {
        // Dashboards use the kinds' names in lower case.
        let backoff = Backoff { longest: config.longest_backoff, ..Backoff::default() };
        let queue = |name, workers| Queue::new(workers, backoff, config.metrics.queue(name, workers));
        Queues {
            sandboxes: queue("sandbox", config.sandbox_workers),
            claims: queue("sandboxclaim", config.claim_workers),
            pools: queue("sandboxwarmpool", config.pool_workers),
            templates: queue("sandboxtemplate", config.template_workers),
            forks: config.snapshots.then(|| queue("sandboxfork", FORK_WORKERS)),
            pod_snapshots: config.snapshots.then(|| PodSnapshotQueues {
                triggers: queue("podsnapshotmanualtrigger", TRIGGER_WORKERS),
                views: queue("podsnapshot", POD_SNAPSHOT_WORKERS),
            }),
        }
    }

    pub(crate) fn measure(&self) {
        let always = [&self.sandboxes, &self.claims, &self.pools, &self.templates].into_iter();
        let of_gke = self.pod_snapshots.iter().flat_map(|queues| [&queues.triggers, &queues.views]);
        for queue in always.chain(&self.forks).chain(of_gke) {
            queue.measure();
        }
    }
}

/// Connects the caches to the queues.
pub(crate) fn connect(ctx: &Context, queues: &Queues) {
    listen_to_sandboxes(ctx, queues);
    let (queue, spans) = (queues.claims.clone(), ctx.spans.clone());
    ctx.claims.listen(move |change| {
        spans.forget_gone(change);
        queue.add(Key::of(change.latest().as_ref()));
    });
    listen_to_pools(ctx, queues);
    listen_to_templates(ctx, queues);
    listen_to_snapshots(ctx, queues);
    listen_to_pod_snapshots(ctx, queues);
    let (queue, claims, sandboxes) = (queues.sandboxes.clone(), queues.claims.clone(), ctx.sandboxes.clone());
    ctx.pods.listen(move |change| {
        wake_sandbox(&queue, &sandboxes, change);
        wake_claim(&claims, &sandboxes, change);
    });
    let (queue, sandboxes) = (queues.sandboxes.clone(), ctx.sandboxes.clone());
    ctx.services.listen(move |change| wake_sandbox(&queue, &sandboxes, change));
    let (queue, own, sandboxes) = (queues.templates.clone(), queues.sandboxes.clone(), ctx.sandboxes.clone());
    ctx.policies.listen(move |change| {
        wake_sandbox(&own, &sandboxes, change);
        for policy in [&change.old, &change.new].into_iter().flatten() {
            if let Some(template) = owner::extension(policy.as_ref(), "SandboxTemplate") {
                queue.add(Key::of(policy.as_ref()).beside(&template.name));
            }
        }
    });
}

fn listen_to_snapshots(ctx: &Context, queues: &Queues) {
    let Some(queue) = &queues.forks else { return };
    let (own, forks, known) = (queue.clone(), queue.clone(), ctx.forks.clone());
    let (suspended, sandboxes) = (queues.sandboxes.clone(), ctx.sandboxes.clone());
    let (of_gke, triggers) = (queues.pod_snapshots.clone(), ctx.triggers.clone());
    ctx.forks.listen(move |change| own.add(Key::of(change.latest().as_ref())));
    ctx.snapshots.listen(move |change| {
        wake_sandbox(&suspended, &sandboxes, change);
        let key = Key::of(change.latest().as_ref());
        for fork in known.find(&snapshot_term(&key.namespace, &key.name)) {
            forks.add(Key::of(fork.as_ref()));
        }
        // That of a fork of a Sandbox has the name of the fork.
        forks.add(key.clone());
        if let Some(of_gke) = &of_gke {
            wake_pod_snapshot(of_gke, &triggers, key);
        }
    });
}

fn listen_to_pod_snapshots(ctx: &Context, queues: &Queues) {
    let Some(queues) = &queues.pod_snapshots else { return };
    let own = queues.triggers.clone();
    ctx.triggers.listen(move |change| own.add(Key::of(change.latest().as_ref())));
    let (queues, triggers) = (queues.clone(), ctx.triggers.clone());
    ctx.pod_snapshots
        .listen(move |change| wake_pod_snapshot(&queues, &triggers, Key::of(change.latest().as_ref())));
}

/// Requeues the PodSnapshot of this name, and the trigger of the snapshot.
fn wake_pod_snapshot(queues: &PodSnapshotQueues, triggers: &Collection<PodSnapshotManualTrigger>, key: Key) {
    for trigger in triggers.find(&trigger_term(&key.namespace, &key.name)) {
        queues.triggers.add(Key::of(trigger.as_ref()));
    }
    queues.views.add(key);
}

fn listen_to_sandboxes(ctx: &Context, queues: &Queues) {
    let pools = queues.pools.clone();
    ctx.sandboxes.listen_to_undecodable(move |sandbox| {
        if let Some(pool) = owner::extension(sandbox, "SandboxWarmPool") {
            pools.add(Key::of(sandbox).beside(&pool.name));
        }
    });
    let claims_by_pool = ctx.claims.clone();
    let (sandboxes, claims, pools) = (queues.sandboxes.clone(), queues.claims.clone(), queues.pools.clone());
    let (spans, forks) = (ctx.spans.clone(), queues.forks.clone());
    let (of_gke, snapshots) = (queues.pod_snapshots.clone(), ctx.snapshots.clone());
    ctx.sandboxes.listen(move |change| {
        spans.forget_gone(change);
        let key = Key::of(change.latest().as_ref());
        sandboxes.add(key.clone());
        if let Some(forks) = &forks
            && let Some(fork) = change.latest().labels().get(label::FORK)
        {
            forks.add(key.beside(fork));
        }
        if let (Some(of_gke), Some(old)) = (&of_gke, &change.old)
            && change.new.as_ref().is_none_or(|new| new.uid() != old.uid())
        {
            // Their label was that of this Sandbox.
            for snapshot in snapshots.find(&origin_term(&old.uid().unwrap_or_default())) {
                of_gke.views.add(Key::of(snapshot.as_ref()));
            }
        }
        for sandbox in [&change.old, &change.new].into_iter().flatten() {
            if let Some(pool) = owner::extension(sandbox.as_ref(), "SandboxWarmPool") {
                pools.add(key.beside(&pool.name));
            }
            if let Some(claim) = owner::extension(sandbox.as_ref(), "SandboxClaim")
                && matters_to_claim(change)
            {
                claims.add(key.beside(&claim.name));
            }
            // An orphan with a pool's label is adopted at that pool's next reconcile, and requeues none.
        }
        if let Some(pool) = offered_by(change) {
            wake_all(&claims, &claims_by_pool.find(&waiting_term(&key.namespace, &pool)));
        }
    });
}

/// Returns whether the change can affect the claim.
fn matters_to_claim(change: &Change<Sandbox>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return true };
    let view = |sandbox: &Sandbox| {
        let status = sandbox.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let found = |kind| condition::find(&conditions, kind).cloned();
        let owner = owner::controller(sandbox).map(|owner| owner.uid.clone());
        (sandbox.metadata.deletion_timestamp.clone(), status.pod_ips, found(READY), found(FINISHED), owner)
    };
    view(old) != view(new)
}

/// Returns the pool of a Sandbox that has just become usable for waiting claims.
fn offered_by(change: &Change<Sandbox>) -> Option<String> {
    let value = |sandbox: &Sandbox| {
        let status = sandbox.status.as_ref();
        let ready = condition::is_ready(status.and_then(|status| status.conditions.as_ref()));
        let addresses = status.and_then(|status| status.pod_ips.as_ref()).is_some_and(|ips| !ips.is_empty());
        u8::from(addresses) + u8::from(ready)
    };
    let new = change.new.as_ref().filter(|new| new.labels().contains_key(label::WARM_POOL_SANDBOX))?;
    let pool = owner::extension(new.as_ref(), "SandboxWarmPool")?;
    let before = change.old.as_ref().map_or(0, |old| value(old));
    (value(new) > before).then(|| pool.name.clone())
}

fn listen_to_pools(ctx: &Context, queues: &Queues) {
    let waiting = ctx.claims.clone();
    let (pools, claims) = (queues.pools.clone(), queues.claims.clone());
    ctx.pools.listen(move |change| {
        let key = Key::of(change.latest().as_ref());
        let generation =
            |pool: &Option<Arc<_>>| pool.as_ref().map(|pool: &Arc<SandboxWarmPool>| pool.metadata.generation);
        if generation(&change.old) != generation(&change.new) {
            wake_all(&claims, &waiting.find(&waiting_term(&key.namespace, &key.name)));
            wake_all(&claims, &waiting.find(&metadata_term(&key.namespace, &key.name)));
        }
        // Claimed Sandboxes follow their pool to another template at once.
        if change.new.is_some() && template_of(change.old.as_ref()) != template_of(change.new.as_ref()) {
            wake_all(&claims, &claims_of(&waiting, &key.namespace, std::slice::from_ref(&key.name)));
        }
        pools.add(key);
    });
}

fn template_of(pool: Option<&Arc<SandboxWarmPool>>) -> Option<&str> {
    pool.map(|pool| pool.spec.sandbox_template_ref.name.as_str())
}

fn listen_to_templates(ctx: &Context, queues: &Queues) {
    let (known_pools, waiting) = (ctx.pools.clone(), ctx.claims.clone());
    let (templates, pools, claims) = (queues.templates.clone(), queues.pools.clone(), queues.claims.clone());
    let (spans, retry) = (ctx.spans.clone(), ctx.config.retry_refused_claims);
    ctx.templates.listen(move |change| {
        spans.forget_gone(change);
        let key = Key::of(change.latest().as_ref());
        let users = known_pools.find(&template_term(&key.namespace, &key.name));
        if change.old.is_none() {
            let names = users.iter().map(|pool| pool.name_any());
            let names: Vec<String> = names.chain([format!("{SHADOW_POOL_PREFIX}{}", key.name)]).collect();
            wake_all(&claims, &claims_of(&waiting, &key.namespace, &names));
        }
        let generation = |it: &Option<Arc<SandboxTemplate>>| it.as_ref().map(|it| it.metadata.generation);
        if generation(&change.old) != generation(&change.new) {
            for name in users.iter().map(|pool| pool.name_any()) {
                if retry {
                    wake_all(&claims, &waiting.find(&waiting_term(&key.namespace, &name)));
                }
                wake_all(&claims, &waiting.find(&metadata_term(&key.namespace, &name)));
            }
        }
        for pool in users {
            pools.add(Key::of(pool.as_ref()));
        }
        templates.add(key);
    });
}

/// Requeues the claim whose variables have come into force in its Pod.
fn wake_claim(queue: &Arc<Queue>, sandboxes: &Collection<Sandbox>, change: &Change<PodView>) {
    let Some(pod) = change.new.as_ref().filter(|pod| is_in_force(pod)) else { return };
    if change.old.as_ref().is_some_and(|old| is_in_force(old)) {
        return;
    }
    let key = Key::of(pod.as_ref());
    let sandbox = owner::controller(pod.as_ref()).and_then(|owner| sandboxes.get(&key.beside(&owner.name)));
    let Some(sandbox) = sandbox else { return };
    if let Some(claim) = owner::extension(sandbox.as_ref(), "SandboxClaim") {
        queue.add(key.beside(&claim.name));
    }
}

/// Returns all claims that name one of these pools. Reads every claim, so it is for rare events.
fn claims_of(claims: &Collection<SandboxClaim>, namespace: &str, pools: &[String]) -> Vec<Arc<SandboxClaim>> {
    let mut all = claims.all();
    all.retain(|claim| {
        pools.contains(&claim.spec.warm_pool_ref.name)
            && claim.metadata.namespace.as_deref() == Some(namespace)
    });
    all
}

fn wake_all(queue: &Arc<Queue>, claims: &[Arc<SandboxClaim>]) {
    for claim in claims {
        queue.add(Key::of(claim.as_ref()));
    }
}

/// Requeues the Sandbox that controls the object, or the one of the same name that may adopt it.
fn wake_sandbox<K: Object>(queue: &Arc<Queue>, sandboxes: &Collection<Sandbox>, change: &Change<K>) {
    for object in [&change.old, &change.new].into_iter().flatten() {
        let key = Key::of(object.as_ref());
        match owner::controller(object.as_ref()) {
            Some(owner) if owner.kind == Sandbox::kind(&()) => queue.add(key.beside(&owner.name)),
            Some(_) => {}
            None if sandboxes.get(&key).is_some() => queue.add(key),
            None => {}
        }
    }
}
