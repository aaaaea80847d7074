use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;

use crate::value::{Entry, Event, Value};
use crate::{WINDOW_BYTES, WINDOW_EVENTS};

/// All live values and the recent events, as of one revision.
pub(crate) struct State<V> {
    /// Revision of the last write.
    pub(crate) revision: u64,
    /// Watches may start here or later in collections that have no events yet.
    floor: u64,
    collections: HashMap<Box<str>, Collection<V>>,
    /// Rung after every commit, and after every one that failed.
    commits: watch::Sender<()>,
}

/// One collection: live values, event window, and the bell that wakes its watches.
pub(crate) struct Collection<V> {
    pub(crate) live: BTreeMap<Arc<str>, Arc<Entry<V>>>,
    window: VecDeque<Event<V>>,
    window_bytes: usize,
    /// Revision of the newest event that has left the window.
    compacted: u64,
    /// Revision of the newest change.
    changed: u64,
    bell: watch::Sender<u64>,
}

impl<V: Value> State<V> {
    pub(crate) fn new(revision: u64) -> Self {
        State { revision, floor: revision, collections: HashMap::new(), commits: watch::Sender::new(()) }
    }

    /// Puts a value read from disk.
    pub(crate) fn load(&mut self, collection: &str, entry: Entry<V>) {
        let collection = self.collection(collection);
        collection.changed = collection.changed.max(entry.revision);
        collection.live.insert(entry.name.clone(), Arc::new(entry));
    }

    pub(crate) fn collection(&mut self, name: &str) -> &mut Collection<V> {
        if !self.collections.contains_key(name) {
            self.collections.insert(name.into(), Collection::new(self.floor));
        }
        self.collections.get_mut(name).expect("was inserted above")
    }

    pub(crate) fn existing(&self, name: &str) -> Option<&Collection<V>> {
        self.collections.get(name)
    }

    /// Revision of the newest change in any of these collections; 0 when there was none.
    pub(crate) fn changed(&self, collections: &[&str]) -> u64 {
        let changed = |name: &&str| self.existing(name).map_or(0, |collection| collection.changed);
        collections.iter().map(changed).max().unwrap_or_default()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.collections.keys().map(|name| &**name)
    }

    /// Makes a change visible.
    pub(crate) fn apply(&mut self, collection: &str, event: Event<V>) {
        self.revision = event.revision();
        self.collection(collection).apply(event);
    }

    /// Wakes the watches of the collections named.
    pub(crate) fn ring<'a>(&self, collections: impl Iterator<Item = &'a str>) {
        for name in collections {
            if let Some(collection) = self.collections.get(name) {
                collection.bell.send_replace(self.revision);
            }
        }
        self.commits.send_replace(());
    }

    /// Notified by every [`State::ring`].
    pub(crate) fn commits(&self) -> watch::Receiver<()> {
        self.commits.subscribe()
    }

    /// A second state with the same values and no events.
    pub(crate) fn fork(&self) -> State<V> {
        let mut fork = State::new(self.revision);
        for (name, collection) in &self.collections {
            let copy = fork.collection(name);
            copy.live = collection.live.clone();
            copy.changed = collection.changed;
        }
        fork
    }

    /// Goes back to the values of another state. The revisions that were given out are not used again, and every watch
    /// has to start anew.
    pub(crate) fn reset(&mut self, other: &State<V>) {
        self.revision += 1;
        self.floor = self.revision;
        for (name, collection) in &mut self.collections {
            collection.live = other.existing(name).map(|other| other.live.clone()).unwrap_or_default();
            collection.window.clear();
            collection.window_bytes = 0;
            collection.compacted = self.revision;
            collection.changed = self.revision;
            collection.bell.send_replace(self.revision);
        }
    }

    /// Drops events up to a revision.
    pub(crate) fn compact(&mut self, revision: u64) {
        let revision = revision.min(self.revision);
        self.floor = self.floor.max(revision);
        for collection in self.collections.values_mut() {
            collection.compact(revision);
        }
    }
}

impl<V: Value> Collection<V> {
    fn new(compacted: u64) -> Self {
        Collection {
            live: BTreeMap::new(),
            window: VecDeque::new(),
            window_bytes: 0,
            compacted,
            changed: 0,
            bell: watch::Sender::new(0),
        }
    }

    fn apply(&mut self, event: Event<V>) {
        self.changed = event.revision();
        match &event {
            Event::Created(entry) | Event::Updated { now: entry, .. } => {
                self.live.insert(entry.name.clone(), entry.clone());
            }
            Event::Deleted { last, .. } => {
                self.live.remove(&last.name);
            }
        }
        self.window_bytes += event.entry().value.bytes().len();
        self.window.push_back(event);
        while self.window.len() > WINDOW_EVENTS || self.window_bytes > WINDOW_BYTES {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(event) = self.window.pop_front() {
            self.window_bytes -= event.entry().value.bytes().len();
            self.compacted = event.revision();
        }
    }

    fn compact(&mut self, revision: u64) {
        while self.window.front().is_some_and(|event| event.revision() <= revision) {
            self.forget_oldest();
        }
        self.compacted = self.compacted.max(revision);
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }

    /// Events after a revision, oldest first.
    pub(crate) fn events_after(&self, revision: u64) -> impl Iterator<Item = &Event<V>> {
        let start = self.window.partition_point(|event| event.revision() <= revision);
        self.window.range(start..)
    }

    /// Entries that differed at an earlier revision, by name; `None` for names that did not exist then.
    pub(crate) fn differences(&self, revision: u64) -> BTreeMap<Arc<str>, Option<Arc<Entry<V>>>> {
        let mut before = BTreeMap::new();
        for event in self.events_after(revision) {
            let earlier = match event {
                Event::Created(_) => None,
                Event::Updated { before, .. } | Event::Deleted { before, .. } => Some(before.clone()),
            };
            // The first change since then has the value of then.
            before.entry(event.entry().name.clone()).or_insert(earlier);
        }
        before
    }

    /// Live entries whose name starts with the prefix, in order of name, after a name.
    pub(crate) fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Entry<V>>> {
        let start = match after {
            Some(name) if name >= prefix => Bound::Excluded(name),
            _ => Bound::Included(prefix),
        };
        self.live
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(move |(name, _)| name.starts_with(prefix))
            .map(|(_, entry)| entry)
    }
}
