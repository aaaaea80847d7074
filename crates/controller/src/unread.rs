//! Objects of one kind that cannot be read: what is known of them beside, and why.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use crate::key::Key;
use crate::owner;

type Listener<K> = Box<dyn Fn(&PartialObjectMeta<K>) + Send + Sync>;

pub(crate) struct Unread<K> {
    objects: Mutex<HashMap<Key, (PartialObjectMeta<K>, String)>>,
    listener: OnceLock<Listener<K>>,
}

impl<K> Default for Unread<K> {
    fn default() -> Self {
        Unread { objects: Mutex::default(), listener: OnceLock::new() }
    }
}

impl<K: Resource<DynamicType = ()> + Clone> Unread<K> {
    /// Who is told when one comes, changes or goes; set once, before the first.
    pub(crate) fn listen(&self, listener: impl Fn(&PartialObjectMeta<K>) + Send + Sync + 'static) {
        let first = self.listener.set(Box::new(listener)).is_ok();
        debug_assert!(first, "one listener for each kind");
    }

    /// Takes note of one. Whether the problem is new.
    pub(crate) fn put(&self, object: PartialObjectMeta<K>, problem: &str) -> bool {
        let before = self.objects().insert(Key::of(&object), (object.clone(), problem.to_owned()));
        self.tell(&object);
        before.is_none_or(|(_, before)| before != problem)
    }

    /// It can be read now, or is gone.
    pub(crate) fn remove(&self, key: &Key) {
        let removed = self.objects().remove(key);
        if let Some((object, _)) = removed {
            self.tell(&object);
        }
    }

    /// Only these are there, says a list.
    pub(crate) fn retain(&self, listed: &[(Key, Option<String>)]) {
        let gone: Vec<Key> = {
            let objects = self.objects();
            objects.keys().filter(|key| !listed.iter().any(|(listed, _)| listed == *key)).cloned().collect()
        };
        gone.iter().for_each(|key| self.remove(key));
    }

    /// Those that the owner controls.
    pub(crate) fn controlled_by(&self, owner: &impl Resource) -> Vec<PartialObjectMeta<K>> {
        let objects = self.objects();
        let all = objects.values().map(|(object, _)| object);
        let mut found: Vec<_> =
            all.filter(|object| owner::is_controlled_by(*object, owner)).cloned().collect();
        found.sort_by_key(ResourceExt::name_any);
        found
    }

    fn tell(&self, object: &PartialObjectMeta<K>) {
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
    fn each_change_is_told_and_each_problem_is_new_once() {
        let (unread, told) = (Unread::<Sandbox>::default(), Arc::new(AtomicUsize::new(0)));
        let counter = told.clone();
        unread.listen(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let (mine, other) = (pool("1"), pool("2"));
        assert!(unread.put(member("b", &mine), "odd"));
        assert!(!unread.put(member("b", &mine), "odd"));
        assert!(unread.put(member("b", &mine), "odder"));
        assert!(unread.put(member("a", &mine), "odd") && unread.put(member("c", &other), "odd"));
        let names = |of| unread.controlled_by(of).iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        assert_eq!((names(&mine), names(&other)), (vec!["a".into(), "b".into()], vec!["c".to_owned()]));
        unread.retain(&[(Key::new("", "b"), None), (Key::new("", "new"), None)]);
        assert_eq!((names(&mine), names(&other)), (vec!["b".to_owned()], vec![]));
        unread.remove(&Key::new("", "b"));
        unread.remove(&Key::new("", "b"));
        assert_eq!((names(&mine).len(), told.load(Ordering::Relaxed)), (0, 8));
    }
}
