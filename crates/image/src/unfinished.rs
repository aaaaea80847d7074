//! Folders whose content is not complete yet.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;

use crate::beneath::Folder;
use crate::removal::remove_tree;
use crate::{Error, PathSegment};

/// Name of unfinished folders.
const UNFINISHED: &str = "unfinished-";
/// Name of folders that are being removed.
const REMOVED: &str = "removed-";
/// Minimum age at which an unfinished, unlocked folder is abandoned.
const UNFINISHED_AGE: Duration = Duration::from_secs(6 * 3600);

/// A new folder, removed on drop unless it is [finished](finish). Its content is an archive's, so it may be nested deep
/// and have any time of change.
pub(crate) struct Unfinished {
    folder: Option<tempfile::TempDir>,
    /// Locked, so that a concurrent sweep does not remove it.
    _lock: std::fs::File,
}

impl Unfinished {
    pub(crate) fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), tempfile::TempDir::path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            // What stays is swept later.
            let _ = remove_tree(&folder.keep());
        }
    }
}

/// Removes a folder so that a process which is killed meanwhile leaves nothing under its name. `then` runs as soon as the
/// name is free.
pub(crate) fn remove_whole(dir: &Path, folder: &Path, then: impl FnOnce()) -> std::io::Result<()> {
    // Nothing is created: a removal must succeed on a full disk. An empty folder of the other name is replaced.
    let mut number = 0;
    let other = loop {
        let name = PathSegment::new(format!("{REMOVED}{}-{number}", std::process::id()));
        let other = name.ok_or(ErrorKind::InvalidFilename)?.below(dir);
        match std::fs::rename(folder, &other) {
            // XFS has the other word for a folder that is not empty.
            Err(error)
                if [ErrorKind::DirectoryNotEmpty, ErrorKind::AlreadyExists].contains(&error.kind()) =>
            {
                number += 1;
            }
            renamed => break renamed.map(|()| other)?,
        }
    };
    std::fs::File::open(dir)?.sync_all()?;
    then();
    remove_tree(&other)
}

/// Makes a folder for content that is not complete yet.
pub(crate) fn unfinished(dir: &Path) -> Result<Unfinished, Error> {
    sweep(dir);
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(UNFINISHED).tempdir_in(dir).map_err(Error::file("make a folder in", dir))?;
    let lock = lock(made.path()).map_err(Error::file("lock", made.path()))?;
    Ok(Unfinished { folder: Some(made), _lock: lock })
}

/// Gives a complete folder its name, after its content has reached the disk.
pub(crate) fn finish(mut unfinished: Unfinished, name: &Path) -> Result<(), Error> {
    let opened = Folder::open(unfinished.path()).map_err(Error::file("open", unfinished.path()))?;
    // mode 0700 of a fresh folder would hide the whole root from the users inside.
    if rustix::fs::stat(unfinished.path()).is_ok_and(|s| s.st_mode & 0o777 == 0o700) {
        rustix::fs::chmod(unfinished.path(), rustix::fs::Mode::from_raw_mode(0o755))
            .map_err(Error::file("set the mode of", unfinished.path()))?;
    }
    opened.sync().map_err(Error::file("write out", unfinished.path()))?;
    match std::fs::rename(unfinished.path(), name) {
        Ok(()) => {
            // It has another name now, so there is nothing left to remove.
            let _ = unfinished.folder.take().map(tempfile::TempDir::keep);
            Ok(())
        }
        // Another process was faster with the same content.
        Err(_) if name.is_dir() => Ok(()),
        Err(source) => Err(Error::File { action: "name", path: name.into(), source }),
    }
}

/// Locks a folder until the file descriptor is closed; an error when another process holds the lock.
fn lock(folder: &Path) -> std::io::Result<std::fs::File> {
    let folder = std::fs::File::open(folder)?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

/// Removes what a killed process left.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(REMOVED) {
            // What cannot be removed now is tried again by the next one.
            let _ = remove_tree(&entry.path());
            continue;
        }
        let old = entry
            .metadata()
            .and_then(|m| m.modified())
            .is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > UNFINISHED_AGE));
        if !old || !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            continue;
        }
        if let Ok(_lock) = lock(&entry.path()) {
            // What cannot be removed now is tried again by the next one.
            let _ = remove_tree(&entry.path());
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn folder_in_use_is_not_swept_however_old_its_archive_says_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let age = |folder: &Path| {
            let folder = std::fs::File::open(folder).unwrap();
            folder.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        };
        let used = unfinished(dir.path()).unwrap();
        age(used.path());
        let left = dir.path().join("unfinished-left");
        std::fs::create_dir(&left).unwrap();
        age(&left);
        let _other = unfinished(dir.path()).unwrap();
        assert!(used.path().is_dir());
        assert!(!left.exists());
    }
}
