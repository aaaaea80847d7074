//! The data folder: created, locked and checked for its version before any other use.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, Dir, FlockOperation, Gid, Mode, OFlags, Uid, flock};
use rustix::io::Errno;

/// Version of the layout below the data folder. A newer one is refused, an older one is upgraded.
///
/// 1: all of it belongs to root. 2: `store` and `ca` belong to the user of the front, another one at each start.
const VERSION: u32 = 2;

/// Entries that a folder may have before its first version: those of a new file system, of a first start that was killed, and
/// of `hutch run` and `hutch image pull`.
const WITHOUT_VERSION: [&str; 5] = ["lost+found", "lock", "images", "pulled", "run"];

/// Maximum time to wait for the lock, and the interval at which it is tried.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// A data folder that is locked by this process until the drop.
pub(crate) struct DataFolder {
    path: PathBuf,
    lock: File,
}

impl DataFolder {
    /// Creates the folder if it is missing (mode 0700), takes its lock, reads its version.
    pub(crate) fn open(path: &Path) -> anyhow::Result<DataFolder> {
        let named = || format!("--data-dir {}", path.display());
        if path.exists() && !path.is_dir() {
            bail!("{}: not a folder", named());
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(named)?;
        let path = path.canonicalize().with_context(named)?;
        check_content(&path)?;
        tighten(&path)?;
        let lock = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("lock"))
            .with_context(named)?;
        if !take(&lock) {
            bail!("{}: another hutch uses this folder; stop it or name another folder", named());
        }
        check_version(&path)?;
        Ok(DataFolder { path, lock })
    }

    /// Returns the path of a file or folder in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the lock, for another process that uses the folder: it is free when both have closed it.
    pub(crate) fn lock(&self) -> std::io::Result<OwnedFd> {
        Ok(self.lock.try_clone()?.into())
    }

    /// Gives folders of it, created if missing, to a user and group of this id. From then on they may pass through the
    /// data folder but not list it.
    pub(crate) fn give(&self, names: &[&str], id: u32) -> anyhow::Result<()> {
        for name in names {
            self.give_one(name, id)?;
        }
        std::os::unix::fs::chown(&self.path, None, Some(id))
            .and_then(|()| std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(0o710)))
            .with_context(|| format!("--data-dir {}", self.path.display()))
    }

    /// Gives a folder of it, created if missing, to a user and group of this id, who must be in it already to use it.
    pub(crate) fn give_one(&self, name: &str, id: u32) -> anyhow::Result<()> {
        let folder = self.path.join(name);
        let failed = || format!("cannot give {} to a process", folder.display());
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).with_context(failed)?;
        give_tree(&folder, id).with_context(failed)
    }
}

/// Gives a folder and its content to a user and group of this id. Follows no links, also not those that an earlier process
/// of that folder makes meanwhile.
fn give_tree(folder: &Path, id: u32) -> std::io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let (uid, gid) = (Some(Uid::from_raw(id)), Some(Gid::from_raw(id)));
    let mut folders = vec![rustix::fs::open(folder, flags, Mode::empty())?];
    while let Some(folder) = folders.pop() {
        rustix::fs::fchown(&folder, uid, gid)?;
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match rustix::fs::openat(&folder, name, flags, Mode::empty()) {
                Ok(inner) => folders.push(inner),
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let path = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(&folder, name, path, Mode::empty())?;
                    // Another name of the file could be outside.
                    if rustix::fs::fstat(&file)?.st_nlink == 1 {
                        rustix::fs::chownat(&file, c"", uid, gid, AtFlags::EMPTY_PATH)?;
                    }
                }
                // It has gone.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Takes the lock. Waits for the end of a front whose root process was killed.
fn take(lock: &File) -> bool {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        if flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
}

/// Refuses a folder with other data than Hutch's.
fn check_content(folder: &Path) -> anyhow::Result<()> {
    let named = || format!("--data-dir {}", folder.display());
    let unfinished = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".tmp");
    let foreign =
        |name: &std::ffi::OsStr| !unfinished(name) && !WITHOUT_VERSION.iter().any(|known| name == *known);
    let mut entries = folder.read_dir().with_context(named)?.flatten().map(|entry| entry.file_name());
    if folder.join("version").is_file() {
        return Ok(());
    }
    match entries.find(|name| foreign(name)) {
        Some(name) => bail!(
            "{}: it holds `{}`, which is not Hutch's; name an empty folder",
            named(),
            name.to_string_lossy().escape_debug()
        ),
        None => Ok(()),
    }
}

