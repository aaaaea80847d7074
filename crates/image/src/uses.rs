//! Users of images and the time of the last use: a locked file for each image and each unpacked layer.
//!
//! A user has the file locked, shared with others, until it drops its [`Hold`]. A removal takes the exclusive lock without
//! waiting. The kernel ends the locks of a killed process. The file's time of change is that of the last use.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::PathSegment;

/// Folder of the files, in that of the store.
const USES: PathSegment = PathSegment::fixed("uses");
/// Maximum processes that a message names.
const MAX_NAMED: usize = 5;

/// Keeps an image and its layers from being removed until the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct Hold {
    _uses: Vec<Arc<Use>>,
}

impl Hold {
    pub(crate) fn of(uses: Vec<Arc<Use>>) -> Hold {
        Hold { _uses: uses }
    }
}

/// Images are compared by what they are, not by who uses them.
impl PartialEq for Hold {
    fn eq(&self, _: &Hold) -> bool {
        true
    }
}

impl Eq for Hold {}

/// A use by this process, shared by all of its holds.
#[derive(Debug)]
pub(crate) struct Use(File);

impl Drop for Use {
    fn drop(&mut self) {
        touch(&self.0);
    }
}

/// Uses of a store by this process.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<HashMap<String, Weak<Use>>>);

impl Uses {
    /// Records a use. Waits for a removal of the same thing.
    pub(crate) fn hold(&self, store: &Path, name: &PathSegment) -> io::Result<Arc<Use>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = all.get(name.as_str()).and_then(Weak::upgrade) {
            touch(&held.0);
            return Ok(held);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(USES.below(store))?;
        let path = path(store, name);
        let held = loop {
            let file = open(&path)?;
            while let Err(errno) = rustix::fs::flock(&file, FlockOperation::LockShared) {
                if errno != Errno::INTR {
                    return Err(errno.into());
                }
            }
            // A removal ends with the removal of its file.
            if is_at(&file, &path) {
                break Arc::new(Use(file));
            }
        };
        touch(&held.0);
        all.retain(|_, other| other.strong_count() > 0);
        all.insert(name.as_str().to_owned(), Arc::downgrade(&held));
        Ok(held)
    }
}

/// Exclusive right to remove a thing. Its file is removed on drop.
pub(crate) struct Removing {
    path: PathBuf,
    _file: File,
}

impl Drop for Removing {
    fn drop(&mut self) {
        // Before the lock ends. A file that stays is used again.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the right to remove a thing; `None` while it is in use.
pub(crate) fn removing(store: &Path, name: &PathSegment) -> io::Result<Option<Removing>> {
    DirBuilder::new().recursive(true).mode(0o700).create(USES.below(store))?;
    let path = path(store, name);
    loop {
        let file = open(&path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, &path) => return Ok(Some(Removing { path, _file: file })),
            Ok(()) | Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Removes the files of things that are not there and not in use: of a killed process, nothing else would.
pub(crate) fn sweep(store: &Path, is_there: impl Fn(&str) -> bool) {
    let Ok(entries) = std::fs::read_dir(USES.below(store)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_str().filter(|name| !is_there(name)).and_then(PathSegment::new);
        // The file goes with the right.
        drop(name.map(|name| removing(store, &name)));
    }
}

/// Returns the time of the last use, if there was one.
pub(crate) fn last_use(store: &Path, name: &PathSegment) -> Option<SystemTime> {
    path(store, name).symlink_metadata().and_then(|found| found.modified()).ok()
}

/// Locks of all processes, as the kernel lists them.
pub(crate) struct Locks(String);

impl Locks {
    /// Reads the list. It is long on a busy machine.
    pub(crate) fn read() -> Locks {
        Locks(std::fs::read_to_string("/proc/locks").unwrap_or_default())
    }
}

/// Returns the ids of the processes that use a thing. A process of another pid namespace has none.
pub(crate) fn users(store: &Path, name: &PathSegment, locks: &Locks) -> Vec<u32> {
    let Ok(inode) = path(store, name).symlink_metadata().map(|found| found.ino().to_string()) else {
        return Vec::new();
    };
    let pid = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = words[..] else { return None };
        (place.rsplit(':').next() == Some(inode.as_str())).then(|| pid.parse().ok())?
    };
    let mut pids: Vec<u32> = locks.0.lines().filter_map(pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Names processes in a message.
pub(crate) fn describe(pids: &[u32]) -> String {
    if pids.is_empty() {
        return "a sandbox or another process".into();
    }
    let one = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).take(2);
        let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let command: String = words.join(" ").chars().filter(|c| !c.is_control()).take(80).collect();
        if command.is_empty() { format!("process {pid}") } else { format!("process {pid} ({command})") }
    };
    let mut named = pids.iter().take(MAX_NAMED).map(one).collect::<Vec<_>>().join(", ");
    if pids.len() > MAX_NAMED {
        named.push_str(&format!(" and {} more", pids.len() - MAX_NAMED));
    }
    named
}

fn path(store: &Path, name: &PathSegment) -> PathBuf {
    name.below(&USES.below(store))
}

/// Opens the file of a thing, and makes it if it is missing. A link is not followed.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).custom_flags(flags).open(path)
}

/// The time is used for the order of removals alone.
fn touch(file: &File) {
    let _ = file.set_modified(SystemTime::now());
}

/// Returns true if a path leads to an open file, and not to another one that has taken its place.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: &std::fs::Metadata, b: &std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    matches!((file.metadata(), path.symlink_metadata()), (Ok(a), Ok(b)) if same(&a, &b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thing_in_use_is_not_removed_until_the_last_hold_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let (uses, name) = (Uses::default(), PathSegment::fixed("layer"));
        let first = uses.hold(dir.path(), &name).unwrap();
        let second = uses.hold(dir.path(), &name).unwrap();
        let other = Uses::default().hold(dir.path(), &name).unwrap();
        drop((first, other));
        assert!(removing(dir.path(), &name).unwrap().is_none());
        assert_eq!(users(dir.path(), &name, &Locks::read()), [std::process::id()]);
        drop(second);
        assert!(users(dir.path(), &name, &Locks::read()).is_empty());
        let removed = removing(dir.path(), &name).unwrap().unwrap();
        assert!(removing(dir.path(), &name).unwrap().is_none());
        drop(removed);
        assert!(last_use(dir.path(), &name).is_none());
        uses.hold(dir.path(), &name).unwrap();
        assert!(last_use(dir.path(), &name).is_some());
    }
}
