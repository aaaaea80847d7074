//! Order among threads and processes that unpack.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::uses::is_at;

/// Maximum layers that one process has unpacked at once.
const MAX_UNPACKED: usize = 2;

/// Start of the names of lock files.
pub(crate) const LOCK: &str = "lock-";

static UNPACKED: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Exclusive right, among all threads and processes, to make what a lock file stands for. The file is removed on drop.
#[derive(Debug)]
pub(crate) struct Turn {
    path: PathBuf,
    _file: File,
}

impl Turn {
    /// Waits for the right. The folder of the file is trusted.
    pub(crate) fn take(path: PathBuf) -> io::Result<Turn> {
        loop {
            let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
            lock(&file)?;
            let held = file.metadata()?;
            match path.symlink_metadata() {
                Ok(found) if (found.dev(), found.ino()) == (held.dev(), held.ino()) => {
                    return Ok(Turn { path, _file: file });
                }
                // The one before has removed it.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Before the lock ends. A file that stays is used again.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Waits for the exclusive lock of a file or a folder.
pub(crate) fn lock(file: &File) -> io::Result<()> {
    loop {
        match rustix::fs::flock(file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            locked => return Ok(locked?),
        }
    }
}

/// Removes lock files of killed processes.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(LOCK)) {
        let Ok(file) = File::open(entry.path()) else { continue };
        let is_free = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_free && is_at(&file, &entry.path()) {
            // A file that stays is used again.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// One of the layers that this process unpacks at the moment.
#[derive(Debug)]
pub(crate) struct Slot;

impl Slot {
    /// Waits until fewer than the maximum are unpacked.
    pub(crate) fn take() -> Slot {
        let full = |count: &mut usize| *count >= MAX_UNPACKED;
        let mut count = ENDED.wait_while(unpacked(), full).unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        Slot
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *unpacked() -= 1;
        ENDED.notify_one();
    }
}

fn unpacked() -> MutexGuard<'static, usize> {
    UNPACKED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Returns the maximum of threads that held a thing at once.
    fn most_at_once<T>(take: impl Fn() -> T + Sync) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let held = take();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                        drop(held);
                    }
                });
            }
        });
        most.into_inner()
    }

    #[test]
    fn one_at_a_time_makes_the_same_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(most_at_once(|| Turn::take(path.clone()).unwrap()), 1);
        assert!(!path.exists());
    }

    #[test]
    fn lock_file_of_a_killed_process_is_removed_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (left, used) = (dir.path().join("lock-left"), dir.path().join("lock-used"));
        std::fs::write(&left, "").unwrap();
        let turn = Turn::take(used.clone()).unwrap();
        sweep(dir.path());
        assert!(!left.exists() && used.exists());
        drop(turn);
    }

    #[test]
    fn so_many_layers_are_unpacked_at_once() {
        let most = most_at_once(Slot::take);
        assert!((1..=MAX_UNPACKED).contains(&most), "{most}");
    }
}
