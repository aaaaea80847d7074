//! Owners and dependents, as far as the watches have reported them.
//!
//! The graph only decides which objects to reconcile; deletions are decided on live objects.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::kinds::Kind;

/// Keeps an object until what it owns is gone, as far as it blocks.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Keeps an object until what it owns is let go.
pub(crate) const ORPHAN: &str = "orphan";

/// Facts that are kept of an object.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) kind: Arc<Kind>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) deleting: bool,
    pub(crate) foreground: bool,
    pub(crate) orphan: bool,
}

impl Object {
    /// `None` for metadata without a name or UID, which no server sends.
    pub(crate) fn of(kind: &Arc<Kind>, metadata: &ObjectMeta) -> Option<Self> {
        let has = |finalizer: &str| metadata.finalizers.iter().flatten().any(|f| f == finalizer);
        Some(Self {
            kind: Arc::clone(kind),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            owners: metadata.owner_references.clone().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            foreground: has(FOREGROUND),
            orphan: has(ORPHAN),
        })
    }

    /// It is being deleted and stays until what it owns is gone.
    pub(crate) fn awaits_dependents(&self) -> bool {
        self.deleting && self.foreground
    }
}

/// A dependent as its owner sees it.
#[derive(Debug, Clone)]
pub(crate) struct Dependent {
    pub(crate) object: Object,
    /// The reference has `blockOwnerDeletion`.
    pub(crate) blocks: bool,
}

/// All objects by UID.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    objects: HashMap<String, Object>,
    /// Owner to dependents; an owner need not be known.
    dependents: HashMap<String, HashSet<String>>,
}

impl Graph {
    pub(crate) fn get(&self, uid: &str) -> Option<&Object> {
        self.objects.get(uid)
    }

