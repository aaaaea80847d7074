//! Files below one folder: read, replaced as a whole, listed. Whatever a path says, nothing outside is touched.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat, fchmod, fstat, mkdirat, openat,
    openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::Error;
use crate::walk::{Place, WalkError, walk};

/// Entries that one listing may have; a listing is held in memory as a whole.
pub const LIST_LIMIT: usize = 50_000;

/// Why something could not be done with a path.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path leads outside the base folder.
    #[error("the path leads outside the base folder")]
    Outside,
    /// Nothing is there, or not what was asked for (a file, a folder).
    #[error("there is no such file or folder")]
    NotFound,
    /// A folder with more than [`LIST_LIMIT`] entries.
    #[error("the folder has more than {LIST_LIMIT} entries")]
    TooMany,
    /// The system refused.
    #[error("{source}")]
    System {
        /// The path, with the base folder in front.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What a name is. Links count as what they point to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anything that is not a folder.
    File,
    /// A folder.
    Directory,
}

/// One name of a folder.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name; what is not UTF-8 in it is replaced.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// What it is.
    pub kind: Kind,
    /// When it was last written, in seconds since 1970.
    pub modified: f64,
}

/// A file that is open for reading.
#[derive(Debug)]
pub struct Opened {
    /// The file, at its start.
    pub file: File,
    /// Bytes, when it was opened.
    pub size: u64,
    /// When it was last written: seconds since 1970 and nanoseconds.
    pub modified: (i64, u64),
}

/// The folder below which everything happens.
#[derive(Debug)]
pub struct Root {
    folder: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the folder, and makes it when it is missing.
    ///
    /// # Errors
    /// When it cannot be made or opened.
    pub fn open(base: &Path) -> Result<Root, Error> {
        let open = || {
            std::fs::create_dir_all(base)?;
            let path = base.canonicalize()?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(Root { folder: rustix::fs::open(&path, flags, Mode::empty())?, path })
        };
        open().map_err(|source| Error::BaseFolder { folder: base.display().to_string(), source })
    }

