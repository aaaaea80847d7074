//! Builds the annotations of a claim: its Sandbox, and the times at which it was first observed and became Ready. Pure.
//! They are written once the claim is Ready, or when it has to wait.

use hutch_api::{Sandbox, SandboxClaim, annotation, label};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::is_ready;
use crate::context::Times;

/// Value where a claim was Ready before this process saw it.
const UNKNOWN_TIME: &str = "unknown";

/// Claim before and after a reconcile.
pub(super) struct Pass<'a> {
    /// Claim as it was observed.
    pub(super) before: &'a SandboxClaim,
    /// Claim with the status that was written.
    pub(super) after: &'a SandboxClaim,
    /// Sandbox of the claim, if it has one.
    pub(super) sandbox: Option<&'a Sandbox>,
}

/// Returns a merge patch of the annotations that are missing or wrong, if any; with the times if they are enabled.
pub(super) fn patch(pass: &Pass<'_>, times: Option<Times>) -> Option<Value> {
    let ready = is_ready(pass.after);
    let starting = pass.sandbox.is_some() && !ready;
    if starting {
        // The annotations are written once, when the claim is Ready.
        return None;
    }
    let mut annotations = Map::new();
    let mut metadata = Map::new();
    if let Some(sandbox) = pass.sandbox {
        put_record(&mut metadata, &mut annotations, pass.after, sandbox);
    }
    if let Some(Times { seen, ready: since }) = times {
        let known = pass.after.annotations();
        if !known.contains_key(annotation::CONTROLLER_FIRST_OBSERVED_AT) {
            annotations.insert(annotation::CONTROLLER_FIRST_OBSERVED_AT.into(), json!(seen.to_string()));
        }
        if ready && !has_ready_time(pass.after) {
            let time = since.map_or_else(|| UNKNOWN_TIME.to_owned(), |since| since.to_string());
            annotations.insert(annotation::CLAIM_FIRST_READY_AT.into(), json!(time));
        }
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".into(), Value::Object(annotations));
    }
    (!metadata.is_empty()).then(|| json!({ "metadata": metadata }))
}

/// Adds the assignment record: an annotation, earlier a label, that names a Sandbox from a pool.
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

/// Returns whether the claim has the annotation with the time at which it became Ready.
pub(super) fn has_ready_time(claim: &SandboxClaim) -> bool {
    claim.annotations().get(annotation::CLAIM_FIRST_READY_AT).is_some_and(|time| !time.is_empty())
}
