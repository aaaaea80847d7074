use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::disk::{self, Disk, Opener};
use crate::reserve::Reserved;
use crate::sequence::{Change, Sequencer};
use crate::state::State;
use crate::value::{Entry, Value};
use crate::watch::Watch;
use crate::writer;

/// A handle to the store; clones share it. When the last one is dropped the file is closed soon after;
/// [`Store::close`] waits for that.
pub struct Store<V: Value> {
    /// State on disk.
    durable: Arc<RwLock<State<V>>>,
    sequencer: Sequencer<V>,
    /// `true` when this handle sees writes, and is answered, before they are on disk.
    ahead: bool,
}

impl<V: Value> Clone for Store<V> {
    fn clone(&self) -> Self {
        Store { durable: self.durable.clone(), sequencer: self.sequencer.clone(), ahead: self.ahead }
    }
}

/// Which part of a collection a list shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Page<'a> {
    /// Only names that start with this.
    pub prefix: &'a str,
    /// Only names after this one.
    pub after: Option<&'a str>,
    /// At most so many; `None` is all.
    pub limit: Option<usize>,
}

/// Entries of a collection at one revision, in order of name.
pub struct List<V> {
    /// Revision of the whole store at that moment. A watch from here misses nothing.
    pub revision: u64,
    /// The entries.
    pub entries: Vec<Arc<Entry<V>>>,
    /// How many more there are beyond the limit.
    pub remaining: usize,
}