    /// The real path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// [`FileError::NotFound`] also for what is there and is not a regular file.
    pub fn read(&self, path: &str) -> Result<Opened, FileError> {
        // A pipe or a device must not hold up the open.
        let found = self.open_beneath(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let stat = fstat(&found).map_err(|errno| self.refused(path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FileError::NotFound);
        }
        Ok(Opened { size: size(&stat), modified: modified(&stat), file: File::from(found) })
    }

    /// Whether something is at the path. A link that leads nowhere is nothing.
    ///
    /// # Errors
    /// When the path leads outside or cannot be followed.
    pub fn exists(&self, path: &str) -> Result<bool, FileError> {
        match self.open_beneath(path, OFlags::PATH) {
            Ok(_) => Ok(true),
            Err(FileError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The entries of a folder, in the order in which the system gives them.
    ///
    /// # Errors
    /// [`FileError::NotFound`] also for what is not a folder.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, FileError> {
        let folder = match self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(FileError::System { source, .. })
                if source.raw_os_error() == Some(Errno::NOTDIR.raw_os_error()) =>
            {
                return Err(FileError::NotFound);
            }
            other => other?,
        };
        let mut entries = Vec::new();
        for entry in Dir::read_from(&folder).map_err(|errno| self.refused(path, errno))? {
            let entry = entry.map_err(|errno| self.refused(path, errno))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if entries.len() == LIST_LIMIT {
                return Err(FileError::TooMany);
            }
            // What has gone since is not in the list.
            let Ok(own) = statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let name = String::from_utf8_lossy(name).into_owned();
            let stat = match FileType::from_raw_mode(own.st_mode) {
                FileType::Symlink => self.stat(&format!("{path}/{name}")).unwrap_or(own),
                _ => own,
            };
            let kind = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Kind::Directory,
                _ => Kind::File,
            };
            let (seconds, nanoseconds) = modified(&stat);
            let modified = seconds as f64 + nanoseconds as f64 * 1e-9;
            entries.push(Entry { name, size: size(&stat), kind, modified });
        }
        Ok(entries)
    }

    /// Begins to replace the file at the path, whose folders are made. Nothing is seen of it before [`Draft::keep`].
    ///
    /// # Errors
    /// When the path leads outside, is a folder, or the system refuses.
    pub fn draft(&self, path: &str) -> Result<Draft, FileError> {
        let refused = |errno: Errno| self.refused(path, errno);
        let (folder, name, mode) = match self.walk(path)? {
            Place::Found(folder, name) => {
                let stat = statat(&folder, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).map_err(refused)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    return Err(refused(Errno::ISDIR));
                }
                (folder, name, Some(Mode::from_raw_mode(stat.st_mode as RawMode & 0o7777)))
            }
            Place::Missing(mut folder, mut names) => {
                let name = names.pop().ok_or_else(|| refused(Errno::NOENT))?;
                for parent in names {
                    folder = make_folder(&folder, &parent).map_err(refused)?;
                }
                (folder, name, None)
            }
        };
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let draft = format!(".sandboxd-tmp-{}-{number}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(&folder, &draft, flags, Mode::from_raw_mode(0o666)).map_err(refused)?;
        if let Some(mode) = mode {
            fchmod(&made, mode).map_err(refused)?;
        }
        let path = self.shown(path);
        Ok(Draft { file: File::from(made), name, left: Some(Leftover { folder, draft }), path })
    }

    fn walk(&self, path: &str) -> Result<Place, FileError> {
        if path.contains('\0') {
            return Err(FileError::Outside);
        }
        walk(self.folder.as_fd(), &self.path, path).map_err(|error| match error {
            WalkError::Outside => FileError::Outside,
            WalkError::System(source) => FileError::System { path: self.shown(path), source },
        })
    }

    fn stat(&self, path: &str) -> Result<Stat, FileError> {
        let found = self.open_beneath(path, OFlags::PATH)?;
        fstat(&found).map_err(|errno| self.refused(path, errno))
    }

    /// Opens what is at the path, never outside. The kernel does it in one call where it can; where it cannot, or
    /// will not follow an absolute link that stays inside, the path is walked.
    fn open_beneath(&self, path: &str, flags: OFlags) -> Result<OwnedFd, FileError> {
        let relative = path.trim_start_matches('/');
        let relative = if relative.is_empty() { "." } else { relative };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        match openat2(&self.folder, relative, flags, Mode::empty(), resolve) {
            Ok(found) => Ok(found),
            Err(_) => match self.walk(path)? {
                Place::Found(folder, name) => openat(folder, name, flags | OFlags::NOFOLLOW, Mode::empty())
                    .map_err(|errno| self.refused(path, errno)),
                Place::Missing(..) => Err(FileError::NotFound),
            },
        }
    }

    fn shown(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    fn refused(&self, path: &str, errno: Errno) -> FileError {
        match errno {
            Errno::NOENT => FileError::NotFound,
            errno => FileError::System { path: self.shown(path), source: errno.into() },
        }
    }
}

/// Makes a folder unless it is there, and opens it. A link in its place is refused: the walk has seen nothing here.
fn make_folder(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    openat(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // The fields' types differ between architectures.
fn modified(stat: &Stat) -> (i64, u64) {
    (stat.st_mtime as i64, stat.st_mtime_nsec as u64)
}

/// A file that is being written and has not its name yet. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct Draft {
    file: File,
    name: std::ffi::OsString,
    left: Option<Leftover>,
    path: PathBuf,
}

#[derive(Debug)]
struct Leftover {
    folder: OwnedFd,
    draft: String,
}

impl Drop for Leftover {
    fn drop(&mut self) {
        // It has its final name when it was kept; then there is nothing to remove.
        let _ = unlinkat(&self.folder, &self.draft, AtFlags::empty());
    }
}

impl Draft {
    /// Writes on.
    ///
    /// # Errors
    /// When the system refuses, as with a full disk.
    pub fn write(&mut self, content: &[u8]) -> Result<(), FileError> {
        std::io::Write::write_all(&mut self.file, content).map_err(|source| self.refused(source))
    }

    /// Gives it its name, in one step, after its content is on the disk.
    ///
    /// # Errors
    /// When the system refuses; what was there before is there still.
    pub fn keep(mut self) -> Result<(), FileError> {
        self.file.sync_all().map_err(|source| self.refused(source))?;
        let Some(left) = self.left.take() else { return Ok(()) };
        renameat(&left.folder, &left.draft, &left.folder, self.name.as_os_str())
            .map_err(|errno| self.refused(errno.into()))
    }

    fn refused(&self, source: std::io::Error) -> FileError {
        FileError::System { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_draft_replaces_a_file_at_once_or_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let target = folder.path().join("deep/down/file");
        let mut draft = root.draft("deep/down/file").unwrap();
        draft.write(b"one").unwrap();
        assert!(!target.exists());
        draft.keep().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"one");
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut abandoned = root.draft("/deep/down/file").unwrap();
        abandoned.write(b"two").unwrap();
        drop(abandoned);
        assert_eq!(std::fs::read(&target).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);
        let mut next = root.draft("deep/down/file").unwrap();
        next.write(b"three").unwrap();
        next.keep().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"three");
        assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn nothing_outside_is_read_listed_or_written() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        let root = Root::open(&base).unwrap();
        std::fs::write(folder.path().join("secret"), "s").unwrap();
        symlink(folder.path(), base.join("up")).unwrap();
        symlink("../secret", base.join("link")).unwrap();
        for path in ["../secret", "link", "up/secret", "a/../../secret", "up"] {
            assert!(matches!(root.read(path), Err(FileError::Outside)), "{path}");
            assert!(matches!(root.exists(path), Err(FileError::Outside)), "{path}");
            assert!(matches!(root.list(path), Err(FileError::Outside)), "{path}");
            assert!(matches!(root.draft(path), Err(FileError::Outside)), "{path}");
        }
        assert_eq!(std::fs::read(folder.path().join("secret")).unwrap(), b"s");
        assert_eq!(root.list("").unwrap().len(), 2);
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("pipe"), Mode::from_raw_mode(0o600))
            .unwrap();
        assert!(matches!(root.read("pipe"), Err(FileError::NotFound)));
        assert!(matches!(root.read("."), Err(FileError::NotFound)));
        assert!(matches!(root.list("pipe"), Err(FileError::NotFound)));
        assert!(root.exists("pipe").unwrap());
        assert!(matches!(root.draft("."), Err(FileError::System { .. })));
    }
}
