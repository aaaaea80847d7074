//! Expiry of a claim. Pure.

use std::time::Duration;

use hutch_api::condition::{FINISHED, READY, TRUE, reason};
use hutch_api::{ClaimShutdownPolicy, SandboxClaim};
use jiff::{SignedDuration, Timestamp};

use crate::condition;

/// Returns when the claim expires: at its own shutdown time, or after its Sandbox has finished, whichever is earlier.
pub(super) fn end(claim: &SandboxClaim) -> Option<Timestamp> {
    let lifecycle = claim.spec.lifecycle.as_ref()?;
    let conditions =
        claim.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let finished = condition::find(conditions, FINISHED).filter(|finished| finished.status == TRUE);
    let after = lifecycle.ttl_seconds_after_finished.zip(finished).map(|(seconds, finished)| {
        let end = finished.last_transition_time.0.checked_add(SignedDuration::from_secs(i64::from(seconds)));
        end.unwrap_or(Timestamp::MAX)
    });
    let own = lifecycle.shutdown_time.as_ref().map(|time| time.0);
    own.into_iter().chain(after).min()
}

pub(super) fn is_over(claim: &SandboxClaim, now: Timestamp) -> bool {
    end(claim).is_some_and(|end| end <= now)
}

/// Returns the time until the clock is checked again, if the end is known.
pub(super) fn remaining(claim: &SandboxClaim, now: Timestamp) -> Option<Duration> {
    Some(crate::clock::wait_until(end(claim)?, now))
}

/// Returns whether the claim's status reports its expiry.
pub(super) fn is_announced(claim: &SandboxClaim) -> bool {
    let conditions =
        claim.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    condition::find(conditions, READY).is_some_and(|ready| ready.reason == reason::CLAIM_EXPIRED)
}

pub(super) fn policy(claim: &SandboxClaim) -> ClaimShutdownPolicy {
    claim.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.shutdown_policy).unwrap_or_default()
}
