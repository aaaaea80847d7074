//! The controllers' picture of one kind: what the watch told and, at once, what their own writes returned.
//!
//! Because own writes are in it before the next look, a reconciler never sees a state older than its own last write, so
//! it needs no memory of what it has just created or deleted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock, RwLock};

use kube::{Resource, ResourceExt};

use crate::key::Key;

/// One object before and after.
#[derive(Debug)]
pub(crate) struct Change<K> {
    pub(crate) old: Option<Arc<K>>,
    pub(crate) new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The object as it is, or as it was last.
    pub(crate) fn latest(&self) -> &Arc<K> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has a before or an after")
    }
}

/// Ends told by the watch that are remembered, for the answers to own requests that come after them.
const ENDS: usize = 1024;

/// The index terms of an object: what [`Cache::find`] can be asked for.
pub(crate) type Terms<K> = fn(&K) -> Vec<String>;
type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

pub(crate) struct Cache<K> {
    terms: Terms<K>,
    inner: RwLock<Inner<K>>,
    listener: OnceLock<Listener<K>>,
}

struct Inner<K> {
    objects: BTreeMap<Key, Arc<K>>,
    index: HashMap<String, BTreeSet<Key>>,
    /// Uids of objects that an own request has deleted: events from before that are still under way.
    deleted: HashMap<Key, String>,
    ended: Ends,
    /// What own requests have written since the list that is being read was asked for; nothing while none is.
    written: Option<BTreeSet<Key>>,
}

/// Uids of the objects of which the watch told the end last.
#[derive(Default)]
struct Ends {
    /// The oldest first.
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

/// What a list brought.
#[derive(Debug)]
pub(crate) struct Listed<K> {
    pub(crate) changes: Vec<Change<K>>,
    /// Objects that the list lacks and an own request has written meanwhile: the list may be from before that.
    pub(crate) doubtful: Vec<Key>,
}

impl<K: Resource<DynamicType = ()>> Cache<K> {
    pub(crate) fn new(terms: Terms<K>) -> Self {
        let inner = Inner {
            objects: BTreeMap::new(),
            index: HashMap::new(),
            deleted: HashMap::new(),
            ended: Ends::default(),
            written: None,
        };
        Cache { terms, inner: RwLock::new(inner), listener: OnceLock::new() }
    }

    /// Who is told of changes; set once, before the first of them.
    pub(crate) fn listen(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let first = self.listener.set(Box::new(listener)).is_ok();
        debug_assert!(first, "one listener for each cache");
    }