    /// Returns the dependents of an object. One in a namespace has none in another one, whatever is claimed there.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Dependent> {
        let namespace = self.objects.get(uid).and_then(|owner| owner.namespace.clone());
        let of = |dependent: &String| {
            let object = self.objects.get(dependent)?.clone();
            if namespace.is_some() && namespace != object.namespace {
                return None;
            }
            let reference = object.owners.iter().find(|owner| owner.uid == uid)?;
            let blocks = reference.block_owner_deletion == Some(true);
            Some(Dependent { object, blocks })
        };
        self.dependents.get(uid).into_iter().flatten().filter_map(of).collect()
    }

    /// Takes in an object that a watch reported; returns the UIDs to reconcile.
    pub(crate) fn upsert(&mut self, object: Object) -> Vec<String> {
        let mut uids = Vec::new();
        let uid = object.uid.clone();
        let before = self.objects.get(&uid).map(|old| old.owners.clone()).unwrap_or_default();
        for owner in &before {
            if !object.owners.iter().any(|now| now.uid == owner.uid) {
                self.unlink(&owner.uid, &uid);
            }
        }
        for owner in &object.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        // An owner that waits for this one may now wait no more, or must know of it.
        for owner in before.iter().chain(&object.owners) {
            let waits = self.objects.get(&owner.uid).is_some_and(Object::awaits_dependents);
            if waits && !uids.contains(&owner.uid) {
                uids.push(owner.uid.clone());
            }
        }
        let missing = object.owners.iter().any(|owner| match self.objects.get(&owner.uid) {
            None => true,
            Some(owner) => owner.awaits_dependents(),
        });
        if object.deleting && (object.foreground || object.orphan) || !object.deleting && missing {
            uids.push(uid.clone());
        }
        self.objects.insert(uid, object);
        uids
    }

    /// Takes in that an object is gone; returns the UIDs to reconcile.
    pub(crate) fn remove(&mut self, uid: &str) -> Vec<String> {
        // One that was never seen can have dependents all the same: its kind was defined after them.
        let mut uids: Vec<String> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        let Some(object) = self.objects.remove(uid) else { return uids };
        for owner in &object.owners {
            self.unlink(&owner.uid, uid);
            if self.objects.get(&owner.uid).is_some_and(Object::awaits_dependents) {
                uids.push(owner.uid.clone());
            }
        }
        uids
    }

    /// A complete list of a kind: what it does not hold is gone, and an owner that it should have held never came.
    pub(crate) fn retain(&mut self, kind: &Arc<Kind>, listed: &HashSet<String>) -> Vec<String> {
        let same = |object: &&Object| object.kind.resource == kind.resource && !listed.contains(&object.uid);
        let gone: Vec<String> = self.objects.values().filter(same).map(|object| object.uid.clone()).collect();
        let mut uids: Vec<String> = gone.iter().flat_map(|uid| self.remove(uid)).collect();
        let (group, name) = (&kind.resource.group, &kind.resource.kind);
        let of_kind = |owner: &OwnerReference| {
            let owner_group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
            owner.kind == *name && owner_group == group
        };
        let lost = |object: &&Object| {
            object.owners.iter().any(|owner| of_kind(owner) && !self.objects.contains_key(&owner.uid))
        };
        let lost = self.objects.values().filter(lost).map(|object| object.uid.clone());
        let lost: Vec<String> = lost.filter(|uid| !uids.contains(uid)).collect();
        uids.extend(lost);
        uids
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(set) = self.dependents.get_mut(owner) {
            set.remove(dependent);
            if set.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.dependents.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use kube::api::{ApiResource, GroupVersionKind};

    use super::*;

    pub(crate) fn kind(name: &str) -> Arc<Kind> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("g", "v1", name));
        Arc::new(Kind { resource, namespaced: true })
    }

    pub(crate) fn owner(uid: &str, blocks: bool) -> OwnerReference {
        OwnerReference {
            api_version: "g/v1".into(),
            kind: "K".into(),
            name: uid.into(),
            uid: uid.into(),
            block_owner_deletion: Some(blocks),
            controller: None,
        }
    }

    pub(crate) fn object(uid: &str, owners: &[OwnerReference]) -> Object {
        Object {
            kind: kind("K"),
            namespace: Some("n".into()),
            name: uid.into(),
            uid: uid.into(),
            owners: owners.to_vec(),
            deleting: false,
            foreground: false,
            orphan: false,
        }
    }

    #[test]
    fn object_that_loses_its_owner_is_reconciled() {
        let mut graph = Graph::default();
        assert!(graph.upsert(object("a", &[])).is_empty());
        assert!(graph.upsert(object("b", &[owner("a", true)])).is_empty());
        assert_eq!(graph.dependents("a").len(), 1);
        assert_eq!(graph.remove("a"), ["b"]);
        // Reported again, it is reconciled again: the owner is not known.
        assert_eq!(graph.upsert(object("b", &[owner("a", true)])), ["b"]);
        assert!(graph.remove("b").is_empty());
        assert!(graph.is_empty());
    }

    #[test]
    fn object_that_comes_before_its_owner_is_reconciled_once() {
        let mut graph = Graph::default();
        assert_eq!(graph.upsert(object("b", &[owner("a", false)])), ["b"]);
        assert!(graph.upsert(object("a", &[])).is_empty());
        assert!(graph.upsert(object("b", &[owner("a", false)])).is_empty());
    }

    #[test]
    fn waiting_owner_is_reconciled_when_its_dependents_change() {
        let mut graph = Graph::default();
        let waiting = Object { deleting: true, foreground: true, ..object("a", &[]) };
        graph.upsert(object("a", &[]));
        graph.upsert(object("b", &[owner("a", true)]));
        assert_eq!(graph.upsert(waiting), ["a"]);
        assert_eq!(graph.upsert(object("b", &[owner("a", true)])), ["a", "b"]);
        // It is taken by another owner.
        graph.upsert(object("c", &[]));
        assert_eq!(graph.upsert(object("b", &[owner("c", true)])), ["a"]);
        assert!(graph.dependents("a").is_empty());
        graph.upsert(object("d", &[owner("a", true)]));
        assert_eq!(graph.remove("d"), ["a"]);
    }

    #[test]
    fn an_object_owns_nothing_in_another_namespace() {
        let mut graph = Graph::default();
        graph.upsert(object("a", &[]));
        graph.upsert(Object { namespace: None, ..object("machine", &[]) });
        for owner_of in ["a", "machine"] {
            let other = Object { namespace: Some("m".into()), ..object("b", &[owner(owner_of, true)]) };
            graph.upsert(other);
            assert_eq!(graph.dependents(owner_of).len(), usize::from(owner_of == "machine"), "{owner_of}");
        }
    }

    #[test]
    fn a_complete_list_removes_what_is_not_in_it() {
        let mut graph = Graph::default();
        graph.upsert(object("a", &[]));
        graph.upsert(object("b", &[owner("a", true)]));
        let listed = HashSet::from(["b".to_owned()]);
        assert!(graph.retain(&kind("Other"), &listed).is_empty());
        assert_eq!(graph.retain(&kind("K"), &listed), ["b"]);
    }
}