/// Removes the permissions of other users, because the folder holds credentials and volumes.
fn tighten(folder: &Path) -> anyhow::Result<()> {
    let named = || format!("--data-dir {}", folder.display());
    let mode = folder.metadata().with_context(named)?.permissions().mode();
    match mode & 0o077 {
        0 => Ok(()),
        _ => std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).with_context(named),
    }
}

fn check_version(folder: &Path) -> anyhow::Result<()> {
    let file = folder.join("version");
    let named = || file.display().to_string();
    match std::fs::read_to_string(&file) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(VERSION) => Ok(()),
            // The changes are made at each start. An older hutch could not use the store of another owner.
            Ok(version) if version < VERSION => write_version(folder, &file),
            Ok(version) => bail!(
                "--data-dir {}: written by a newer hutch (layout {version}, this one knows {VERSION}); nothing was \
                 changed, use the newer binary",
                folder.display()
            ),
            Err(_) => bail!("{}: not a version; restore it (this hutch writes {VERSION})", named()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => write_version(folder, &file),
        Err(error) => Err(error).with_context(named),
    }
}

fn write_version(folder: &Path, file: &Path) -> anyhow::Result<()> {
    let named = || file.display().to_string();
    let mut fresh = tempfile::NamedTempFile::new_in(folder).with_context(named)?;
    writeln!(fresh, "{VERSION}").with_context(named)?;
    fresh.as_file().sync_all().with_context(named)?;
    fresh.persist(file).map_err(|error| error.error).with_context(named)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_folder_has_one_user() {
        let folder = tempfile::tempdir().expect("tempdir");
        let first = DataFolder::open(folder.path()).expect("free");
        assert!(DataFolder::open(folder.path()).is_err());
        drop(first);
        assert!(DataFolder::open(folder.path()).is_ok());
    }

    #[test]
    fn folder_that_others_can_enter_is_tightened_unless_it_holds_other_files() {
        let mode = |folder: &Path| folder.metadata().expect("folder").permissions().mode() & 0o7777;
        let open = |folder: &Path, mode| {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).expect("mode");
            DataFolder::open(folder)
        };
        let folder = tempfile::tempdir().expect("tempdir");
        drop(open(folder.path(), 0o755).expect("an empty one is taken"));
        assert_eq!(mode(folder.path()), 0o700);
        drop(open(folder.path(), 0o755).expect("a data folder is taken"));
        assert_eq!(mode(folder.path()), 0o700);
        let other = tempfile::tempdir().expect("tempdir");
        std::fs::write(other.path().join("file"), "").expect("write");
        for private in [0o1777, 0o700] {
            let error = open(other.path(), private).err().expect("refused").to_string();
            assert!(error.contains("`file`") && error.contains("empty folder"), "{error}");
            assert_eq!(mode(other.path()), private);
        }
        let error = DataFolder::open(&other.path().join("file")).err().expect("refused").to_string();
        assert!(error.ends_with("not a folder"), "{error}");
        let of_run = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(of_run.path().join("images")).expect("made");
        DataFolder::open(of_run.path()).expect("what hutch run has left is no obstacle");
    }

    #[test]
    fn content_is_given_without_what_links_lead_to() {
        hutch_testkit::require!(root);
        use std::os::unix::fs::{MetadataExt, symlink};
        let machine = tempfile::tempdir().unwrap();
        let (given, outside) = (machine.path().join("given"), machine.path().join("outside"));
        for folder in [&given, &outside, &given.join("inner")] {
            std::fs::create_dir(folder).unwrap();
        }
        for file in [given.join("inner/file"), outside.join("file"), outside.join("linked")] {
            std::fs::write(file, "").unwrap();
        }
        symlink(&outside, given.join("link")).unwrap();
        std::fs::hard_link(outside.join("linked"), given.join("other")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, given.join("pipe"), Mode::RUSR).unwrap();
        give_tree(&given, 4711).unwrap();
        let owner = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid();
        for path in ["", "inner", "inner/file", "link", "pipe"] {
            assert_eq!(owner(&given.join(path)), 4711, "{path}");
        }
        for path in ["", "file", "linked"] {
            assert_eq!(owner(&outside.join(path)), 0, "{path}");
        }
        assert!(give_tree(&given.join("link"), 4712).is_err());
    }

    #[test]
    fn newer_layout_is_refused_and_unchanged() {
        let folder = tempfile::tempdir().expect("tempdir");
        std::fs::write(folder.path().join("version"), "3\n").expect("write");
        let error = DataFolder::open(folder.path()).err().expect("refused").to_string();
        assert!(error.contains("newer"), "{error}");
        assert_eq!(std::fs::read_to_string(folder.path().join("version")).expect("read"), "3\n");
    }
}
