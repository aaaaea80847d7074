//! Looks at one pool and does what is planned.

use futures::future::join_all;
use hutch_api::Sandbox;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::Seen;
use super::plan::{Plan, plan};
use crate::error::Error;
use crate::key::Key;
use crate::queue::Outcome;
use crate::record::Note;
use crate::world::World;

pub(crate) async fn reconcile(world: &World, key: &Key) -> Outcome {
    let Some(pool) = world.pools.get(key) else {
        world.stuck_pools().remove(key);
        return Outcome::Settled;
    };
    if pool.metadata.deletion_timestamp.is_some() {
        return Outcome::Settled;
    }
    let seen = Seen::observe(world, pool);
    let plan = plan(&seen, &world.config, Timestamp::now());
    note_progress(world, key, &seen, &plan);
    if let Err(error) = apply(world, key, &plan).await {
        tracing::warn!(pool = %key, %error, "a step of a pool failed");
        return Outcome::Failed;
    }
    match write_status(world, key).await {
        Ok(()) => plan.again.map_or(Outcome::Settled, Outcome::Again),
        Err(error) => {
            tracing::warn!(pool = %key, %error, "status of a pool could not be written");
            Outcome::Failed
        }
    }
}

async fn apply(world: &World, key: &Key, plan: &Plan) -> Result<(), Error> {
    let mut errors = Vec::new();
    for (name, patch) in &plan.patch {
        match world.sandboxes.patch(&key.beside(name), patch).await {
            Err(error) if !error.is_conflict() && !error.is_not_found() => errors.push(error),
            _ => {}
        }
    }
    let deletes = waves(plan.delete.len(), |at| {
        let name = plan.delete[at].clone();
        async move { delete(world, &key.beside(&name)).await }
    });
    errors.extend(deletes.await.err());
    if let Some(new) = &plan.new {
        let creates = waves(plan.create, |_| async { create(world, key, new).await });
        errors.extend(creates.await.err());
    }
    Error::joined(errors)
}

async fn create(world: &World, key: &Key, new: &Sandbox) -> Result<(), Error> {
    world.sandboxes.create(&key.namespace, new).await.map(drop)
}

/// Deletes a member that still is one: a claim may have taken it since the plan was made.
async fn delete(world: &World, member: &Key) -> Result<(), Error> {
    if world.taking().contains(member) {
        return Ok(());
    }
    let Some(known) = world.sandboxes.get(member) else { return Ok(()) };
    let Some(version) = known.resource_version() else { return Ok(()) };
    match world.sandboxes.delete_version(member, version).await {
        // Changed meanwhile: the change itself brings the pool's next look.
        Err(error) if error.is_conflict() => Ok(()),
        result => result,
    }
}

/// 1, 2, 4, 8, ... at once, and no further after a wave in which something failed: a server in trouble gets
/// few requests.
async fn waves<F: Future<Output = Result<(), Error>>>(
    count: usize,
    step: impl Fn(usize) -> F,
) -> Result<(), Error> {
    let (mut done, mut size) = (0, 1);
    while done < count {
        let end = count.min(done + size);
        let failed: Vec<_> =
            join_all((done..end).map(&step)).await.into_iter().filter_map(Result::err).collect();
        Error::joined(failed)?;
        (done, size) = (end, size * 2);
    }
    Ok(())
}

/// Counts what is there after the writes.
async fn write_status(world: &World, key: &Key) -> Result<(), Error> {
    let Some(pool) = world.pools.get(key) else { return Ok(()) };
    let seen = Seen::observe(world, pool);
    let wanted = plan(&seen, &world.config, Timestamp::now()).status;
    if seen.pool.status.as_ref() == Some(&wanted) {
        return Ok(());
    }
    match world.pools.patch_status(key, &json!({ "status": wanted })).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn note_progress(world: &World, key: &Key, seen: &Seen, plan: &Plan) {
    let stuck = plan.unschedulable > 0;
    let changed = {
        let mut known = world.stuck_pools();
        if stuck { known.insert(key.clone()) } else { known.remove(key) }
    };
    if !changed {
        return;
    }
    let note = if stuck {
        let (wanted, grace) = (seen.pool.spec.replicas.unwrap_or(1), world.config.readiness_grace.as_secs());
        Note {
            warning: true,
            reason: "WarmPoolNotProgressing",
            action: "Reconciling",
            text: format!(
                "{}/{wanted} sandboxes are unschedulable past the {grace}s readiness grace period; holding them until a node has room",
                plan.unschedulable
            ),
        }
    } else {
        let text = "Warm pool is progressing again".to_owned();
        Note { warning: false, reason: "WarmPoolProgressing", action: "Reconciling", text }
    };
    world.record(seen.pool.as_ref(), note);
}
