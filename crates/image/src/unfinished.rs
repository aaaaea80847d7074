//! Folders whose content is not complete yet.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::beneath::Folder;
use crate::removal::remove_tree;
use crate::turns;
use crate::{Error, PathSegment};

/// Name of unfinished folders.
const UNFINISHED: &str = "unfinished-";
/// Name of folders that are being removed.
const REMOVED: &str = "removed-";

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
    // Until the folder is locked, no sweep may take it for an abandoned one.
    let _making = lock_names(dir).map_err(Error::file("lock", dir))?;
    let made = builder.prefix(UNFINISHED).tempdir_in(dir).map_err(Error::file("make a folder in", dir))?;
    let lock = lock(made.path()).map_err(Error::file("lock", made.path()))?;
    Ok(Unfinished { folder: Some(made), _lock: lock })
}

/// Gives a complete folder its name, after its content has reached the disk.
pub(crate) fn finish(mut unfinished: Unfinished, name: &Path) -> Result<(), Error> {
    let opened = Folder::open(unfinished.path()).map_err(Error::file("open", unfinished.path()))?;
    // mode 0700 of a fresh folder would hide the whole root from the users inside.
    if rustix::fs::stat(unfinished.path()).is_ok_and(|s| s.st_mode & 0o777 == 0o700) {
        rustix::fs::chmod(unfinished.path(), Mode::from_raw_mode(0o755))
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
    let folder = match std::fs::File::open(folder) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => open_unreadable(folder)?,
        opened => opened?,
    };
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

/// Opens a folder whose owner may not read it, since its mode is that of an image's root. Its mode stays: another process may be
/// about to finish it.
fn open_unreadable(folder: &Path) -> std::io::Result<std::fs::File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = rustix::fs::open(folder, flags, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&path)?.st_mode);
    let own = format!("/proc/self/fd/{}", path.as_raw_fd());
    rustix::fs::chmod(&own, Mode::RWXU)?;
    let opened = std::fs::File::open(&own);
    rustix::fs::chmod(&own, mode)?;
    opened
}

/// Waits for the right to make an unfinished folder, or to find that one is abandoned.
fn lock_names(dir: &Path) -> std::io::Result<std::fs::File> {
    let dir = std::fs::File::open(dir)?;
    turns::lock(&dir)?;
    Ok(dir)
}

/// Removes what a killed process left.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is = |prefix: &str| name.to_string_lossy().starts_with(prefix);
        let abandoned = || lock_names(dir).and_then(|_making| lock(&entry.path()));
        let held = if is(UNFINISHED) { abandoned().ok() } else { None };
        if is(REMOVED) || held.is_some() {
            // What cannot be removed now is tried again by the next one.
            let _ = remove_tree(&entry.path());
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn folder_of_a_killed_process_is_swept_at_once_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let used = unfinished(dir.path()).unwrap();
        // An archive may give it any time.
        std::fs::File::open(used.path()).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let left = dir.path().join("unfinished-left");
        std::fs::create_dir(&left).unwrap();
        let _other = unfinished(dir.path()).unwrap();
        assert!(used.path().is_dir());
        assert!(!left.exists());
    }

    #[test]
    fn abandoned_folder_that_its_owner_may_not_read_is_swept() {
        if rustix::process::geteuid().is_root() {
            // Root may read every folder: another user runs this test again.
            let mut again = std::process::Command::new("/proc/self/exe");
            again.args([
                "--exact",
                "unfinished::tests::abandoned_folder_that_its_owner_may_not_read_is_swept",
            ]);
            let ran = again.current_dir("/").env("TMPDIR", "/tmp").uid(65_534).gid(65_534).output().unwrap();
            let output = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && output.contains("1 passed"), "{output}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let made = unfinished(dir.path()).unwrap();
        let used = made.path().to_owned();
        let left = dir.path().join("unfinished-left");
        std::fs::create_dir_all(left.join("inner")).unwrap();
        for folder in [&used, &left] {
            rustix::fs::chmod(folder, Mode::empty()).unwrap();
        }
        sweep(dir.path());
        assert!(!left.exists());
        assert_eq!(rustix::fs::stat(&used).unwrap().st_mode & 0o777, 0, "one in use stays as it is");
    }

    #[test]
    fn folder_is_not_swept_before_it_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    sweep(dir.path());
                }
            });
            let kept: Vec<_> =
                (0..200).map(|_| unfinished(dir.path()).map(|made| made.path().is_dir())).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(kept.iter().all(|kept| kept.as_ref().is_ok_and(|kept| *kept)));
        });
    }
}
