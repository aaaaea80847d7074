//! The annotations by which a claim tells which Sandbox it has, when it was seen and when it became Ready. Pure; written
//! once the claim is Ready, or when it has to wait.

use hutch_api::{Sandbox, SandboxClaim, annotation, label};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::condition;
use crate::world::Times;

/// Value where a claim was Ready before anybody watched.
const UNKNOWN_TIME: &str = "unknown";

/// One look at a claim.
pub(super) struct Look<'a> {
    /// The claim as it was found.
    pub(super) before: &'a SandboxClaim,
    /// The claim with the status that was written.
    pub(super) after: &'a SandboxClaim,
    /// The claim's Sandbox, when it has one.
    pub(super) sandbox: Option<&'a Sandbox>,
}

/// A merge patch of what is missing or wrong, nothing when nothing is; with the times where they are wanted.
pub(super) fn patch(look: &Look<'_>, times: Option<Times>) -> Option<Value> {
    let ready = is_ready(look.after);
    let starting = look.sandbox.is_some() && !ready;
    if starting {
        // It is Ready soon, and then there is more to write.
        return None;
    }
    let mut annotations = Map::new();
    let mut metadata = Map::new();
    if let Some(sandbox) = look.sandbox {
        put_record(&mut metadata, &mut annotations, look.after, sandbox);
    }
    if let Some(Times { seen, ready: since }) = times {
        let known = look.after.annotations();
        if !known.contains_key(annotation::CONTROLLER_FIRST_OBSERVED_AT) {
            annotations.insert(annotation::CONTROLLER_FIRST_OBSERVED_AT.into(), json!(seen.to_string()));
        }
        let noted = known.get(annotation::CLAIM_FIRST_READY_AT).is_some_and(|time| !time.is_empty());
        if ready && !noted {
            let time = since.map_or_else(|| UNKNOWN_TIME.to_owned(), |since| since.to_string());
            annotations.insert(annotation::CLAIM_FIRST_READY_AT.into(), json!(time));
        }
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".into(), Value::Object(annotations));
    }
    (!metadata.is_empty()).then(|| json!({ "metadata": metadata }))
}

/// The record names a Sandbox that came from a pool, and is an annotation; earlier it was a label.
fn put_record(
    metadata: &mut Map<String, Value>,
    annotations: &mut Map<String, Value>,
    claim: &SandboxClaim,
    sandbox: &Sandbox,
) {
    let key = annotation::SANDBOX_NAME;
    let name = sandbox.name_any();
    let warm = sandbox.labels().get(label::LAUNCH_TYPE).is_some_and(|launch| launch == label::LAUNCH_WARM);
    let wanted = warm.then_some(&name);
    if claim.annotations().get(key) != wanted {
        annotations.insert(key.into(), json!(wanted));
    }
    if claim.labels().contains_key(key) {
        metadata.insert("labels".into(), json!({key: null}));
    }
}

fn is_ready(claim: &SandboxClaim) -> bool {
    condition::is_ready(claim.status.as_ref().and_then(|status| status.conditions.as_ref()))
}
