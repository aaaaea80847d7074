//! The objects by which policies are attached to Pods, and the Services that lead to Pods.

use std::sync::Arc;

use hutch_attach::{Mirror, Objects, Services};
use hutch_policy::{Applying, Level, Mode, Provider, file_rules};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::files::Files;
use crate::live::Enforced;

/// Everything that is known.
#[derive(Default)]
pub(super) struct Known {
    /// `None` for one that is invalid.
    pub(super) providers: Mirror<Option<Arc<Provider>>>,
    pub(super) objects: Objects,
    pub(super) services: Services,
}

impl Known {
    /// Returns the rules for files of a Pod; `None` if they are not known yet.
    pub(super) fn files(&self, pod: &Pod, now: Timestamp) -> Option<Files> {
        let objects = &self.objects;
        let subject = objects.is_complete().then(|| objects.subject(pod)).flatten()?;
        let policies = (&objects.cluster_policies.objects, &objects.policies.objects);
        Some(Files::new(file_rules(&subject, policies.0, policies.1, now)))
    }

    /// Returns the levels of a Pod, and what its condition says.
    pub(super) fn levels(&self, pod: &Pod, now: Timestamp) -> (Applying, Enforced) {
        match self.objects.levels(pod, now) {
            Err(closed) => {
                let enforced = Enforced { holds: false, reason: closed.reason, message: closed.message };
                (Applying::default(), enforced)
            }
            Ok(found) if found.levels.is_empty() => {
                let message =
                    "no policy applies: no egress. A NetworkPolicy object, also the managed one of a template, opens nothing here".to_owned();
                (found, Enforced { holds: true, reason: "NoPolicy", message })
            }
            Ok(found) => {
                let message = named(&found.levels);
                (found, Enforced { holds: true, reason: "Enforced", message })
            }
        }
    }
}

/// Returns the message about levels that apply.
fn named(levels: &[Arc<Level>]) -> String {
    let of = |mode: Mode| {
        let levels = levels.iter().filter(|level| level.mode == mode);
        levels.map(|level| level.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (deciding, observing) = (of(Mode::Enforce), of(Mode::Observe));
    match (deciding.is_empty(), observing.is_empty()) {
        (false, true) => format!("egress as allowed by each of: {deciding}"),
        (false, false) => format!("egress as allowed by each of: {deciding}; only observed by: {observing}"),
        (true, _) => format!("no policy decides: no egress; only observed by: {observing}"),
    }
}
