//! What metrics tell of a claim.

use hutch_api::{Sandbox, SandboxClaim, annotation};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::condition;
use crate::world::World;

/// Measures a claim that has become Ready for the first time; `seen` is when this process saw it first.
pub(super) fn ready(
    world: &World,
    before: &SandboxClaim,
    after: &SandboxClaim,
    sandbox: &Sandbox,
    seen: Timestamp,
) {
    let noted =
        after.annotations().get(annotation::CLAIM_FIRST_READY_AT).is_some_and(|time| !time.is_empty());
    if is_ready(after) && !is_ready(before) && !noted {
        world.config.metrics.claims().first_ready(after, sandbox, seen, world.now());
    }
}

pub(super) fn is_ready(claim: &SandboxClaim) -> bool {
    condition::is_ready(claim.status.as_ref().and_then(|status| status.conditions.as_ref()))
}
