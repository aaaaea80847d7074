//! The end of a claim whose time is up.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::condition::reason;
use hutch_api::{ClaimShutdownPolicy, Sandbox};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PropagationPolicy;

use super::apply::{AFTER_CONFLICT, note, write};
use super::status::Outcome as End;
use super::{Seen, expiry};
use crate::binding::bound_name;
use crate::error::Error;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::owner;
use crate::world::World;

/// Pause before the second pass of an expiry.
pub(super) const NEXT_PASS: Duration = Duration::from_millis(1);

/// First it is told, then it is done.
pub(super) async fn expire(world: &World, key: &Key, seen: &Seen, now: Timestamp) -> Outcome {
    let claim = &seen.claim;
    let policy = expiry::policy(claim);
    if !expiry::is_announced(claim) {
        let sandbox = current(world, key, seen);
        let end = End::Expired { sandbox: sandbox.as_deref(), problem: None };
        let written = write(world, key, claim, &end).await;
        if let Ok(Some(_)) = written {
            note(world, claim, reason::CLAIM_EXPIRED, "Claim Expired", "Claim expired".into());
        }
        return outcome(key, written.map(drop), Outcome::Again(NEXT_PASS));
    }
    let propagation = match policy {
        ClaimShutdownPolicy::Delete => None,
        ClaimShutdownPolicy::DeleteForeground => Some(PropagationPolicy::Foreground),
        ClaimShutdownPolicy::Retain => return retain(world, key, seen).await,
    };
    let text = format!("Deleting Claim (ShutdownPolicy={policy:?})");
    note(world, claim, reason::CLAIM_EXPIRED, "Deleting", text);
    tracing::debug!(claim = %key, over = ?expiry::end(claim), %now, "claim expired");
    outcome(key, world.claims.delete(key, propagation).await, Outcome::Settled)
}

/// The Sandbox that an expired claim has, or would have.
fn current(world: &World, key: &Key, seen: &Seen) -> Option<Arc<Sandbox>> {
    let named = || world.sandboxes.get(&key.beside(bound_name(&seen.claim).unwrap_or(&key.name)));
    // The status may not have been written before a crash, so the owner reference counts.
    seen.owned.first().cloned().or_else(named)
}

/// Deletes the Sandbox of an expired claim that stays.
async fn retain(world: &World, key: &Key, seen: &Seen) -> Outcome {
    let claim = &seen.claim;
    let mut problem = None;
    if let Some(sandbox) = current(world, key, seen) {
        let name = sandbox.name_any();
        if !owner::is_controlled_by(sandbox.as_ref(), claim.as_ref()) {
            problem = Some(format!(
                "sandbox not owned by this claim: sandbox {name:?} is not owned by claim {:?}; deletion skipped.",
                claim.name_any()
            ));
        } else if sandbox.metadata.deletion_timestamp.is_none()
            && let Err(error) = world.sandboxes.delete(&key.beside(&name), None).await
        {
            return outcome(key, Err(error), Outcome::Failed);
        }
    }
    let after = Seen::observe(world, claim.clone());
    let left = current(world, key, &after).filter(|_| problem.is_none());
    let end = End::Expired { sandbox: left.as_deref(), problem };
    let written = write(world, key, claim, &end).await;
    let good = if matches!(written, Ok(None)) { Outcome::Again(AFTER_CONFLICT) } else { Outcome::Settled };
    outcome(key, written.map(drop), good)
}

fn outcome(key: &Key, result: Result<(), Error>, good: Outcome) -> Outcome {
    match result {
        Ok(()) => good,
        Err(error) => {
            tracing::warn!(claim = %key, %error, "a step of an expired claim failed");
            Outcome::Failed
        }
    }
}
