//! Carries out what is planned for a pool.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use hutch_api::Sandbox;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::Observed;
use super::member::named;
use super::name::member_name;
use super::plan::{Plan, plan};
use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::owner;
use crate::record::Note;
use crate::scheduler::Write;

/// Maximum jitter as a part of the wait, so that pools which were created together are reconciled at different times.
const JITTER: f64 = 0.5;
/// Time until the next reconcile after another client was faster with a Sandbox. Its change requeues the pool sooner,
/// unless it was seen already.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);

pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let Some(pool) = ctx.pools.get(key) else {
        ctx.forget_pool(key);
        return Outcome::Settled;
    };
    if pool.metadata.deletion_timestamp.is_some() {
        return Outcome::Settled;
    }
    if let Some(pause) = ctx.scheduler.delay(Write::PoolRefill, key) {
        return Outcome::Again(pause);
    }
    ctx.scheduler.clear(Write::PoolRefill, key);
    let observed = Observed::observe(ctx, pool);
    let mut plan = plan(&observed, &ctx.config, ctx.now());
    note_progress(ctx, key, &observed, &plan);
    ctx.with_memory(key, |memory| {
        memory.unanswered.retain(|name| ctx.sandboxes.get(&key.beside(name)).is_none());
    });
    let grant = ctx.scheduler.refill(key, plan.create, plan.members);
    plan.create = grant.create;
    let overtaken = match apply(ctx, key, &plan).await {
        Ok(overtaken) => overtaken.then_some(AFTER_CONFLICT),
        Err(error) => {
            tracing::warn!(pool = %key, %error, "an action of a pool failed");
            return Outcome::Failed;
        }
    };
    match write_status(ctx, key, &observed, &plan).await {
        Ok(()) => {
            let grace_left =
                plan.grace_left.map(|wait| wait.mul_f64(1.0 + JITTER * ctx.config.ambient.fraction()));
            let again = [plan.again, grace_left, grant.again, overtaken].into_iter().flatten().min();
            again.map_or(Outcome::Settled, Outcome::Again)
        }
        Err(error) => {
            tracing::warn!(pool = %key, %error, "failed to write the status of a pool");
            Outcome::Failed
        }
    }
}

/// Carries out the plan. Returns whether another client was faster with a Sandbox.
async fn apply(ctx: &Context, key: &Key, plan: &Plan) -> Result<bool, Error> {
    let mut errors = Vec::new();
    let overtaken = AtomicBool::new(false);
    for (name, patch) in &plan.patch {
        match ctx.sandboxes.patch(&key.beside(name), patch.clone()).await {
            Err(error) if error.is_conflict() => overtaken.store(true, Ordering::Relaxed),
            Err(error) if !error.is_not_found() => errors.push(error),
            _ => {}
        }
    }
    let deletes = waves(plan.delete.len(), |at| {
        let (name, overtaken) = (plan.delete[at].clone(), &overtaken);
        async move {
            match delete(ctx, &key.beside(&name)).await {
                Err(error) if error.is_conflict() => {
                    overtaken.store(true, Ordering::Relaxed);
                    Ok(())
                }
                result => result,
            }
        }
    });
    errors.extend(deletes.await.err());
    if let Some(new) = &plan.new {
        let names = ctx.with_memory(key, |memory| {
            let again = memory.unanswered.iter().cloned();
            let fresh = std::iter::repeat_with(|| member_name(&key.name, &ctx.config.ambient));
            again.chain(fresh).take(plan.create).collect::<Vec<_>>()
        });
        let creates = waves(names.len(), |at| create(ctx, key, new, &names[at]));
        errors.extend(creates.await.err());
    }
    Error::joined(errors).map(|()| overtaken.into_inner())
}

