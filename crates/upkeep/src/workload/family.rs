//! Workloads that an event of a dependent object concerns.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use hutch_api::{Read, owner};
use hutch_reconcile::cache::Cache;
use hutch_reconcile::controller::Object;
use hutch_reconcile::key::Key;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};

/// Maximum dependents whose last owner is remembered. Beyond that the memory starts anew, and a change of the labels of a
/// dependent is noticed at the next event of its owner.
const MAX_REMEMBERED: usize = 100_000;

/// A workload that selects its dependents by labels.
pub(crate) trait Selecting: Object {
    /// Returns the selector; `None` if it selects nothing or everything.
    fn selector(&self) -> Option<Selector>;
}

/// The workloads of one kind, and the last known owners of their dependents.
pub(super) struct Family<K> {
    workloads: Arc<Cache<Read<K>>>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Last owner of this kind, by dependent.
    owners: HashMap<Key, Key>,
    /// Dependents whose labels did not match at their last event, by owner.
    strays: HashMap<Key, BTreeSet<String>>,
    /// Number of names in `strays`.
    stray_count: usize,
}

impl Memory {
    fn add_stray(&mut self, owner: &Key, name: String) {
        if self.stray_count >= MAX_REMEMBERED {
            *self = Memory::default();
        }
        if self.strays.entry(owner.clone()).or_default().insert(name) {
            self.stray_count += 1;
        }
    }
}

impl<K: Selecting> Family<K> {
    pub(super) fn new(workloads: Arc<Cache<Read<K>>>) -> Arc<Self> {
        Arc::new(Family { workloads, memory: Mutex::default() })
    }

    /// Returns the workloads that an event of a dependent concerns: its owner, the last one, and without a controller those
    /// that select it.
    pub(super) fn of<O: ResourceExt>(&self, dependent: &O) -> Vec<Key> {
        let key = Key::of(dependent);
        let is_own = |kind: &str, version: &str| kind == K::kind(&()) && version == K::api_version(&());
        let controller = owner::controller(dependent);
        let own = controller.filter(|owner| is_own(&owner.kind, &owner.api_version));
        let own = own.map(|owner| key.beside(&owner.name));
        let mut concerned = Vec::new();
        if let Some(own) = &own
            && !self.selects(own, dependent)
        {
            self.memory().add_stray(own, key.name.clone());
        }
        if controller.is_none() {
            let all = self.workloads.all();
            let beside =
                all.iter().filter(|workload| workload.namespace().unwrap_or_default() == key.namespace);
            let adopting = beside.filter(|workload| matches(workload, dependent));
            concerned.extend(adopting.map(|workload| Key::of(&**workload)));
        }
        let last = self.remember(key, own.clone());
        for owner in own.into_iter().chain(last) {
            if !concerned.contains(&owner) {
                concerned.push(owner);
            }
        }
        concerned
    }

    /// Returns whether a workload of that name is known to select the dependent.
    fn selects(&self, workload: &Key, dependent: &impl ResourceExt) -> bool {
        self.workloads.get(workload).is_some_and(|workload| matches(&workload, dependent))
    }

    fn remember(&self, dependent: Key, owner: Option<Key>) -> Option<Key> {
        let mut memory = self.memory();
        if memory.owners.len() >= MAX_REMEMBERED {
            *memory = Memory::default();
        }
        match owner {
            Some(owner) => memory.owners.insert(dependent, owner),
            None => memory.owners.remove(&dependent),
        }
    }

    /// Takes the names of dependents that the selector of their owner may not match.
    pub(super) fn strays(&self, workload: &Key) -> BTreeSet<String> {
        let mut memory = self.memory();
        let names = memory.strays.remove(workload).unwrap_or_default();
        memory.stray_count -= names.len();
        names
    }

    /// Puts names back that could not be processed.
    pub(super) fn put_back(&self, workload: &Key, names: BTreeSet<String>) {
        let mut memory = self.memory();
        names.into_iter().for_each(|name| memory.add_stray(workload, name));
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn matches<K: Selecting>(workload: &Read<K>, dependent: &impl ResourceExt) -> bool {
    let Read::Object(workload) = workload else { return false };
    workload.selector().is_some_and(|selector| selector.matches(dependent.labels()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn pod(name: &str, app: &str, owner: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {
            "name": name, "namespace": "n", "labels": {"app": app}, "ownerReferences": owner,
        }}))
        .unwrap()
    }

    fn family() -> Arc<Family<ReplicaSet>> {
        let cache = Arc::new(Cache::new(|_| Vec::new()));
        for (name, app) in [("a", "x"), ("b", "x"), ("c", "y")] {
            let set = json!({"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"},
                "spec": {"selector": {"matchLabels": {"app": app}}}});
            cache.learn(Read::Object(serde_json::from_value(set).unwrap()));
        }
        Family::new(cache)
    }

    fn names(keys: &[Key]) -> Vec<&str> {
        keys.iter().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn event_of_a_dependent_concerns_its_owner_and_without_one_all_that_select_it() {
        let family = family();
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "a", "controller": true}]);
        assert_eq!(names(&family.of(&pod("p", "x", json!([])))), ["a", "b"]);
        assert_eq!(names(&family.of(&pod("p", "x", owner.clone()))), ["a"]);
        assert!(family.strays(&Key::new("n", "a")).is_empty());
        // It lost its labels: the owner has to release it.
        assert_eq!(names(&family.of(&pod("p", "y", owner))), ["a"]);
        assert_eq!(family.strays(&Key::new("n", "a")), BTreeSet::from(["p".to_owned()]));
        // It lost its owner as well: the last one is one Pod short.
        assert_eq!(names(&family.of(&pod("p", "y", json!([])))), ["c", "a"]);
        assert_eq!(names(&family.of(&pod("p", "y", json!([])))), ["c"]);
    }

    #[test]
    fn pod_of_a_sandbox_concerns_no_workload() {
        let owner = json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "a", "uid": "a", "controller": true}]);
        assert!(family().of(&pod("p", "x", owner)).is_empty());
    }
}
