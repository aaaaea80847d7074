//! The line of the log for a finding in output.

use std::sync::Arc;

use hutch_policy::{Door, ScanAction};

use crate::found::Found;

/// Where output comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Namespace and name of the Pod.
    pub pod: Arc<str>,
    /// Container, or port; empty if it is not known.
    pub part: Arc<str>,
}

/// Reports a finding. Every finding in logs, output of commands and downloads passes here, so that an audit log
/// can record it here too.
pub fn report(origin: &Origin, door: Door, found: &Found, action: ScanAction) {
    let decision = match action {
        ScanAction::Log => "observe",
        ScanAction::Redact => "redact",
        ScanAction::Block => "deny",
    };
    let finding = serde_json::to_string(found).unwrap_or_default();
    let (pod, part, door) = (&*origin.pod, &*origin.part, door.name());
    tracing::warn!(decision, pod, part, door, policy = &*found.policy, %finding, "the scanner found something");
}
