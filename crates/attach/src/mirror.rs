//! Objects of one kind, as a watch reports them.

use std::collections::BTreeMap;

use hutch_policy::PolicyKey as Key;
use kube::ResourceExt;
use kube::runtime::watcher;

/// Objects of one kind.
#[derive(Debug)]
pub struct Mirror<V> {
    /// The objects, by namespace and name.
    pub objects: BTreeMap<Key, V>,
    /// Those of a list that is not complete yet.
    listed: BTreeMap<Key, V>,
    /// A list has been complete.
    pub complete: bool,
    /// Latest version that the watch has reported.
    pub seen: u64,
    /// That of a list that is not complete yet.
    listed_seen: u64,
}

impl<V> Default for Mirror<V> {
    fn default() -> Self {
        Mirror { objects: BTreeMap::new(), listed: BTreeMap::new(), complete: false, seen: 0, listed_seen: 0 }
    }
}

impl<V: PartialEq> Mirror<V> {
    /// Takes an event. Returns true if values have changed.
    pub fn take<K: ResourceExt>(&mut self, event: watcher::Event<K>, read: impl FnOnce(K) -> V) -> bool {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(object) => {
                self.listed_seen = self.listed_seen.max(version(&object));
                self.listed.insert(key(&object), read(object));
            }
            watcher::Event::InitDone => {
                self.objects = std::mem::take(&mut self.listed);
                self.seen = self.seen.max(self.listed_seen);
                self.complete = true;
                return true;
            }
            watcher::Event::Apply(object) => {
                self.seen = self.seen.max(version(&object));
                let (key, value) = (key(&object), read(object));
                // Most changes of an object are those of its status.
                if self.objects.get(&key) == Some(&value) {
                    return false;
                }
                self.objects.insert(key, value);
                return true;
            }
            watcher::Event::Delete(object) => {
                self.seen = self.seen.max(version(&object));
                self.objects.remove(&key(&object));
                return true;
            }
        }
        false
    }
}

/// Returns the version of an object: that of the store at its last change.
pub fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}
