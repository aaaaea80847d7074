//! Suspension of an idle Sandbox, and its wake-up at a given time.
//!
//! Every write here carries the resourceVersion of the Sandbox that the decision rests on. A concurrent report of activity
//! makes it fail, and the decision is repeated.

use std::time::Duration;

use hutch_api::sleep::{IdleTimes, InvalidIdleTime, idle_since, suspension};
use hutch_api::{Sandbox, annotation};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::json;

use super::plan::{Action, Plan};
use super::{Observed, memory};
use crate::clock::wait_until;
use crate::owner;

/// Next change of a Sandbox by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// No change.
    Never,
    /// Suspended at this time.
    Sleep(Timestamp),
    /// Woken at this time.
    Wake(Timestamp),
}

/// Returns the idle timeouts of the annotations; the Sandbox's own precede those of its template.
pub(super) fn timeouts(sandbox: &Sandbox) -> Result<IdleTimes, InvalidIdleTime> {
    let template = sandbox.spec.pod_template.metadata.annotations.as_ref();
    IdleTimes::read(std::iter::once(sandbox.annotations()).chain(template))
}

/// Returns the time after a suspend at which its memory is removed. An invalid one affects nothing else.
pub(super) fn drop_memory_after(sandbox: &Sandbox) -> Result<Option<Duration>, InvalidIdleTime> {
    let template = sandbox.spec.pod_template.metadata.annotations.as_ref();
    hutch_api::sleep::drop_memory_after(std::iter::once(sandbox.annotations()).chain(template))
}

/// Returns the problem of invalid annotations.
pub(super) fn invalid(sandbox: &Sandbox) -> Option<String> {
    let times = timeouts(sandbox).map(drop).and_then(|()| drop_memory_after(sandbox).map(drop));
    if let Err(error) = times {
        return Some(error.to_string());
    }
    let said = sandbox.annotations().get(annotation::WAKE_AT)?;
    let bad = said.parse::<Timestamp>().is_err();
    bad.then(|| {
        let said: String = said.chars().take(64).collect();
        format!(
            "annotation {}: {said:?} is not a time of RFC 3339, such as 2030-01-31T08:00:00Z",
            annotation::WAKE_AT
        )
    })
}

/// Plans the suspension or the wake-up, if it is due.
pub(super) fn plan(observed: &Observed, plan: &mut Plan, now: Timestamp) {
    let sandbox = observed.sandbox.as_ref();
    let patch = match next(observed) {
        Next::Sleep(at) if at <= now => suspension(sandbox),
        Next::Wake(at) if at <= now => {
            let annotations = json!({annotation::WAKE_AT: null, annotation::ASLEEP_GENERATION: null});
            let version = &sandbox.metadata.resource_version;
            let metadata = json!({"resourceVersion": version, "annotations": annotations});
            json!({"metadata": metadata, "spec": {"operatingMode": "Running"}})
        }
        Next::Sleep(_) | Next::Wake(_) | Next::Never => return,
    };
    plan.actions.push(Action::Sleep(patch));
}

/// Returns the time until the next change, if there is one.
pub(super) fn remaining(observed: &Observed, now: Timestamp) -> Option<Duration> {
    let next = match next(observed) {
        Next::Sleep(at) | Next::Wake(at) => Some(at),
        Next::Never => None,
    };
    next.into_iter().chain(memory::removal(observed)).min().map(|at| wait_until(at, now))
}

fn next(observed: &Observed) -> Next {
    let sandbox = observed.sandbox.as_ref();
    let pooled = owner::extension(sandbox, "SandboxWarmPool").is_some();
    if pooled || invalid(sandbox).is_some() {
        return Next::Never;
    }
    let time = |key: &str| sandbox.annotations().get(key).and_then(|said| said.parse::<Timestamp>().ok());
    if observed.is_suspended() {
        return time(annotation::WAKE_AT).map_or(Next::Never, Next::Wake);
    }
    let after = timeouts(sandbox).unwrap_or_default().suspend_after;
    // A starting Sandbox is not idle, a failing one is not hidden by suspension, and one of unknown activity may be in use.
    let (Some(after), Some(since)) = (after, idle_since(sandbox)) else { return Next::Never };
    let after = SignedDuration::try_from(after).unwrap_or(SignedDuration::MAX);
    since.checked_add(after).map_or(Next::Never, Next::Sleep)
}

#[cfg(test)]
mod tests;
