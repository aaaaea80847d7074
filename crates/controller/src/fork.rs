//! `SandboxFork`: Sandboxes that start from the state of one. For `hutch up`, which alone makes snapshots.

mod plan;

use std::sync::Arc;

use futures::future::join_all;
use hutch_api::Sandbox;
use hutch_api::state::{SandboxFork, SandboxForkStatus, SandboxSnapshot};
use kube::ResourceExt;
use serde_json::json;

use crate::condition;
use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::outcome::Outcome;

use plan::{Action, is_over, plan, snapshot_name, source_name};

/// State on which a decision about one fork rests.
#[derive(Debug, Clone)]
struct Observed {
    fork: Arc<SandboxFork>,
    snapshot: Option<Arc<SandboxSnapshot>>,
    /// Sandbox of which the forks are.
    source: Option<Arc<Sandbox>>,
    /// Sandboxes with the names of the forks, in their order.
    children: Vec<Option<Arc<Sandbox>>>,
}

impl Observed {
    /// Reads the caches; and from the server what they do not have, because they may be behind.
    async fn observe(ctx: &Context, fork: Arc<SandboxFork>) -> Result<Observed, Error> {
        let key = Key::of(fork.as_ref());
        let snapshot = ctx.snapshots.fetch(&key.beside(&snapshot_name(&fork))).await?;
        let source = match source_name(&fork, snapshot.as_deref()) {
            None => None,
            // Refusals are final, and the copies get its annotations: what was written to it before the fork must count.
            Some(name) => ctx.sandboxes.read(&key.beside(&name)).await?,
        };
        let names = fork.child_names();
        let mut children = vec![None; names.len()];
        // Before that, none is created.
        if snapshot.as_deref().is_some_and(is_complete) {
            for (child, name) in children.iter_mut().zip(names) {
                *child = ctx.sandboxes.fetch(&key.beside(&name)).await?;
            }
        }
        Ok(Observed { fork, snapshot, source, children })
    }
}

fn is_complete(snapshot: &SandboxSnapshot) -> bool {
    condition::is_ready(snapshot.status.as_ref().and_then(|status| status.conditions.as_ref()))
}

pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let Some(fork) = ctx.forks.get(key) else { return Outcome::Settled };
    if fork.metadata.deletion_timestamp.is_some() || is_over(&fork) {
        return Outcome::Settled;
    }
    match step(ctx, key, fork).await {
        Ok(()) => Outcome::Settled,
        Err(error) => {
            tracing::warn!(fork = %key, %error, "a step of a fork failed");
            Outcome::Failed
        }
    }
}

/// Takes the next step and writes the status. The change of what it creates requeues the fork.
async fn step(ctx: &Context, key: &Key, fork: Arc<SandboxFork>) -> Result<(), Error> {
    let observed = Observed::observe(ctx, fork).await?;
    let planned = plan(&observed, ctx.now());
    let (mut status, acted) = (planned.status, act(ctx, key, planned.action).await);
    if let Err(error) = &acted {
        plan::explain(&mut status, &error.for_condition());
    }
    write_status(ctx, key, &observed.fork, &status).await?;
    acted
}

async fn act(ctx: &Context, key: &Key, action: Action) -> Result<(), Error> {
    match action {
        Action::Nothing => Ok(()),
        Action::Snapshot(snapshot) => {
            let created = ctx.snapshots.create(&key.namespace, snapshot).await.map(drop);
            if created.as_ref().is_err_and(Error::is_already_exists) {
                ctx.snapshots.refresh(key).await?;
            }
            created
        }
        Action::Children(children) => {
            let create = |child: Sandbox| async {
                let key = key.beside(&child.name_any());
                let created = ctx.sandboxes.create(&key.namespace, Box::new(child)).await.map(drop);
                if created.as_ref().is_err_and(Error::is_already_exists) {
                    // The next reconcile sees whose it is.
                    ctx.sandboxes.refresh(&key).await?;
                }
                created
            };
            let results = join_all(children.into_iter().map(create)).await;
            Error::joined(results.into_iter().filter_map(Result::err).collect())
        }
    }
}

async fn write_status(
    ctx: &Context,
    key: &Key,
    fork: &SandboxFork,
    status: &SandboxForkStatus,
) -> Result<(), Error> {
    if fork.status.as_ref() == Some(status) {
        return Ok(());
    }
    let uid = fork.uid();
    let patch = json!({"metadata": {"uid": uid}, "status": status});
    Error::unless_gone(ctx.forks.patch_status(key, patch).await).map(drop)
}

#[cfg(test)]
mod tests;
