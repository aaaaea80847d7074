//! Findings in output that the front scans, as events of the audit log.

use std::sync::Arc;

use hutch_apiserver::Audit as _;
use hutch_screen::{Findings, Sighting};
use k8s_openapi::api::core::v1::Pod;

use super::FrontLog;
use crate::audit_log::Subject;
use crate::audit_log::findings::sighted;

/// Findings in the output of one Pod that the front scans.
pub(in crate::up) struct FrontFindings {
    log: Arc<FrontLog>,
    subject: Subject,
}

impl FrontFindings {
    /// Takes the log, and the Pod, whose findings are those of its Sandbox, if it has one.
    pub(in crate::up) fn new(log: Arc<FrontLog>, pod: &Pod) -> FrontFindings {
        FrontFindings { log, subject: Subject::of(pod) }
    }
}

impl Findings for FrontFindings {
    fn record(&self, sighting: &Sighting<'_>) {
        let event = sighted(&self.subject.sandbox(), sighting);
        self.log.push(Box::new(move || event.record()));
    }
}
