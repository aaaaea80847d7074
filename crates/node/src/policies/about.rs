//! Facts about a sandbox for the conditions of rules, and the authorities of sandboxes that are gone.

use std::collections::{BTreeMap, HashSet};

use hutch_api::{Sandbox, annotation, owner};
use hutch_policy::{Facts, Identity};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;

use super::Known;
use super::known::Facts as SandboxFacts;
use crate::config::Egress;
use crate::live::Live;
use crate::shared::Shared;
use crate::trust;

/// Maximum bytes of the labels and attributes of a sandbox. Of more, none counts.
const BYTES: usize = 32 << 10;

/// Returns the attributes of the task of a Sandbox.
pub(super) fn task(annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let attribute = |(key, value): (&String, &String)| {
        Some((key.strip_prefix(annotation::ATTRIBUTE)?.to_owned(), value.clone()))
    };
    annotations.iter().filter_map(attribute).collect()
}

impl Known {
    /// Takes an event about Sandboxes, and forgets the authorities of those that are gone. Returns true if any has changed.
    pub(super) fn take_sandboxes(
        &mut self,
        event: watcher::Event<PartialObjectMeta<Sandbox>>,
        egress: &dyn Egress,
    ) -> bool {
        if let watcher::Event::Delete(sandbox) = &event {
            let namespace = sandbox.namespace().unwrap_or_default();
            egress.forget(&trust::name(&namespace, &sandbox.uid().unwrap_or_default()));
        }
        // A new list lacks those of which no event came.
        let before = matches!(event, watcher::Event::InitDone).then(|| self.authorities());
        let changed = self.sandboxes.take(event, |object| SandboxFacts::of(&object));
        if let Some(before) = before {
            before.difference(&self.authorities()).for_each(|gone| egress.forget(gone));
        }
        changed
    }

    /// Returns the facts about a Pod. One without a Sandbox has no name: conditions take it for that of a Sandbox.
    pub(super) fn facts(&self, pod: &Pod) -> Facts {
        let namespace = pod.namespace().unwrap_or_default();
        let Some(owner) = owner::sandbox(pod) else {
            let labels = bounded(pod.labels());
            return Facts {
                sandbox: Identity { namespace, labels, ..Identity::default() },
                ..Facts::default()
            };
        };
        let key = (namespace, owner.name.clone());
        let Some(sandbox) = self.sandboxes.objects.get(&key).filter(|sandbox| sandbox.uid == owner.uid)
        else {
            return Facts::default();
        };
        let (namespace, name) = key;
        let identity = Identity { name, namespace, labels: bounded(&sandbox.labels) };
        Facts { task: bounded(&sandbox.task), user: sandbox.user.clone(), sandbox: identity }
    }

    /// Forgets the authority of a Pod that is gone, unless it is that of a Sandbox.
    pub(super) fn forget(&self, live: &Live, egress: &dyn Egress) {
        let pod = live.pod();
        let exists = owner::sandbox(pod.as_ref()).is_some_and(|owner| {
            let key = (live.id.namespace.clone(), owner.name.clone());
            self.sandboxes.objects.get(&key).is_some_and(|sandbox| sandbox.uid == owner.uid)
        });
        if self.sandboxes.complete && !exists {
            egress.forget(&trust::sandbox_of(&live.id, &pod));
        }
    }

    /// Returns the names of the authorities of all Sandboxes.
    pub(super) fn authorities(&self) -> HashSet<String> {
        let all = self.sandboxes.objects.iter();
        all.map(|((namespace, _), sandbox)| trust::name(namespace, &sandbox.uid)).collect()
    }
}

fn bounded(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let bytes: usize = all.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > BYTES { BTreeMap::new() } else { all.clone() }
}

/// Progress of the search for sandboxes that vanished while the node was not there.
#[derive(Default)]
pub(super) struct Sweep {
    /// All Pods are known.
    pub(super) listed: bool,
    done: bool,
}

impl Sweep {
    /// Forgets the authorities of vanished sandboxes once all that exist are known.
    pub(super) fn run(&mut self, known: &Known, node: &Shared, egress: &dyn Egress) {
        if self.done || !self.listed || !known.sandboxes.complete {
            return;
        }
        self.done = true;
        let mut all = known.authorities();
        all.extend(node.all().iter().map(|live| trust::sandbox_of(&live.id, &live.pod())));
        egress.forget_others(&all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_the_task_are_annotations_with_a_prefix_and_bounded() {
        let annotation = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let annotations = [
            annotation("attr.policy.hutch.dev/risk", "2"),
            annotation("policy.hutch.dev/policies", "a"),
            annotation("risk", "0"),
        ];
        let task = task(&BTreeMap::from(annotations));
        assert_eq!(task, BTreeMap::from([annotation("risk", "2")]));
        assert_eq!(bounded(&task), task);
        assert!(bounded(&BTreeMap::from([annotation("risk", &"x".repeat(BYTES))])).is_empty());
    }
}
