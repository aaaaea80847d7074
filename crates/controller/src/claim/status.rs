//! Builds the status of a claim. Pure.

use hutch_api::condition::{FALSE, FINISHED, READY, message, reason};
use hutch_api::{ClaimedSandbox, Sandbox, SandboxClaim, SandboxClaimStatus};
use jiff::Timestamp;
use kube::ResourceExt;

use super::refusal::Refusal;
use crate::condition::{self, Verdict};

/// State of a claim that its status reports.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum State<'a> {
    /// The claim has this Sandbox.
    Bound(&'a Sandbox),
    /// The claim has this Sandbox, which is not Ready for it yet.
    Unready(&'a Sandbox),
    /// The claim has no Sandbox, for this reason.
    Refused(&'a Refusal),
    /// The claim has expired; with its Sandbox, if that still exists.
    Expired { sandbox: Option<&'a Sandbox>, problem: Option<String> },
}

pub(super) fn status(claim: &SandboxClaim, state: &State<'_>, now: Timestamp) -> SandboxClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.take().unwrap_or_default();
    let generation = claim.metadata.generation;
    let (verdict, since) = ready(state, now);
    condition::set(&mut conditions, READY, verdict, generation, condition::whole_seconds(since));
    match state {
        State::Bound(sandbox) | State::Unready(sandbox) | State::Expired { sandbox: Some(sandbox), .. } => {
            condition::remove(&mut conditions, FINISHED);
            let theirs = sandbox.status.as_ref().and_then(|status| status.conditions.as_deref());
            conditions.extend(theirs.and_then(|list| condition::find(list, FINISHED)).cloned());
            status.sandbox = Some(ClaimedSandbox {
                name: Some(sandbox.name_any()),
                pod_ips: sandbox.status.as_ref().and_then(|status| status.pod_ips.clone()),
            });
        }
        State::Expired { sandbox: None, .. } => status.sandbox = None,
        // An error does not remove the Sandbox.
        State::Refused(_) => {}
    }
    // The field is always present, and empty without a Sandbox.
    status.sandbox.get_or_insert_default();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    status.conditions = Some(conditions);
    status
}

/// Returns the Ready condition and its transition time.
fn ready(state: &State<'_>, now: Timestamp) -> (Verdict, Timestamp) {
    let not = |reason: &str, message: &str| (Verdict::new(FALSE, reason, message), now);
    match state {
        State::Refused(refusal) => not(refusal.reason, &refusal.message),
        State::Expired { problem: None, .. } => not(reason::CLAIM_EXPIRED, message::CLAIM_EXPIRED),
        State::Expired { problem: Some(problem), .. } => {
            not(reason::CLAIM_EXPIRED, &format!("Claim expired. {problem}"))
        }
        State::Unready(_) => not(reason::SANDBOX_NOT_READY, message::SANDBOX_NOT_READY),
        State::Bound(sandbox) => {
            let theirs = sandbox.status.as_ref().and_then(|status| status.conditions.as_deref());
            match theirs.and_then(|list| condition::find(list, READY)) {
                None => not(reason::SANDBOX_NOT_READY, message::SANDBOX_NOT_READY),
                Some(ready) if ready.reason == reason::SANDBOX_EXPIRED => {
                    not(reason::SANDBOX_EXPIRED, message::SANDBOX_EXPIRED)
                }
                Some(ready) => {
                    let verdict = Verdict::new(&ready.status, &ready.reason, ready.message.clone());
                    (verdict, ready.last_transition_time.0)
                }
            }
        }
    }
}
