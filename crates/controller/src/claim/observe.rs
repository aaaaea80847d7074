//! Reads from the caches what a decision about one claim needs.

use std::collections::HashSet;
use std::sync::Arc;

use hutch_api::{SHADOW_POOL_PREFIX, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use hutch_api::{UpdateStrategyType, annotation, late_env, name_hash, pod_name};
use kube::ResourceExt;

use super::late_env::reason;
use super::{adopt, record, variables};
use crate::binding::bound_name;
use crate::blueprint::{Hashes, is_fresh};
use crate::condition;
use crate::context::{Context, owner_term, pool_hash_term};
use crate::key::Key;
use crate::owner;
use crate::pending::Request;

/// State on which a decision about one claim rests, except for the candidates of its pool ([`candidates`]).
#[derive(Debug, Clone)]
pub(super) struct Observed {
    pub(super) claim: Arc<SandboxClaim>,
    pub(super) pool: Option<Arc<SandboxWarmPool>>,
    /// Name of the template, as far as it is known.
    pub(super) template_name: Option<String>,
    pub(super) template: Option<Arc<SandboxTemplate>>,
    /// Sandboxes that the claim controls.
    pub(super) owned: Vec<Arc<Sandbox>>,
    /// Sandbox that the claim's status names.
    pub(super) bound: Option<Arc<Sandbox>>,
    /// Sandbox that an assignment record on the claim names.
    pub(super) recorded: Option<Arc<Sandbox>>,
    /// Sandbox of the claim's own name.
    pub(super) namesake: Option<Arc<Sandbox>>,
    /// Request for a Sandbox whose outcome is unknown.
    pub(super) pending: Option<Request>,
    /// Set when the claim's Sandboxes were just read from the server.
    pub(super) refreshed: bool,
    /// Set when the nodes can give a running Pod the claim's variables.
    pub(super) late_env: bool,
    /// Set when snapshots are made here.
    pub(super) snapshots: bool,
}

/// Reads the state of the claim.
pub(super) fn observe(ctx: &Context, claim: Arc<SandboxClaim>) -> Observed {
    let key = Key::of(claim.as_ref());
    let pool_name = &claim.spec.warm_pool_ref.name;
    let pool = ctx.pools.get(&key.beside(pool_name));
    // A claim of the older version that names only a template refers to a pool that does not exist.
    let shadowed = || pool_name.strip_prefix(SHADOW_POOL_PREFIX).map(str::to_owned);
    let template_name =
        pool.as_ref().map(|pool| pool.spec.sandbox_template_ref.name.clone()).or_else(shadowed);
    let named = |name: &str| ctx.sandboxes.get(&key.beside(name));
    Observed {
        template: template_name.as_ref().and_then(|name| ctx.templates.get(&key.beside(name))),
        owned: claim.uid().map(|uid| ctx.sandboxes.find(&owner_term(&uid))).unwrap_or_default(),
        bound: bound_name(&claim).and_then(named),
        recorded: record(&claim).and_then(named),
        namesake: ctx.sandboxes.get(&key),
        pending: ctx.pending.of(&claim),
        refreshed: false,
        late_env: ctx.config.late_env,
        snapshots: ctx.config.snapshots,
        pool,
        template_name,
        claim,
    }
}

/// Returns the pooled Sandboxes that the claim may adopt, without those that other claims of this process are `taking`.
pub(super) fn candidates(ctx: &Context, observed: &Observed, taking: &HashSet<Key>) -> Vec<Arc<Sandbox>> {
    let Observed { claim, template, .. } = observed;
    let recreate =
        observed.pool.as_ref().is_some_and(|pool| pool.spec.strategy() == UpdateStrategyType::Recreate);
    // Variables are validated against the template, so the pooled Sandbox must be of its current version.
    let late = !variables(claim).is_empty();
    let fresh =
        (recreate || late).then(|| template.as_ref().map(|template| (template, Hashes::of(template))));
    let pool = name_hash(&claim.spec.warm_pool_ref.name);
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let mut sandboxes = ctx.sandboxes.find(&pool_hash_term(namespace, &pool));
    sandboxes.retain(|sandbox| {
        let current = match &fresh {
            None => true,
            Some(None) => false,
            Some(Some((template, hashes))) => is_fresh(sandbox, template, hashes, true),
        };
        current
            && adopt::is_candidate(sandbox, claim)
            && adopt::is_of_pool(sandbox, observed.pool.as_deref())
            && (!late || accepts_late_env(ctx, sandbox) || !adopt::has_address(sandbox))
            && !taking.contains(&Key::of(sandbox.as_ref()))
    });
    sandboxes
}

/// Returns the Sandbox of that key and uid if the cache has it as one of the claim's.
pub(super) fn owned(
    ctx: &Context,
    key: &Key,
    sandbox: &Sandbox,
    claim: &SandboxClaim,
) -> Option<Arc<Sandbox>> {
    let known = ctx.sandboxes.get(key).filter(|known| known.uid() == sandbox.uid());
    known.filter(|known| owner::is_controlled_by(known.as_ref(), claim))
}

/// Returns whether the Sandbox would be Ready for its claim if its Pod had the claim's variables already.
pub(super) fn lacks_late_env(ctx: &Context, sandbox: &Sandbox) -> bool {
    ctx.config.late_env
        && sandbox.annotations().contains_key(annotation::LATE_ENV)
        && condition::is_ready(sandbox.status.as_ref().and_then(|status| status.conditions.as_ref()))
        && !pod_reports(ctx, sandbox, late_env::IN_FORCE)
}

/// Returns whether the Sandbox's Pod reports that it can be given variables.
fn accepts_late_env(ctx: &Context, sandbox: &Sandbox) -> bool {
    pod_reports(ctx, sandbox, late_env::POSSIBLE)
}

fn pod_reports(ctx: &Context, sandbox: &Sandbox, state: &str) -> bool {
    let pod = ctx.pods.get(&Key::of(sandbox).beside(pod_name(sandbox)));
    pod.is_some_and(|pod| reason(&pod) == Some(state))
}
