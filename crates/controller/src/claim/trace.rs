//! Adds the trace of a claim to the annotations that are written anyway. Pure.

use hutch_api::{SandboxClaim, annotation};
use kube::ResourceExt;
use serde_json::{Value, json};

/// Returns the patch with the trace context of `observed`, if `stored` lacks it. A claim that needs no other annotation
/// gets it when it is `ready`.
pub(super) fn added(
    patch: Option<Value>,
    observed: &SandboxClaim,
    stored: &SandboxClaim,
    ready: bool,
) -> Option<Value> {
    let key = annotation::TRACE_CONTEXT;
    let missing = !stored.annotations().contains_key(key);
    let context = observed.annotations().get(key).filter(|_| missing && (ready || patch.is_some()));
    let Some(context) = context else { return patch };
    let mut patch = patch.unwrap_or_else(|| json!({}));
    patch["metadata"]["annotations"][key] = json!(context);
    Some(patch)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fixture::object;

    #[test]
    fn trace_is_written_once_and_needs_no_write_before_ready() {
        let claim = |annotations: Value| -> Arc<SandboxClaim> {
            let more =
                json!({"metadata": {"annotations": annotations}, "spec": {"warmPoolRef": {"name": "p"}}});
            object("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim", "c", more)
        };
        let (with, without) = (claim(json!({"opentelemetry.io/trace-context": "{}"})), claim(json!({})));
        let other = Some(json!({"metadata": {"annotations": {"a": "b"}}}));
        let both = json!({"metadata": {"annotations": {"a": "b", "opentelemetry.io/trace-context": "{}"}}});
        assert_eq!(added(other.clone(), &with, &without, false), Some(both));
        let alone = json!({"metadata": {"annotations": {"opentelemetry.io/trace-context": "{}"}}});
        assert_eq!(added(None, &with, &without, true), Some(alone));
        assert_eq!(added(None, &with, &without, false), None);
        assert_eq!(added(None, &with, &with, true), None);
        assert_eq!(added(other.clone(), &without, &without, true), other);
    }
}
