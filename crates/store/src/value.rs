use std::sync::Arc;

/// A stored value: bytes on disk, and in memory the form that serves readers best.
pub trait Value: Send + Sync + Sized + 'static {
    /// Input of a write, before its revision is known.
    type Draft: Send + 'static;

    /// Makes the value of a draft. Others wait meanwhile, so it should cost microseconds.
    fn seal(draft: Self::Draft, revision: u64) -> Self;
    /// The bytes for the disk.
    fn bytes(&self) -> &[u8];
    /// Reads what [`Value::bytes`] gave.
    ///
    /// # Errors
    /// What is wrong with the bytes; opening the store then fails as damaged.
    fn open(bytes: &[u8]) -> Result<Self, String>;
}

/// A value under its key at one revision.
#[derive(Debug)]
pub struct Entry<V> {
    /// Name inside the collection.
    pub name: Arc<str>,
    /// Revision of the write that made this value.
    pub revision: u64,
    /// Revision of the create of the key.
    pub created: u64,
    /// The value.
    pub value: V,
}

/// A change of a key.
#[derive(Debug)]
pub enum Event<V> {
    /// The key is new.
    Created(Arc<Entry<V>>),
    /// The key has another value.
    Updated {
        /// The value before.
        before: Arc<Entry<V>>,
        /// The value now.
        now: Arc<Entry<V>>,
    },
    /// The key is gone.
    Deleted {
        /// The value before.
        before: Arc<Entry<V>>,
        /// The last words: the value with the revision of the deletion.
        last: Arc<Entry<V>>,
    },
}

impl<V> Clone for Event<V> {
    fn clone(&self) -> Self {
        match self {
            Event::Created(entry) => Event::Created(entry.clone()),
            Event::Updated { before, now } => Event::Updated { before: before.clone(), now: now.clone() },
            Event::Deleted { before, last } => Event::Deleted { before: before.clone(), last: last.clone() },
        }
    }
}

impl<V> Event<V> {
    /// The entry that carries the revision of the change.
    pub fn entry(&self) -> &Arc<Entry<V>> {
        match self {
            Event::Created(entry) => entry,
            Event::Updated { now, .. } => now,
            Event::Deleted { last, .. } => last,
        }
    }

    /// Revision of the change.
    pub fn revision(&self) -> u64 {
        self.entry().revision
    }
}