    /// Tells the listener.
    pub(crate) fn tell(&self, change: &Change<K>) {
        if let Some(listener) = self.listener.get() {
            listener(change);
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// The objects with that index term, by name.
    pub(crate) fn find(&self, term: &str) -> Vec<Arc<K>> {
        let inner = self.read();
        let keys = inner.index.get(term).into_iter().flatten();
        keys.filter_map(|key| inner.objects.get(key).cloned()).collect()
    }

    /// Takes an object in, unless it is older than what is known. Does not tell the listener.
    pub(crate) fn learn(&self, object: K) -> Option<Change<K>> {
        self.write().put(object, self.terms)
    }

    /// The same, for the answer to an own request: the watch may have told meanwhile that the object is gone.
    pub(crate) fn learn_own(&self, object: K) -> Option<Change<K>> {
        let mut inner = self.write();
        if object.meta().uid.as_ref().is_some_and(|uid| inner.ended.contains(uid)) {
            return None;
        }
        if let Some(written) = &mut inner.written {
            written.insert(Key::of(&object));
        }
        inner.put(object, self.terms)
    }

    /// A list is about to be asked for. No event from before it will come any more.
    pub(crate) fn begin_list(&self) {
        let mut inner = self.write();
        inner.deleted.clear();
        inner.written = Some(BTreeSet::new());
    }

    /// Takes note that the object was deleted; one that was made anew under that name stays.
    pub(crate) fn forget(&self, object: &impl Resource<DynamicType = ()>) -> Option<Change<K>> {
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

    /// Takes note that an own request deleted the object for good, ahead of the watch.
    pub(crate) fn deleted(&self, key: &Key) -> Option<Change<K>> {
        let mut inner = self.write();
        let uid = inner.objects.get(key)?.uid();
        if let Some(uid) = uid {
            inner.deleted.insert(key.clone(), uid);
        }
        inner.remove(key, self.terms)
    }

    /// Drops the object until the watch speaks of it again.
    pub(crate) fn lose(&self, key: &Key) -> Option<Change<K>> {
        self.write().remove(key, self.terms)
    }

    /// Takes in a complete list: what it lacks is gone, unless it may be newer than the list. What was listed and cannot be
    /// read, by key and uid, stays as it was known.
    pub(crate) fn replace(&self, objects: Vec<K>, unread: &[(Key, Option<String>)]) -> Listed<K> {
        let mut inner = self.write();
        let written = inner.written.take().unwrap_or_default();
        let mut listed: BTreeSet<Key> = objects.iter().map(Key::of).collect();
        let stays = |(key, uid): &&(Key, Option<String>)| {
            inner.objects.get(key).is_some_and(|known| known.meta().uid == *uid)
        };
        listed.extend(unread.iter().filter(stays).map(|(key, _)| key.clone()));
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

/// Whether `object` is no newer than `known`. Resource versions of one object are ordered numbers; where a server's are
/// not, whatever came last is taken.
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
    fn older_and_equal_versions_change_nothing() {
        let cache = cache();
        assert!(cache.learn(pool("a", "1", 10)).is_some());
        assert!(cache.learn(pool("a", "1", 9)).is_none());
        assert!(cache.learn(pool("a", "1", 10)).is_none());
        assert_eq!(version(&cache).as_deref(), Some("10"));
        let change = cache.learn(pool("a", "1", 11)).unwrap();
        assert_eq!(change.old.unwrap().resource_version().as_deref(), Some("10"));
    }

    #[test]
    fn an_own_delete_outlives_late_events() {
        let cache = cache();
        cache.learn(pool("a", "1", 10));
        assert!(cache.deleted(&Key::new("d", "a")).unwrap().new.is_none());
        assert!(cache.learn(pool("a", "1", 11)).is_none(), "an event from before the delete");
        assert!(cache.learn(pool("a", "2", 12)).is_some(), "made anew");
        assert!(cache.forget(&pool("a", "1", 12)).is_none(), "the old one's end is not the new one's");
        assert_eq!(version(&cache).as_deref(), Some("12"));
    }

    #[test]
    fn an_answer_that_comes_after_the_end_changes_nothing() {
        let cache = cache();
        cache.learn(pool("a", "1", 10));
        assert!(cache.forget(&pool("a", "1", 12)).is_some());
        assert!(cache.learn_own(pool("a", "1", 11)).is_none(), "the answer to a delete or a patch");
        assert!(cache.learn_own(pool("a", "2", 13)).is_some(), "made anew");
        cache.begin_list();
        cache.replace(Vec::new(), &[]);
        assert!(cache.learn_own(pool("a", "2", 13)).is_none(), "a list told of the end");
        for n in 0..2 * ENDS {
            cache.forget(&pool("a", &format!("old-{n}"), 14));
        }
        assert_eq!(cache.read().ended.order.len(), ENDS);
    }

    #[test]
    fn the_index_follows() {
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
    fn a_list_is_the_whole_truth() {
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
    fn what_cannot_be_read_stays_as_it_was_known() {
        let cache = cache();
        cache.learn(pool("a", "1", 10));
        cache.learn(pool("b", "2", 11));
        cache.begin_list();
        let unread = |name, uid: &str| (Key::new("d", name), Some(uid.to_owned()));
        let listed =
            cache.replace(Vec::new(), &[unread("a", "1"), unread("b", "made anew"), unread("c", "3")]);
        assert_eq!(listed.changes.len(), 1);
        assert!(cache.get(&Key::new("d", "a")).is_some() && cache.get(&Key::new("d", "b")).is_none());
    }

    #[test]
    fn own_writes_outlive_a_list_that_may_be_older() {
        let cache = cache();
        cache.learn_own(pool("before", "1", 10));
        cache.begin_list();
        cache.learn_own(pool("during", "2", 20));
        cache.learn(pool("gone", "3", 5));
        assert!(cache.deleted(&Key::new("d", "gone")).is_some());
        let listed = cache.replace(vec![pool("gone", "3", 5)], &[]);
        assert_eq!(listed.changes.len(), 1, "what was there before and is not listed is gone");
        assert_eq!(listed.doubtful, [Key::new("d", "during")]);
        assert!(cache.get(&Key::new("d", "during")).is_some());
        assert!(cache.get(&Key::new("d", "gone")).is_none(), "deleted while the list was under way");
    }
}
