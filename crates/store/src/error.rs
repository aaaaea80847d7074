use std::path::PathBuf;

/// Why the store could not be opened, or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process holds the file.
    #[error("{0} is in use by another process")]
    Locked(PathBuf),
    /// The file was written by a later version of this program.
    #[error(
        "{path} has format {found}, newer than {known} which this version of hutch can read; use the newer hutch"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format known here.
        known: u64,
    },
    /// The file is not a store, or is damaged.
    #[error("{path} cannot be read: {cause}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        cause: String,
    },
    /// The file could not be opened or made.
    #[error("cannot open {path}: {cause}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        cause: String,
    },
    /// No room on the disk. The write was not done; it may be tried again when there is room.
    #[error("no space left on the disk that holds the store")]
    DiskFull,
    /// The disk refused the write for another reason. The write was not done.
    #[error("the store could not write: {0}")]
    Write(String),
    /// Create of a key that exists.
    #[error("the key exists")]
    Exists,
    /// Update or delete of a key that does not exist.
    #[error("the key does not exist")]
    NotFound,
    /// Update or delete of another revision than the current one.
    #[error("the key is at revision {current}")]
    Conflict {
        /// The revision that the key has.
        current: u64,
    },
    /// A watch from a revision that has left the window of events.
    #[error("revision {asked} is too old, the oldest is {oldest}")]
    Compacted {
        /// Where the watch stood.
        asked: u64,
        /// Where a watch may start.
        oldest: u64,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl Error {
    /// An error of a write to the disk.
    pub(crate) fn write(error: &redb::Error) -> Error {
        match error {
            redb::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => Error::DiskFull,
            redb::Error::Io(io) if io.kind() == std::io::ErrorKind::QuotaExceeded => Error::DiskFull,
            other => Error::Write(other.to_string()),
        }
    }

    /// The same error for another waiter of the same batch.
    pub(crate) fn again(&self) -> Error {
        match self {
            Error::DiskFull => Error::DiskFull,
            Error::Closed => Error::Closed,
            other => Error::Write(other.to_string()),
        }
    }
}
