//! Metadata keys that are reserved by the project and may not come from a user's Pod template.

use crate::{EXTENSIONS_GROUP, GROUP, annotation};

/// Returns `true` for a Pod template label that is not propagated to the Pod.
pub fn is_reserved_label(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| domain == GROUP || domain == EXTENSIONS_GROUP)
}

/// Returns `true` for a Pod template annotation that is not propagated to the Pod.
pub fn is_reserved_annotation(key: &str) -> bool {
    is_reserved_label(key)
        || [annotation::TRACE_CONTEXT, annotation::LATE_ENV, annotation::CREDENTIALS].contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_domains_are_reserved_and_look_alikes_are_not() {
        assert!(is_reserved_label("agents.x-k8s.io/claim-uid"));
        assert!(is_reserved_label("extensions.agents.x-k8s.io/x"));
        assert!(!is_reserved_label("api.agents.x-k8s.io/x"));
        assert!(!is_reserved_label("agents.x-k8s.io"));
        assert!(!is_reserved_label(annotation::TRACE_CONTEXT));
        assert!(is_reserved_annotation(annotation::TRACE_CONTEXT));
        assert!(is_reserved_annotation(annotation::LATE_ENV));
        assert!(!is_reserved_annotation("example.com/a"));
    }
}
