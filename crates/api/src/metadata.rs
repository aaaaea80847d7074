//! Which metadata keys belong to the project and may not come from a user's Pod template.

use crate::{EXTENSIONS_GROUP, GROUP, annotation};

/// Whether a label of a Pod template is dropped on the way to the Pod.
pub fn is_reserved_label(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| domain == GROUP || domain == EXTENSIONS_GROUP)
}

/// Whether an annotation of a Pod template is dropped on the way to the Pod.
pub fn is_reserved_annotation(key: &str) -> bool {
    is_reserved_label(key) || [annotation::TRACE_CONTEXT, annotation::LATE_ENV].contains(&key)
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
