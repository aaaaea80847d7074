//! Expiry of a Sandbox.

use std::time::Duration;

use hutch_api::Sandbox;
use hutch_api::condition::{READY, reason};
use jiff::Timestamp;

use crate::condition;

/// Returns whether the Sandbox has expired.
pub(super) fn is_over(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.spec.shutdown_time.as_ref().is_some_and(|end| end.0 <= now)
}

/// Returns the time until the clock is checked again, if the Sandbox expires at all.
pub(super) fn remaining(sandbox: &Sandbox, now: Timestamp) -> Option<Duration> {
    Some(crate::clock::wait_until(sandbox.spec.shutdown_time.as_ref()?.0, now))
}

/// Returns whether the Sandbox's status reports its expiry.
pub(super) fn is_announced(sandbox: &Sandbox) -> bool {
    let conditions = sandbox.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions
        .and_then(|list| condition::find(list, READY))
        .is_some_and(|ready| ready.reason == reason::SANDBOX_EXPIRED)
}
