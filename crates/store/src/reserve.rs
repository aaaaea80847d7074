//! The file of the store, with room on the disk that nothing else can take.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::RESERVE_BYTES;

/// Wait after a failed attempt to fill up the reserve.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A file whose blocks are allocated ahead of its end. Commits then succeed on a full disk, until the reserve is used up.
#[derive(Debug)]
pub(crate) struct Reserved {
    file: File,
    inner: FileBackend,
    /// Where the allocated blocks end.
    allocated: AtomicU64,
    /// When the next attempt is made after one that failed: on a full disk each costs a commit of its journal.
    retry_at: Mutex<Instant>,
}

impl Reserved {
    pub(crate) fn new(file: File) -> Result<Reserved, DatabaseError> {
        let own = file.try_clone().map_err(|error| DatabaseError::Storage(redb::StorageError::Io(error)))?;
        let (inner, retry_at) = (FileBackend::new(file)?, Mutex::new(Instant::now()));
        let reserved = Reserved { file: own, inner, allocated: AtomicU64::new(0), retry_at };
        reserved.allocate();
        Ok(reserved)
    }

    /// Allocates what is missing up to the reserve beyond the end. On a full disk the reserve stays as large as it is, and
    /// is filled up by a later call.
    fn allocate(&self) {
        let Ok(length) = self.inner.len() else { return };
        let wanted = length.saturating_add(RESERVE_BYTES);
        if self.allocated.load(Ordering::Relaxed) >= wanted {
            return;
        }
        let mut retry_at = self.retry_at.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() < *retry_at {
            return;
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, wanted) {
            // A file system that cannot allocate ahead has no reserve.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.allocated.store(wanted, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(%error, "the reserve of the store is not complete");
                *retry_at = Instant::now() + RETRY_AFTER;
            }
        }
    }
}

impl StorageBackend for Reserved {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let shorter = len < self.inner.len()?;
        self.inner.set_len(len)?;
        if shorter {
            // The blocks beyond the new end were freed.
            self.allocated.store(0, Ordering::Relaxed);
        }
        self.allocate();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()?;
        self.allocate();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn blocks_bytes(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn blocks_are_allocated_beyond_the_end_of_the_file() {
        let file = tempfile::tempfile().unwrap();
        let reserved = Reserved::new(file.try_clone().unwrap()).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        if blocks_bytes(&file) == 0 {
            return; // This file system cannot allocate ahead.
        }
        for len in [8 << 20, 32 << 20, 1 << 20] {
            reserved.set_len(len).unwrap();
            assert_eq!(reserved.len().unwrap(), len);
            assert!(blocks_bytes(&file) >= len + RESERVE_BYTES, "{len}");
        }
    }
}
