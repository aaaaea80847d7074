//! The annotations by which a claim tells when it was seen and when it became Ready. Pure; written after the claim is Ready.

use hutch_api::{SandboxClaim, annotation};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::record;
use crate::condition;

/// Value where a claim was Ready before anybody watched.
const UNKNOWN_TIME: &str = "unknown";

/// One look at a claim.
pub(super) struct Look<'a> {
    /// The claim as it was found.
    pub(super) before: &'a SandboxClaim,
    /// The claim with the status that was written.
    pub(super) after: &'a SandboxClaim,
    /// Name of the Sandbox, when it came from a pool.
    pub(super) adopted: Option<String>,
    pub(super) began: Timestamp,
    pub(super) now: Timestamp,
    /// Whether the times are wanted.
    pub(super) times: bool,
}

/// A merge patch with the annotations that are missing, nothing when none is.
pub(super) fn patch(look: &Look<'_>) -> Option<Value> {
    let mut add = Map::new();
    let known = look.after.annotations();
    if let Some(name) = look.adopted.as_ref().filter(|name| record(look.after) != Some(name)) {
        add.insert(annotation::SANDBOX_NAME.into(), json!(name));
    }
    if look.times {
        if !known.contains_key(annotation::CONTROLLER_FIRST_OBSERVED_AT) {
            add.insert(annotation::CONTROLLER_FIRST_OBSERVED_AT.into(), json!(look.began.to_string()));
        }
        let was_ready = is_ready(look.before);
        let noted = known.get(annotation::CLAIM_FIRST_READY_AT).is_some_and(|time| !time.is_empty());
        if is_ready(look.after) && !noted {
            let time = if was_ready { UNKNOWN_TIME.to_owned() } else { look.now.to_string() };
            add.insert(annotation::CLAIM_FIRST_READY_AT.into(), json!(time));
        }
    }
    (!add.is_empty()).then(|| json!({"metadata": {"annotations": add}}))
}

fn is_ready(claim: &SandboxClaim) -> bool {
    condition::is_ready(claim.status.as_ref().and_then(|status| status.conditions.as_ref()))
}
