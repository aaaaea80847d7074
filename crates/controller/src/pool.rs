//! `SandboxWarmPool`: as many started Sandboxes as it asks for, made before anyone wants them.

mod apply;
mod member;
mod plan;

use std::sync::Arc;

use hutch_api::{Sandbox, SandboxTemplate, SandboxWarmPool, name_hash};
use kube::ResourceExt;

use crate::key::Key;
use crate::world::{World, pool_hash_term};

pub(crate) use apply::reconcile;

/// All that a decision about one pool rests on.
#[derive(Debug, Clone)]
struct Seen {
    pool: Arc<SandboxWarmPool>,
    template: Option<Arc<SandboxTemplate>>,
    /// Sandboxes of the namespace with the label of the pool's name, whoever owns them.
    labelled: Vec<Arc<Sandbox>>,
}

impl Seen {
    fn observe(world: &World, pool: Arc<SandboxWarmPool>) -> Self {
        let key = Key::of(pool.as_ref());
        let template = world.templates.get(&key.beside(&pool.spec.sandbox_template_ref.name));
        let labelled = world.sandboxes.find(&pool_hash_term(&key.namespace, &name_hash(&pool.name_any())));
        Seen { pool, template, labelled }
    }
}

#[cfg(test)]
mod tests;
