//! Informer cache of one kind: the objects that the watch delivered and the responses to the reconciler's own writes.
//!
//! Own writes enter the cache before the next reconcile. So a reconciler never sees a state older than its own last write,
//! and does not need to remember what it has just created or deleted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock, RwLock};

use kube::{Resource, ResourceExt};

use crate::key::Key;

/// One object before and after a change.
#[derive(Debug)]
pub struct Change<K> {
    /// The object before; `None` when it is new.
    pub old: Option<Arc<K>>,
    /// The object after; `None` when it is gone.
    pub new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// Returns the last known state of the object.
    ///
    /// # Panics
    ///
    /// If the change has neither a state before nor one after.
    pub fn latest(&self) -> &Arc<K> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has a before or an after")
    }
}

/// Maximum number of deletions reported by the watch that are remembered, because responses to own requests can arrive
/// after them.
const ENDS: usize = 1024;

/// Function that returns the index terms of an object, for [`Cache::find`].
pub type Terms<K> = fn(&K) -> Vec<String>;
type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// Informer cache of one kind.
pub struct Cache<K> {
    terms: Terms<K>,
    inner: RwLock<Inner<K>>,
    listener: OnceLock<Listener<K>>,
}

struct Inner<K> {
    objects: BTreeMap<Key, Arc<K>>,
    index: HashMap<String, BTreeSet<Key>>,
    /// Uids of objects that an own request has deleted, since the watch can still deliver events from before that.
    deleted: HashMap<Key, String>,
    ended: Ends,
    /// Keys that own requests have written since the current list was requested; `None` when no list is being read.
    written: Option<BTreeSet<Key>>,
}

/// Uids of the objects whose deletion the watch reported last.
#[derive(Default)]
struct Ends {
    /// Oldest first.
    order: VecDeque<Arc<str>>,
    known: HashSet<Arc<str>>,
}

impl Ends {
    fn note(&mut self, uid: &str) {
        let uid: Arc<str> = uid.into();
        if !self.known.insert(uid.clone()) {
            return;
        }
        self.order.push_back(uid);
        if self.order.len() > ENDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn contains(&self, uid: &str) -> bool {
        self.known.contains(uid)
    }
}

/// Differences between a list and the cache.
#[derive(Debug)]
pub struct Listed<K> {
    /// Changes that were made to the cache.
    pub changes: Vec<Change<K>>,
    /// Objects that are not in the list but that an own request has written meanwhile: the list may be older.
    pub doubtful: Vec<Key>,
}

impl<K: Resource<DynamicType = ()>> Cache<K> {
    /// Returns an empty cache with an index of these terms.
    pub fn new(terms: Terms<K>) -> Self {
        let inner = Inner {
            objects: BTreeMap::new(),
            index: HashMap::new(),
            deleted: HashMap::new(),
            ended: Ends::default(),
            written: None,
        };
        Cache { terms, inner: RwLock::new(inner), listener: OnceLock::new() }
    }

    /// Sets the listener for changes; called once, before the first change.
    pub fn listen(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let first = self.listener.set(Box::new(listener)).is_ok();
        debug_assert!(first, "one listener for each cache");
    }

    /// Passes a change to the listener.
    pub fn tell(&self, change: &Change<K>) {
        if let Some(listener) = self.listener.get() {
            listener(change);
        }
    }

    /// Returns the object with that key.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// Returns all objects, by key.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// Returns the objects with that index term, by key.
    pub fn find(&self, term: &str) -> Vec<Arc<K>> {
        let inner = self.read();
        let keys = inner.index.get(term).into_iter().flatten();
        keys.filter_map(|key| inner.objects.get(key).cloned()).collect()
    }

    /// Stores an object unless the known one is as new. Does not call the listener.
    pub fn learn(&self, object: K) -> Option<Change<K>> {
        self.write().put(object, self.terms)
    }

    /// Stores the response to an own request, unless the watch has reported meanwhile that the object is gone.
    pub fn learn_own(&self, object: K) -> Option<Change<K>> {
        let mut inner = self.write();
        if object.meta().uid.as_ref().is_some_and(|uid| inner.ended.contains(uid)) {
            return None;
        }
        if let Some(written) = &mut inner.written {
            written.insert(Key::of(&object));
        }
        inner.put(object, self.terms)
    }

    /// Prepares for a new list; called before it is requested. The watch delivers no older event after this.
    pub fn begin_list(&self) {
        let mut inner = self.write();
        inner.deleted.clear();
        inner.written = Some(BTreeSet::new());
    }

