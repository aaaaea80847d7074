//! What a claim's status says. Pure.

use hutch_api::condition::{FALSE, FINISHED, READY, message, reason};
use hutch_api::{ClaimedSandbox, Sandbox, SandboxClaim, SandboxClaimStatus};
use jiff::Timestamp;
use kube::ResourceExt;

use super::refusal::Refusal;
use crate::condition::{self, Verdict};

/// How a look at a claim ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome<'a> {
    /// It has this Sandbox.
    Bound(&'a Sandbox),
    /// It has this one, which is not as the claim wants it yet.
    Unready(&'a Sandbox),
    /// It has none, for this reason.
    Refused(&'a Refusal),
    /// Its time is up; the Sandbox, if it is still there, and what else there is to say.
    Expired { sandbox: Option<&'a Sandbox>, problem: Option<String> },
}

pub(super) fn status(claim: &SandboxClaim, outcome: &Outcome<'_>, now: Timestamp) -> SandboxClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.take().unwrap_or_default();
    let generation = claim.metadata.generation;
    let (verdict, since) = ready(outcome, now);
    condition::set(&mut conditions, READY, verdict, generation, condition::whole_seconds(since));
    match outcome {
        Outcome::Bound(sandbox)
        | Outcome::Unready(sandbox)
        | Outcome::Expired { sandbox: Some(sandbox), .. } => {
            condition::remove(&mut conditions, FINISHED);
            let theirs = sandbox.status.as_ref().and_then(|status| status.conditions.as_deref());
            conditions.extend(theirs.and_then(|list| condition::find(list, FINISHED)).cloned());
            status.sandbox = Some(ClaimedSandbox {
                name: Some(sandbox.name_any()),
                pod_ips: sandbox.status.as_ref().and_then(|status| status.pod_ips.clone()),
            });
        }
        Outcome::Expired { sandbox: None, .. } => status.sandbox = None,
        // What was there is not gone because of an error.
        Outcome::Refused(_) => {}
    }
    // There is always one, empty where there is nothing to say.
    status.sandbox.get_or_insert_default();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    status.conditions = Some(conditions);
    status
}

/// The Ready condition, and when it became so.
fn ready(outcome: &Outcome<'_>, now: Timestamp) -> (Verdict, Timestamp) {
    let not = |reason: &str, message: &str| (Verdict::new(FALSE, reason, message), now);
    match outcome {
        Outcome::Refused(refusal) => not(refusal.reason, &refusal.message),
        Outcome::Expired { problem: None, .. } => not(reason::CLAIM_EXPIRED, message::CLAIM_EXPIRED),
        Outcome::Expired { problem: Some(problem), .. } => {
            not(reason::CLAIM_EXPIRED, &format!("Claim expired. {problem}"))
        }
        Outcome::Unready(_) => not(reason::SANDBOX_NOT_READY, message::SANDBOX_NOT_READY),
        Outcome::Bound(sandbox) => {
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