impl<V: Value> Store<V> {
    /// Opens or makes the file `objects.redb` in a folder (made with mode 0700 when it is missing).
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Newer`], [`Error::Damaged`], [`Error::DiskFull`], [`Error::Open`].
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("objects.redb");
        let cannot = |cause: std::io::Error| match cause.kind() {
            std::io::ErrorKind::StorageFull => Error::DiskFull,
            _ => Error::Open { path: path.clone(), cause: cause.to_string() },
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(cannot)?;
        let file = path.clone();
        let opener: Opener = Box::new(move || {
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&file)
                .map_err(|error| redb::DatabaseError::Storage(redb::StorageError::Io(error)))?;
            disk::builder().create_with_backend(Reserved::new(file)?)
        });
        Self::with_opener(&path, opener)
    }

    /// A store that lives as long as its handles and never touches a disk.
    ///
    /// # Errors
    /// As [`Store::open`]; none is expected.
    pub fn volatile() -> Result<Self, Error> {
        let opener: Opener =
            Box::new(|| disk::builder().create_with_backend(redb::backends::InMemoryBackend::new()));
        Self::with_opener(Path::new("(memory)"), opener)
    }

    pub(crate) fn with_opener(path: &Path, opener: Opener) -> Result<Self, Error> {
        let disk = Disk::open(path, opener)?;
        let loaded = disk.load()?;
        let (queue, requests) = mpsc::unbounded_channel();
        let sequencer = Sequencer::new(loaded.fork(), queue);
        let durable = Arc::new(RwLock::new(loaded));
        let (seen, shared) = (sequencer.state().clone(), durable.clone());
        std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer::run(disk, &shared, &seen, requests))
            .map_err(|cause| Error::Open { path: path.into(), cause: cause.to_string() })?;
        Ok(Store { durable, sequencer, ahead: false })
    }

    /// A handle that runs ahead of the disk: it sees every write at once and is answered at once. What it sees is on
    /// disk before anything later is; when the disk refuses it is taken back, and watches get
    /// [`Error::Compacted`].
    ///
    /// For those whose every act is a write to this store, so that an act and its cause are lost together.
    #[must_use]
    pub fn ahead(&self) -> Store<V> {
        Store { ahead: true, ..self.clone() }
    }

    fn state(&self) -> &Arc<RwLock<State<V>>> {
        if self.ahead { self.sequencer.state() } else { &self.durable }
    }

    fn read(&self) -> RwLockReadGuard<'_, State<V>> {
        self.state().read().expect("a holder of the lock never panics")
    }

    /// The value of a key as the next write of it finds it, on disk or not yet.
    pub fn latest(&self, collection: &str, name: &str) -> Option<Arc<Entry<V>>> {
        let ahead = self.sequencer.state().read().expect("a holder of the lock never panics");
        ahead.existing(collection)?.live.get(name).cloned()
    }

    /// Waits until a value that [`Store::latest`] gave may be shown through this handle. False when it was taken back or
    /// replaced meanwhile.
    pub async fn settled(&self, collection: &str, entry: &Entry<V>) -> bool {
        let mut commits = self.durable.read().expect("a holder of the lock never panics").commits();
        loop {
            let is = |found: Option<Arc<Entry<V>>>| found.is_some_and(|f| f.revision == entry.revision);
            commits.borrow_and_update();
            if is(self.get(collection, &entry.name)) {
                return true;
            }
            if !is(self.latest(collection, &entry.name)) || commits.changed().await.is_err() {
                return false;
            }
        }
    }

    /// The value of a key.
    pub fn get(&self, collection: &str, name: &str) -> Option<Arc<Entry<V>>> {
        self.read().existing(collection)?.live.get(name).cloned()
    }

    /// Entries of a collection.
    pub fn list(&self, collection: &str, page: Page<'_>) -> List<V> {
        let state = self.read();
        let limit = page.limit.unwrap_or(usize::MAX);
        let (mut entries, mut remaining) = (Vec::new(), 0);
        if let Some(collection) = state.existing(collection) {
            for entry in collection.range(page.prefix, page.after) {
                if entries.len() < limit {
                    entries.push(entry.clone());
                } else {
                    remaining += 1;
                }
            }
        }
        List { revision: state.revision, entries, remaining }
    }

    /// Entries of a collection as they were at an earlier revision.
    ///
    /// # Errors
    /// [`Error::Compacted`] when changes after that revision are no longer known.
    pub fn list_at(&self, collection: &str, page: Page<'_>, revision: u64) -> Result<List<V>, Error> {
        let state = self.read();
        let mut list = List { revision, entries: Vec::new(), remaining: 0 };
        let Some(collection) = state.existing(collection) else { return Ok(list) };
        if revision < collection.compacted() {
            return Err(Error::Compacted { asked: revision, oldest: collection.compacted() });
        }
        let earlier = collection.differences(revision);
        let within =
            |name: &str| name.starts_with(page.prefix) && page.after.is_none_or(|after| name > after);
        let unchanged = collection.range(page.prefix, page.after);
        let unchanged = unchanged.filter(|entry| !earlier.contains_key(&entry.name));
        let changed = earlier.values().flatten().filter(|entry| within(&entry.name));
        list.entries = unchanged.chain(changed).cloned().collect();
        list.entries.sort_by(|one, other| one.name.cmp(&other.name));
        let limit = page.limit.unwrap_or(usize::MAX).min(list.entries.len());
        list.remaining = list.entries.len() - limit;
        list.entries.truncate(limit);
        Ok(list)
    }

    /// How many keys of a collection start with a prefix.
    pub fn count(&self, collection: &str, prefix: &str) -> usize {
        self.read().existing(collection).map_or(0, |collection| collection.range(prefix, None).count())
    }

    /// Names of the collections that were ever used since the store was opened, in no order.
    pub fn collections(&self) -> Vec<String> {
        self.read().names().map(str::to_owned).collect()
    }

    /// Revision of the newest change in any of these collections; 0 when there was none. What was compiled from their
    /// entries is up to date as long as it stays the same.
    pub fn changed(&self, collections: &[&str]) -> u64 {
        self.read().changed(collections)
    }

    /// Revision of the last write.
    pub fn current_revision(&self) -> u64 {
        self.read().revision
    }

    /// Watches the keys with a prefix for changes after a revision.
    ///
    /// # Errors
    /// [`Error::Compacted`] when events after that revision are no longer known.
    pub fn watch(&self, collection: &str, prefix: &str, after: u64) -> Result<Watch<V>, Error> {
        Watch::new(self.state().clone(), collection, prefix, after)
    }

    /// Forgets events up to a revision.
    pub fn compact(&self, revision: u64) {
        self.state().write().expect("a holder of the lock never panics").compact(revision);
    }

    /// Puts a new key.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::DiskFull`], [`Error::Write`], [`Error::Closed`].
    pub async fn create(
        &self,
        collection: &str,
        name: &str,
        draft: V::Draft,
    ) -> Result<Arc<Entry<V>>, Error> {
        self.write(collection, name, Change::Create(draft)).await
    }

    /// Replaces the value of a key that is at the revision expected.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`], and those of a disk.
    pub async fn update(
        &self,
        collection: &str,
        name: &str,
        expected: u64,
        draft: V::Draft,
    ) -> Result<Arc<Entry<V>>, Error> {
        self.write(collection, name, Change::Update { expected, draft }).await
    }

    /// Removes a key that is at the revision expected. `last` is what watches are shown, sealed with the revision
    /// of the deletion.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`], and those of a disk.
    pub async fn delete(
        &self,
        collection: &str,
        name: &str,
        expected: u64,
        last: V::Draft,
    ) -> Result<Arc<Entry<V>>, Error> {
        self.write(collection, name, Change::Delete { expected, last }).await
    }

    async fn write(&self, collection: &str, name: &str, change: Change<V>) -> Result<Arc<Entry<V>>, Error> {
        let (entry, on_disk) = self.sequencer.write(collection, name, change).await?;
        if !self.ahead {
            on_disk.await.map_err(|_| Error::Closed)??;
        }
        Ok(entry)
    }

    /// Waits until all writes before are on disk and the file is closed. Later writes get [`Error::Closed`];
    /// reads continue.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.sequencer.close(done) {
            // An error means that the writer is gone, so the file is closed.
            let _ = closed.await;
        }
    }
}
