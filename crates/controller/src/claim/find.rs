//! Which Sandbox a claim has already, or how it is to get one. Pure.

use std::sync::Arc;

use hutch_api::Sandbox;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::refusal::Refusal;
use super::{Seen, adopt, variables};
use crate::binding::bound_name;
use crate::owner;

/// The next step towards a Sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// It has this one.
    Use(Arc<Sandbox>),
    /// It was about to get this one: finish that.
    Adopt(Arc<Sandbox>),
    /// Take one from the pool; if there is none, make one.
    TakeOrCreate,
    /// Make one; what the claim asks for cannot be had from a pool.
    Create,
}

pub(super) fn find(seen: &Seen) -> Result<Step, Refusal> {
    let claim = seen.claim.as_ref();
    let bound = bound_name(claim);
    let chosen = seen.owned.iter().find(|sandbox| Some(sandbox.name_any().as_str()) == bound);
    // The status may not have been written before a crash, so the owner reference alone is enough.
    let alive = || seen.owned.iter().find(|sandbox| sandbox.metadata.deletion_timestamp.is_none());
    if let Some(sandbox) = chosen.or_else(alive).or(seen.owned.first()) {
        return Ok(Step::Use(sandbox.clone()));
    }
    let late = seen.late_env && !variables(claim).is_empty();
    let recorded = seen.recorded.as_ref().filter(|sandbox| !late && adopt::is_candidate(sandbox, claim));
    if let Some(recorded) = recorded {
        return Ok(Step::Adopt(recorded.clone()));
    }
    if let Some(namesake) = &seen.namesake
        && !owner::is_controlled_by(namesake.as_ref(), claim)
    {
        return Err(Refusal::error(format!(
            "sandbox {:?} is not controlled by claim {:?}. Please use a different claim name or delete the sandbox manually",
            namesake.name_any(),
            claim.name_any()
        )));
    }
    let volumes = claim.spec.volume_claim_templates.as_ref();
    let own = (!variables(claim).is_empty() && !late) || volumes.is_some_and(|list| !list.is_empty());
    Ok(if own || seen.pool.is_none() { Step::Create } else { Step::TakeOrCreate })
}

/// How long a claim may still wait for a Sandbox of its pool that is about to get an address.
pub(super) fn patience(seen: &Seen, now: Timestamp) -> SignedDuration {
    /// Longest wait, from the claim's creation.
    const LONGEST: SignedDuration = SignedDuration::from_secs(2);
    let created = seen.claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let age = now.duration_since(created).max(SignedDuration::ZERO);
    LONGEST.saturating_sub(age).max(SignedDuration::ZERO)
}
