//! The authorities of sandboxes that are gone.

use std::collections::HashSet;

use hutch_api::{Sandbox, owner};
use hutch_attach::SandboxFacts;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;

use super::Known;
use crate::config::Egress;
use crate::live::Live;
use crate::shared::Shared;
use crate::trust;

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
        let changed = self.objects.sandboxes.take(event, |object| SandboxFacts::of(&object));
        if let Some(before) = before {
            before.difference(&self.authorities()).for_each(|gone| egress.forget(gone));
        }
        changed
    }

    /// Forgets the authority of a Pod that is gone, unless it is that of a Sandbox.
    pub(super) fn forget(&self, live: &Live, egress: &dyn Egress) {
        let pod = live.pod();
        let exists = owner::sandbox(pod.as_ref()).is_some_and(|owner| {
            let key = (live.id.namespace.clone(), owner.name.clone());
            self.objects.sandboxes.objects.get(&key).is_some_and(|sandbox| sandbox.uid == owner.uid)
        });
        if self.objects.sandboxes.complete && !exists {
            egress.forget(&trust::sandbox_of(&live.id, &pod));
        }
    }

    /// Returns the names of the authorities of all Sandboxes.
    pub(super) fn authorities(&self) -> HashSet<String> {
        let all = self.objects.sandboxes.objects.iter();
        all.map(|((namespace, _), sandbox)| trust::name(namespace, &sandbox.uid)).collect()
    }
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
        if self.done || !self.listed || !known.objects.sandboxes.complete {
            return;
        }
        self.done = true;
        let mut all = known.authorities();
        all.extend(node.all().iter().map(|live| trust::sandbox_of(&live.id, &live.pod())));
        egress.forget_others(&all);
    }
}
