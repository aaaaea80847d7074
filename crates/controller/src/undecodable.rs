//! Objects of one kind that cannot be decoded: their metadata, and the reason.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use crate::key::Key;
use crate::owner;

type Listener<K> = Box<dyn Fn(&PartialObjectMeta<K>) + Send + Sync>;

pub(crate) struct Undecodable<K> {
    objects: Mutex<HashMap<Key, (PartialObjectMeta<K>, String)>>,
    listener: OnceLock<Listener<K>>,
}

impl<K> Default for Undecodable<K> {
    fn default() -> Self {
        Undecodable { objects: Mutex::default(), listener: OnceLock::new() }
    }
}

impl<K: Resource<DynamicType = ()> + Clone> Undecodable<K> {
    /// Sets the listener for each addition, change and removal; called once, before the first.
    pub(crate) fn listen(&self, listener: impl Fn(&PartialObjectMeta<K>) + Send + Sync + 'static) {
        let first = self.listener.set(Box::new(listener)).is_ok();
        debug_assert!(first, "one listener for each kind");
    }

    /// Records an object. Returns whether its problem is new.
    pub(crate) fn put(&self, object: PartialObjectMeta<K>, problem: &str) -> bool {
        let before = self.objects().insert(Key::of(&object), (object.clone(), problem.to_owned()));
        self.notify(&object);
        before.is_none_or(|(_, before)| before != problem)
    }

    /// Removes an object that is decodable now, or gone.
    pub(crate) fn remove(&self, key: &Key) {
        let removed = self.objects().remove(key);
        if let Some((object, _)) = removed {
            self.notify(&object);
        }
    }

    /// Removes all objects that a complete list does not contain.
    pub(crate) fn retain(&self, listed: &[(Key, Option<String>)]) {
        let gone: Vec<Key> = {
            let objects = self.objects();
            objects.keys().filter(|key| !listed.iter().any(|(listed, _)| listed == *key)).cloned().collect()
        };
        gone.iter().for_each(|key| self.remove(key));
    }

    /// Returns the objects that the owner controls, by name.
    pub(crate) fn controlled_by(&self, owner: &impl Resource) -> Vec<PartialObjectMeta<K>> {
        let objects = self.objects();
        let all = objects.values().map(|(object, _)| object);
        let mut found: Vec<_> =
            all.filter(|object| owner::is_controlled_by(*object, owner)).cloned().collect();
        found.sort_by_key(ResourceExt::name_any);
        found
    }

    fn notify(&self, object: &PartialObjectMeta<K>) {
        if let Some(listener) = self.listener.get() {
            listener(object);
        }
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<Key, (PartialObjectMeta<K>, String)>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hutch_api::{Sandbox, SandboxWarmPool};
    use kube::core::{ObjectMeta, PartialObjectMetaExt};

    use super::*;

    fn pool(uid: &str) -> SandboxWarmPool {
        let mut pool = SandboxWarmPool::new("p", Default::default());
        pool.metadata.uid = Some(uid.into());
        pool
    }

    fn member(name: &str, of: &SandboxWarmPool) -> PartialObjectMeta<Sandbox> {
        let owners = Some(vec![owner::reference(of)]);
        let metadata =
            ObjectMeta { name: Some(name.into()), owner_references: owners, ..ObjectMeta::default() };
        metadata.into_response_partial()
    }

    #[test]
    fn each_change_is_reported_and_each_problem_is_new_once() {
        let (undecodable, calls) = (Undecodable::<Sandbox>::default(), Arc::new(AtomicUsize::new(0)));
        let counter = calls.clone();
        undecodable.listen(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let (mine, other) = (pool("1"), pool("2"));
        assert!(undecodable.put(member("b", &mine), "odd"));
        assert!(!undecodable.put(member("b", &mine), "odd"));
        assert!(undecodable.put(member("b", &mine), "odder"));
        assert!(undecodable.put(member("a", &mine), "odd") && undecodable.put(member("c", &other), "odd"));
        let names = |of| undecodable.controlled_by(of).iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        assert_eq!((names(&mine), names(&other)), (vec!["a".into(), "b".into()], vec!["c".to_owned()]));
        undecodable.retain(&[(Key::new("", "b"), None), (Key::new("", "new"), None)]);
        assert_eq!((names(&mine), names(&other)), (vec!["b".to_owned()], vec![]));
        undecodable.remove(&Key::new("", "b"));
        undecodable.remove(&Key::new("", "b"));
        assert_eq!((names(&mine).len(), calls.load(Ordering::Relaxed)), (0, 8));
    }
}
