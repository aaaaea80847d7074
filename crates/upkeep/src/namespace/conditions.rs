//! Conditions of a Namespace that is being deleted, in Kubernetes' words.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ApiResource;

use crate::Error;

/// Objects that are still in a Namespace.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Number of objects by resource, such as `deployments.apps` and `pods.`.
    pub(super) objects: BTreeMap<String, usize>,
    /// Number of objects by finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
    /// Reasons why kinds could not be emptied.
    pub(super) failures: Vec<String>,
}

impl Rest {
    pub(super) fn add(&mut self, resource: &ApiResource, finalizers: &[String]) {
        let ApiResource { group, plural, .. } = resource;
        // Kubernetes ends the name of a resource of the core group with the dot before its group.
        *self.objects.entry(format!("{plural}.{group}")).or_default() += 1;
        for finalizer in finalizers {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }

    /// Adds a kind that could not be emptied. The reason is that of the API server, which the condition shows.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failures.push(match error {
            Error::Read { what, source: kube::Error::Api(status) }
            | Error::Write { what, source: kube::Error::Api(status) } => {
                format!("{what}: {}", status.message)
            }
            Error::Read { what, .. } | Error::Write { what, .. } => format!("{what}: no answer"),
            _ => "unexpected error".to_owned(),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty()
    }
}

/// Returns the conditions. The time of a condition that has the same status before is kept.
pub(super) fn conditions(
    rest: &Rest,
    before: &[NamespaceCondition],
    now: Timestamp,
) -> Vec<NamespaceCondition> {
    let all = [
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".to_owned(),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".to_owned(),
        ),
        failures(&rest.failures),
        content(&rest.objects),
        finalizers(&rest.finalizers),
    ];
    all.into_iter()
        .map(|(kind, holds, reason, message)| {
            let status = if holds { "True" } else { "False" };
            let same = before.iter().find(|old| old.type_ == kind && old.status == status);
            let since = same.and_then(|old| old.last_transition_time.clone());
            let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
            NamespaceCondition {
                type_: kind.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_transition_time: since.or(Some(Time(now))),
            }
        })
        .collect()
}

fn failures(failures: &[String]) -> Found {
    const KIND: &str = "NamespaceDeletionContentFailure";
    if failures.is_empty() {
        let message = "All content successfully deleted, may be waiting on finalization";
        return (KIND, false, "ContentDeleted", message.into());
    }
    let (count, all) = (failures.len(), failures.join(", "));
    let message = format!("Failed to delete all resource types, {count} remaining: {all}");
    (KIND, true, "ContentDeletionFailed", message)
}

type Found = (&'static str, bool, &'static str, String);

fn content(objects: &BTreeMap<String, usize>) -> Found {
    const KIND: &str = "NamespaceContentRemaining";
    if objects.is_empty() {
        return (KIND, false, "ContentRemoved", "All content successfully removed".into());
    }
    let list: Vec<_> = objects
        .iter()
        .map(|(resource, count)| format!("{resource} has {count} resource instances"))
        .collect();
    (KIND, true, "SomeResourcesRemain", format!("Some resources are remaining: {}", list.join(", ")))
}

fn finalizers(finalizers: &BTreeMap<String, usize>) -> Found {
    const KIND: &str = "NamespaceFinalizersRemaining";
    if finalizers.is_empty() {
        let message = "All content-preserving finalizers finished";
        return (KIND, false, "ContentHasNoFinalizers", message.into());
    }
    let list: Vec<_> =
        finalizers.iter().map(|(name, count)| format!("{name} in {count} resource instances")).collect();
    let message = format!("Some content in the namespace has finalizers remaining: {}", list.join(", "));
    (KIND, true, "SomeFinalizersRemain", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(conditions: &[NamespaceCondition]) -> Vec<String> {
        conditions
            .iter()
            .map(|one| format!("{} {}", one.status, one.message.as_deref().unwrap_or_default()))
            .collect()
    }

    #[test]
    fn conditions_name_what_remains_in_a_namespace() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let rest = Rest {
            objects: BTreeMap::from([("pods.".into(), 2), ("deployments.apps".into(), 1)]),
            finalizers: BTreeMap::from([("x.y/z".into(), 1)]),
            failures: Vec::new(),
        };
        let first = conditions(&rest, &[], at(1));
        assert_eq!(
            shown(&first)[3..],
            [
                "True Some resources are remaining: deployments.apps has 1 resource instances, pods. has 2 resource instances",
                "True Some content in the namespace has finalizers remaining: x.y/z in 1 resource instances",
            ]
        );
        let then = conditions(&Rest::default(), &first, at(2));
        assert_eq!(
            shown(&then)[3..],
            ["False All content successfully removed", "False All content-preserving finalizers finished",]
        );
        let times: Vec<_> =
            then.iter().map(|one| one.last_transition_time.as_ref().unwrap().0.as_second()).collect();
        assert_eq!(times, [1, 1, 1, 2, 2]);
    }

    #[test]
    fn condition_names_the_kinds_that_could_not_be_emptied() {
        let mut rest = Rest::default();
        let refused = kube::core::Status::failure("it is held", "Forbidden").boxed();
        rest.fail(&Error::write("pods in Namespace n")(kube::Error::Api(refused)));
        assert!(!rest.is_empty());
        let shown = shown(&conditions(&rest, &[], Timestamp::UNIX_EPOCH));
        let why = "True Failed to delete all resource types, 1 remaining: pods in Namespace n: it is held";
        assert_eq!(shown[2], why);
    }
}
