//! `SandboxWarmPool`: started Sandboxes that wait for claims.

mod apply;
mod member;
mod name;
mod plan;

use std::collections::HashMap;
use std::sync::Arc;

use hutch_api::{Sandbox, SandboxTemplate, SandboxWarmPool, name_hash, pod_name};
use jiff::SignedDuration;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use tokio::time::Instant;

use crate::condition;
use crate::context::{Context, pool_hash_term};
use crate::key::Key;
use crate::view::PodView;

pub(crate) use apply::reconcile;

/// State on which a decision about one pool rests.
#[derive(Debug, Clone)]
struct Observed {
    pool: Arc<SandboxWarmPool>,
    template: Option<Arc<SandboxTemplate>>,
    /// Sandboxes of the namespace with the label of the pool's name, of any owner.
    labelled: Vec<Arc<Sandbox>>,
    /// Undecodable Sandboxes of the pool.
    undecodable: Vec<PartialObjectMeta<Sandbox>>,
    /// Pods of the Sandboxes that are not Ready, by the Sandbox's name.
    pods: HashMap<String, Arc<PodView>>,
    /// Ages of the Sandboxes that this process created and that are not Ready, by name.
    ages: HashMap<String, SignedDuration>,
}

impl Observed {
    fn observe(ctx: &Context, pool: Arc<SandboxWarmPool>) -> Self {
        let key = Key::of(pool.as_ref());
        let template = ctx.templates.get(&key.beside(&pool.spec.sandbox_template_ref.name));
        let labelled = ctx.sandboxes.find(&pool_hash_term(&key.namespace, &name_hash(&pool.name_any())));
        let waits = |sandbox: &&Arc<Sandbox>| {
            let conditions = sandbox.status.as_ref().and_then(|status| status.conditions.as_ref());
            !condition::is_ready(conditions)
        };
        let pod_of = |sandbox: &Arc<Sandbox>| {
            let pod = ctx.pods.get(&key.beside(pod_name(sandbox.as_ref())))?;
            Some((sandbox.name_any(), pod))
        };
        let waiting: Vec<_> = labelled.iter().filter(waits).collect();
        let pods = waiting.iter().copied().filter_map(pod_of).collect();
        let names = waiting.iter().map(|sandbox| sandbox.name_any()).collect();
        let ages = ctx.with_memory(&key, |memory| memory.ages(&names, Instant::now()));
        let undecodable = ctx.sandboxes.undecodable_of(pool.as_ref());
        Observed { pool, template, labelled, undecodable, pods, ages }
    }
}

/// Builds a pooled Sandbox for the tests of other modules.
#[cfg(test)]
pub(crate) fn new_member(pool: &SandboxWarmPool, template: &SandboxTemplate, name: &str) -> Sandbox {
    let hashes = crate::blueprint::Hashes::of(template);
    member::named(&member::desired(pool, template, &hashes), name)
}

#[cfg(test)]
mod tests;
