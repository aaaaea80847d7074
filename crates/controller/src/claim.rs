//! `SandboxClaim`: somebody's wish for one Sandbox, met from a pool or, failing that, by a Sandbox made for it.
//!
//! Which Sandbox a claim has is written in one place, the Sandbox: its owner reference, and the label with the claim's
//! uid beside it, both set by one patch that the API server refuses when anybody else was faster. The claim's status
//! repeats it for clients. So a claim costs two writes before it is Ready, and no crash between them can give one Sandbox
//! to two claims, or two Sandboxes to one claim.

mod adopt;
mod annotate;
mod apply;
mod create;
mod env;
mod expiry;
#[cfg(test)]
mod faults;
mod find;
mod late;
mod measure;
mod metadata;
mod refusal;
mod retire;
mod status;
mod trace;
mod volumes;

use std::sync::Arc;

use hutch_api::{
    ClaimEnvVar, SHADOW_POOL_PREFIX, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotation,
};
use kube::ResourceExt;

use crate::key::Key;
use crate::world::{World, owner_term};

pub(crate) use apply::reconcile;
pub(crate) use late::is_in_force;

/// All that a decision about one claim rests on, but for the candidates of its pool.
#[derive(Debug, Clone)]
struct Seen {
    claim: Arc<SandboxClaim>,
    pool: Option<Arc<SandboxWarmPool>>,
    /// The template's name, as far as it is known.
    template_name: Option<String>,
    template: Option<Arc<SandboxTemplate>>,
    /// Sandboxes that the claim controls.
    owned: Vec<Arc<Sandbox>>,
    /// The Sandbox that an assignment record on the claim names.
    recorded: Option<Arc<Sandbox>>,
    /// The Sandbox of the claim's own name.
    namesake: Option<Arc<Sandbox>>,
    /// Whether the nodes can give a running Pod the claim's variables.
    late_env: bool,
}

impl Seen {
    fn observe(world: &World, claim: Arc<SandboxClaim>) -> Self {
        let key = Key::of(claim.as_ref());
        let pool_name = &claim.spec.warm_pool_ref.name;
        let pool = world.pools.get(&key.beside(pool_name));
        // A claim of the older version that names only a template asks for a pool that nobody has made.
        let shadowed = || pool_name.strip_prefix(SHADOW_POOL_PREFIX).map(str::to_owned);
        let template_name =
            pool.as_ref().map(|pool| pool.spec.sandbox_template_ref.name.clone()).or_else(shadowed);
        let template = template_name.as_ref().and_then(|name| world.templates.get(&key.beside(name)));
        let recorded = record(&claim).and_then(|name| world.sandboxes.get(&key.beside(name)));
        let owned = claim.uid().map(|uid| world.sandboxes.find(&owner_term(&uid))).unwrap_or_default();
        let namesake = world.sandboxes.get(&key);
        let late_env = world.config.late_env;
        Seen { pool, template_name, template, owned, recorded, namesake, late_env, claim }
    }
}

/// The variables that the claim wants.
fn variables(claim: &SandboxClaim) -> &[ClaimEnvVar] {
    claim.spec.env.as_deref().unwrap_or_default()
}

/// The assignment record of Agent Sandbox's own controller: an annotation, earlier a label of the same key.
fn record(claim: &SandboxClaim) -> Option<&str> {
    let key = annotation::SANDBOX_NAME;
    let name = claim.annotations().get(key).or_else(|| claim.labels().get(key))?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
