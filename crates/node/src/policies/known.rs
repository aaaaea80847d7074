//! The objects by which policies are attached to Pods, and the Services that lead to Pods.

use std::sync::Arc;

use hutch_attach::{Mirror, Objects, Services, egress_of};
use hutch_policy::{Applying, Provider, file_rules};
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
    /// Returns the rules for files of a Pod; `None` if they are not known yet. `last` are those of before, which are not combined
    /// again where they still apply.
    pub(super) fn files(&self, pod: &Pod, now: Timestamp, last: Option<&Arc<Files>>) -> Option<Arc<Files>> {
        let objects = &self.objects;
        let subject = objects.is_complete().then(|| objects.subject(pod)).flatten()?;
        let policies = (&objects.cluster_policies.objects, &objects.policies.objects);
        let rules = file_rules(&subject, policies.0, policies.1, now);
        let same = last.filter(|last| last.is_of(&rules)).cloned();
        Some(same.unwrap_or_else(|| Arc::new(rules.map_or_else(Files::too_many, Files::new))))
    }

    /// Returns the levels of a Pod, and what its condition says.
    pub(super) fn levels(&self, pod: &Pod, now: Timestamp) -> (Applying, Enforced) {
        match self.objects.levels(pod, now) {
            Err(closed) => {
                let enforced = Enforced { holds: false, reason: closed.reason, message: closed.message };
                (Applying { until: closed.until, ..Applying::default() }, enforced)
            }
            Ok(found) if found.levels.is_empty() => {
                let message =
                    "no policy applies: no egress. A NetworkPolicy object, also the managed one of a template, opens nothing here".to_owned();
                (found, Enforced { holds: true, reason: "NoPolicy", message })
            }
            Ok(found) => {
                let message = egress_of("egress", &found.levels);
                (found, Enforced { holds: true, reason: "Enforced", message })
            }
        }
    }
}