/// Creates a pooled Sandbox. One that already exists under that name is that of an earlier, unanswered request.
async fn create(ctx: &Context, key: &Key, new: &Sandbox, name: &str) -> Result<(), Error> {
    let member = key.beside(name);
    let again = ctx.with_memory(key, |memory| memory.request(name));
    let error = match ctx.sandboxes.create(&key.namespace, Box::new(named(new, name))).await {
        Ok(_) => {
            ctx.with_memory(key, |memory| {
                memory.created(name, Instant::now());
                memory.answered(name);
            });
            return Ok(());
        }
        Err(error) => error,
    };
    if error.is_already_exists() {
        // No other name replaces it before its owner is known.
        ctx.sandboxes.refresh(&member).await?;
    }
    // A refusal does not settle an earlier, unanswered request.
    if error.settles_earlier() || error.is_refusal() && !again {
        ctx.with_memory(key, |memory| memory.answered(name));
    }
    if error.is_already_exists() {
        let owner = new.owner_references().first().map(|owner| owner.uid.as_str());
        let there = ctx.sandboxes.get(&member);
        let there = there.as_ref().and_then(|sandbox| owner::controller(sandbox.as_ref()));
        if there.map(|owner| owner.uid.as_str()) == owner {
            return Ok(());
        }
    }
    Err(error)
}

/// Deletes a pooled Sandbox, unless a claim has adopted it since the plan was made.
async fn delete(ctx: &Context, member: &Key) -> Result<(), Error> {
    if ctx.taking().contains(member) {
        return Ok(());
    }
    let Some(known) = ctx.sandboxes.get(member) else { return Ok(()) };
    let Some(version) = known.resource_version() else { return Ok(()) };
    ctx.sandboxes.delete_version(member, version).await
}

/// Runs 1, 2, 4, 8, ... steps at once, and stops after a wave with a failure: a failing server gets few requests.
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

/// Counts the Sandboxes after the writes.
async fn write_status(ctx: &Context, key: &Key, observed: &Observed, done: &Plan) -> Result<(), Error> {
    let idle = done.create == 0 && done.delete.is_empty() && done.patch.is_empty();
    let (pool, wanted) = if idle {
        (observed.pool.clone(), done.status.clone())
    } else {
        let Some(pool) = ctx.pools.get(key) else { return Ok(()) };
        let observed = Observed::observe(ctx, pool);
        let plan = plan(&observed, &ctx.config, ctx.now());
        ctx.scheduler.refilled(key, plan.members);
        (observed.pool, plan.status)
    };
    if pool.status.as_ref() == Some(&wanted) {
        return Ok(());
    }
    // Absent fields are null, or the merge patch would keep them.
    let patch = json!({"status": {
        "replicas": wanted.replicas, "readyReplicas": wanted.ready_replicas,
        "selector": wanted.selector, "observedGeneration": wanted.observed_generation,
    }});
    match ctx.pools.patch_status(key, patch).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn note_progress(ctx: &Context, key: &Key, observed: &Observed, plan: &Plan) {
    let stuck = plan.unschedulable > 0;
    let changed = ctx.with_memory(key, |memory| std::mem::replace(&mut memory.stuck, stuck) != stuck);
    if !changed {
        return;
    }
    let note = if stuck {
        let (wanted, grace) = (observed.pool.spec.replicas.unwrap_or(1), spelt(ctx.config.readiness_grace));
        Note {
            warning: true,
            reason: "WarmPoolNotProgressing",
            action: "Reconciling",
            text: format!(
                "{}/{wanted} sandboxes are unschedulable past the {grace} readiness grace period; \
                 holding them instead of replacing (replacements would be equally unschedulable)",
                plan.unschedulable
            ),
        }
    } else {
        let text = "Warm pool is progressing again".to_owned();
        Note { warning: false, reason: "WarmPoolProgressing", action: "Reconciling", text }
    };
    ctx.record(observed.pool.as_ref(), note);
}

/// Formats a duration as Go does: `5m0s`, `1h0m30s`, `1.5s`.
fn spelt(time: Duration) -> String {
    let (seconds, fraction) = (time.as_secs(), f64::from(time.subsec_millis()) / 1000.0);
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, (seconds % 60) as f64 + fraction);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spelt_as_the_go_controller_does() {
        for (ms, text) in [(300_000, "5m0s"), (1_500, "1.5s"), (3_630_000, "1h0m30s"), (90_000, "1m30s")] {
            assert_eq!(spelt(Duration::from_millis(ms)), text);
        }
    }
}