    /// Removes an object that the watch reports as deleted. An object with another uid and the same name stays.
    pub fn forget(&self, object: &impl Resource<DynamicType = ()>) -> Option<Change<K>> {
        let key = Key::of(object);
        let mut inner = self.write();
        if inner.deleted.get(&key).is_some_and(|uid| Some(uid) == object.meta().uid.as_ref()) {
            inner.deleted.remove(&key);
        }
        inner.note_end(object.meta().uid.as_deref());
        if inner.objects.get(&key)?.meta().uid != object.meta().uid {
            return None;
        }
        inner.remove(&key, self.terms)
    }

    /// Removes an object that an own request has deleted completely, before the watch reports it.
    pub fn deleted(&self, key: &Key) -> Option<Change<K>> {
        let mut inner = self.write();
        let uid = inner.objects.get(key)?.uid();
        if let Some(uid) = uid {
            inner.deleted.insert(key.clone(), uid);
        }
        inner.remove(key, self.terms)
    }

    /// Removes an object until the watch delivers it again.
    pub fn lose(&self, key: &Key) -> Option<Change<K>> {
        self.write().remove(key, self.terms)
    }

    /// Stores a complete list. Objects that are not in it are removed, unless they may be newer than the list.
    /// `undecodable` has key and uid of each undecodable object of the list; these objects stay as they were known.
    pub fn replace(&self, objects: Vec<K>, undecodable: &[(Key, Option<String>)]) -> Listed<K> {
        let mut inner = self.write();
        let written = inner.written.take().unwrap_or_default();
        let mut listed: BTreeSet<Key> = objects.iter().map(Key::of).collect();
        let stays = |(key, uid): &&(Key, Option<String>)| {
            inner.objects.get(key).is_some_and(|known| known.meta().uid == *uid)
        };
        listed.extend(undecodable.iter().filter(stays).map(|(key, _)| key.clone()));
        let missing = inner.objects.keys().filter(|key| !listed.contains(key)).cloned();
        let (doubtful, missing): (Vec<_>, Vec<_>) = missing.partition(|key| written.contains(key));
        let mut changes: Vec<_> = missing.iter().filter_map(|key| inner.remove(key, self.terms)).collect();
        for change in &changes {
            inner.note_end(change.latest().meta().uid.as_deref());
        }
        changes.extend(objects.into_iter().filter_map(|object| inner.put(object, self.terms)));
        Listed { changes, doubtful }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner<K>> {
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<K: Resource<DynamicType = ()>> Inner<K> {
    fn note_end(&mut self, uid: Option<&str>) {
        if let Some(uid) = uid {
            self.ended.note(uid);
        }
    }

    fn put(&mut self, object: K, terms: Terms<K>) -> Option<Change<K>> {
        let key = Key::of(&object);
        if self.deleted.contains_key(&key) {
            if self.deleted.get(&key) == object.meta().uid.as_ref() {
                return None;
            }
            self.deleted.remove(&key);
        }
        if let Some(known) = self.objects.get(&key)
            && is_stale(&object, known.as_ref())
        {
            return None;
        }
        let old = self.remove(&key, terms).and_then(|change| change.old);
        let new = Arc::new(object);
        for term in terms(&new) {
            self.index.entry(term).or_default().insert(key.clone());
        }
        self.objects.insert(key, new.clone());
        Some(Change { old, new: Some(new) })
    }

    fn remove(&mut self, key: &Key, terms: Terms<K>) -> Option<Change<K>> {
        let old = self.objects.remove(key)?;
        for term in terms(&old) {
            if let Some(keys) = self.index.get_mut(&term) {
                keys.remove(key);
                if keys.is_empty() {
                    self.index.remove(&term);
                }
            }
        }
        Some(Change { old: Some(old), new: None })
    }
}

/// Returns true if `object` is no newer than `known`. Resource versions of one object are ordered numbers; if a server's
/// are not, the object that arrived last counts as newer.
fn is_stale<K: Resource>(object: &K, known: &K) -> bool {
    let version = |object: &K| object.meta().resource_version.as_ref()?.parse::<u64>().ok();
    match (version(object), version(known)) {
        (Some(object), Some(known)) => object <= known,
        _ => object.meta().resource_version == known.meta().resource_version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hutch_api::SandboxWarmPool as Pool;

    fn pool(name: &str, uid: &str, version: u64) -> Pool {
        let mut pool = Pool::new(name, Default::default());
        pool.metadata.namespace = Some("d".into());
        pool.metadata.uid = Some(uid.into());
        pool.metadata.resource_version = Some(version.to_string());
        pool
    }

    fn cache() -> Cache<Pool> {
        Cache::new(|pool| vec![format!("uid:{}", pool.uid().unwrap_or_default())])
    }

    fn version(cache: &Cache<Pool>) -> Option<String> {
        cache.get(&Key::new("d", "a"))?.resource_version()
    }

    #[test]
    fn older_and_equal_versions_are_ignored() {
        let cache = cache();
        assert!(cache.learn(pool("a", "1", 10)).is_some());
        assert!(cache.learn(pool("a", "1", 9)).is_none());
        assert!(cache.learn(pool("a", "1", 10)).is_none());
        assert_eq!(version(&cache).as_deref(), Some("10"));
        let change = cache.learn(pool("a", "1", 11)).unwrap();
        assert_eq!(change.old.unwrap().resource_version().as_deref(), Some("10"));
    }

    #[test]
    fn late_events_do_not_undo_an_own_delete() {
        let cache = cache();
        cache.learn(pool("a", "1", 10));
        assert!(cache.deleted(&Key::new("d", "a")).unwrap().new.is_none());
        assert!(cache.learn(pool("a", "1", 11)).is_none(), "event from before the delete");
        assert!(cache.learn(pool("a", "2", 12)).is_some(), "created again");
        assert!(cache.forget(&pool("a", "1", 12)).is_none(), "deletion of the old object");
        assert_eq!(version(&cache).as_deref(), Some("12"));
    }

    #[test]
    fn response_after_the_deletion_event_is_ignored() {
        let cache = cache();
        cache.learn(pool("a", "1", 10));
        assert!(cache.forget(&pool("a", "1", 12)).is_some());
        assert!(cache.learn_own(pool("a", "1", 11)).is_none(), "response to a delete or a patch");
        assert!(cache.learn_own(pool("a", "2", 13)).is_some(), "created again");
        cache.begin_list();
        cache.replace(Vec::new(), &[]);
        assert!(cache.learn_own(pool("a", "2", 13)).is_none(), "list without the object");
        for n in 0..2 * ENDS {
            cache.forget(&pool("a", &format!("old-{n}"), 14));
        }
        assert_eq!(cache.read().ended.order.len(), ENDS);
    }

    #[test]
    fn index_follows_changes() {
        let cache = cache();
        cache.learn(pool("a", "1", 10));
        cache.learn(pool("b", "1", 11));
        assert_eq!(cache.find("uid:1").len(), 2);
        cache.learn(pool("b", "2", 12));
        assert_eq!(cache.find("uid:1").len(), 1);
        cache.forget(&pool("a", "1", 13));
        assert!(cache.find("uid:1").is_empty());
    }

    #[test]
    fn list_removes_missing_objects_and_keeps_newer_ones() {
        let cache = cache();
        cache.learn(pool("a", "1", 10));
        cache.learn(pool("b", "2", 20));
        cache.begin_list();
        let listed = cache.replace(vec![pool("b", "2", 15), pool("c", "3", 16)], &[]);
        let names: Vec<_> =
            listed.changes.iter().map(|change| (change.latest().name_any(), change.new.is_some())).collect();
        assert_eq!(names, [("a".to_owned(), false), ("c".to_owned(), true)]);
        assert!(listed.doubtful.is_empty());
        assert_eq!(cache.get(&Key::new("d", "b")).unwrap().resource_version().as_deref(), Some("20"));
    }

    #[test]
    fn undecodable_objects_of_a_list_stay_as_known() {
        let cache = cache();
        cache.learn(pool("a", "1", 10));
        cache.learn(pool("b", "2", 11));
        cache.begin_list();
        let undecodable = |name, uid: &str| (Key::new("d", name), Some(uid.to_owned()));
        let listed = cache
            .replace(Vec::new(), &[undecodable("a", "1"), undecodable("b", "new"), undecodable("c", "3")]);
        assert_eq!(listed.changes.len(), 1);
        assert!(cache.get(&Key::new("d", "a")).is_some() && cache.get(&Key::new("d", "b")).is_none());
    }

    #[test]
    fn own_writes_survive_a_list_that_may_be_older() {
        let cache = cache();
        cache.learn_own(pool("before", "1", 10));
        cache.begin_list();
        cache.learn_own(pool("during", "2", 20));
        cache.learn(pool("gone", "3", 5));
        assert!(cache.deleted(&Key::new("d", "gone")).is_some());
        let listed = cache.replace(vec![pool("gone", "3", 5)], &[]);
        assert_eq!(listed.changes.len(), 1, "object from before the list that is not in it");
        assert_eq!(listed.doubtful, [Key::new("d", "during")]);
        assert!(cache.get(&Key::new("d", "during")).is_some());
        assert!(cache.get(&Key::new("d", "gone")).is_none(), "deleted while the list was being read");
    }
}
