//! Files below one folder: reads, replaces as a whole, lists and changes them. No path reaches anything
//! outside.

mod change;
mod draft;
mod remove;
mod upload;
pub mod work;

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat};
use rustix::io::Errno;

use crate::Error;
use crate::walk::{Place, WalkError, walk};

pub use draft::Draft;
pub use upload::Upload;

/// Maximum entries of a listing; a listing is held in memory as a whole.
pub const LIST_LIMIT: usize = 50_000;

/// Reason why an operation on a path failed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path leads outside the base folder.
    #[error("the path leads outside the base folder")]
    Outside,
    /// The path is absent, or not of the required kind (a file, a folder).
    #[error("there is no such file or folder")]
    NotFound,
    /// Neither a regular file nor a folder: a pipe, a socket, a device.
    #[error("it is neither a regular file nor a folder")]
    Special,
    /// A folder is at the path of a file.
    #[error("{} is a folder", .0.display())]
    IsFolder(PathBuf),
    /// Non-recursive removal of a folder that is not empty.
    #[error("the folder is not empty")]
    NotEmpty,
    /// Removal or move of the base folder itself.
    #[error("it is the base folder itself")]
    IsRoot,
    /// The path exists already.
    #[error("something is there already")]
    Exists,
    /// A folder has more than [`LIST_LIMIT`] entries.
    #[error("the folder has more than {LIST_LIMIT} entries")]
    TooMany,
    /// Error of the system.
    #[error("{source}")]
    System {
        /// Path, including the base folder.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
}

/// Kind of an entry. Links count as their target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anything but a folder.
    File,
    /// Folder.
    Directory,
}

/// Entry of a folder.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Name; invalid UTF-8 in it is replaced.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Kind of the entry.
    pub kind: Kind,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u64),
    /// Permission bits, 0 to 0o7777.
    pub mode: u32,
    /// True for a link that is dangling or leads outside. The rest then describes the link itself.
    pub broken: bool,
}

/// File that is open for reading.
#[derive(Debug)]
pub struct Opened {
    /// File, at its start.
    pub file: File,
    /// Size in bytes when it was opened.
    pub size: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u64),
}

/// Content of a path.
#[derive(Debug)]
pub enum Got {
    /// Regular file.
    File(Opened),
    /// Folder with its entries, in the order of the system.
    Folder(Vec<Entry>),
}

/// Base folder of all operations.
#[derive(Debug)]
pub struct Root {
    folder: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the base folder, and creates it when missing.
    ///
    /// # Errors
    /// The folder cannot be created or opened.
    pub fn open(base: &Path) -> Result<Root, Error> {
        let open = || {
            std::fs::create_dir_all(base)?;
            let path = base.canonicalize()?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(Root { folder: rustix::fs::open(&path, flags, Mode::empty())?, path })
        };
        open().map_err(|source| Error::BaseFolder { folder: base.display().to_string(), source })
    }

    /// Returns the real path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Resolves a client's path relative to the folder: without `.`, `..` and the folder's own path. A path
    /// that leads outside still begins with `..`, and is refused on use.
    pub fn locate(&self, given: &OsStr) -> PathBuf {
        let mut kept: Vec<&OsStr> = Vec::new();
        let mut above = 0;
        for component in Path::new(given).components() {
            match component {
                Component::Normal(name) => kept.push(name),
                // The root folder has no parent; a relative path may lead above its start.
                Component::ParentDir if kept.pop().is_none() && !Path::new(given).is_absolute() => above += 1,
                _ => {}
            }
        }
        let up = std::iter::repeat_n(OsStr::new(".."), above);
        let clean: PathBuf = up.chain(kept).collect();
        match Path::new(given).is_absolute() {
            true => {
                let own = self.path.strip_prefix("/").unwrap_or(&self.path);
                clean.strip_prefix(own).map(Path::to_owned).unwrap_or(clean)
            }
            false => clean,
        }
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// [`FileError::NotFound`] also for an existing path that is not a regular file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Opened, FileError> {
        let (found, stat) = self.open_to_read(path.as_ref())?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(opened(found, &stat)),
            _ => Err(FileError::NotFound),
        }
    }

    /// Opens a regular file or lists a folder.
    ///
    /// # Errors
    /// [`FileError::Special`] for other kinds.
    pub fn get(&self, path: impl AsRef<Path>) -> Result<Got, FileError> {
        let path = path.as_ref();
        let (found, stat) = self.open_to_read(path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Got::File(opened(found, &stat))),
            FileType::Directory => self.entries(path, &found).map(Got::Folder),
            _ => Err(FileError::Special),
        }
    }

    /// Returns true if the path exists. A dangling link does not exist.
    ///
    /// # Errors
    /// The path leads outside or cannot be resolved.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool, FileError> {
        match self.open_beneath(path.as_ref(), OFlags::PATH) {
            Ok(_) => Ok(true),
            Err(FileError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the entries of a folder, in the order of the system.
    ///
    /// # Errors
    /// [`FileError::NotFound`] also for other kinds than a folder.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<Entry>, FileError> {
        let path = path.as_ref();
        match self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(FileError::System { source, .. })
                if source.raw_os_error() == Some(Errno::NOTDIR.raw_os_error()) =>
            {
                Err(FileError::NotFound)
            }
            other => self.entries(path, &other?),
        }
    }

    /// Opens a folder as a working directory or for inspection.
    ///
    /// # Errors
    /// The folder is absent or not a folder.
    pub fn folder(&self, path: impl AsRef<Path>) -> Result<OwnedFd, FileError> {
        self.open_beneath(path.as_ref(), OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Returns the entry at the path, with its links followed.
    ///
    /// # Errors
    /// The path is absent or leads outside.
    pub fn look(&self, path: impl AsRef<Path>) -> Result<Entry, FileError> {
        let path = path.as_ref();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(entry(name, &self.stat(path)?, false))
    }

    fn open_to_read(&self, path: &Path) -> Result<(OwnedFd, Stat), FileError> {
        // Opening a pipe or a device must not block.
        let found = self.open_beneath(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        let found = match found {
            // A socket, or a device without a driver.
            Err(FileError::System { source, .. })
                if source.raw_os_error() == Some(Errno::NXIO.raw_os_error()) =>
            {
                return Err(FileError::Special);
            }
            found => found?,
        };
        let stat = fstat(&found).map_err(|errno| self.refused(path, errno))?;
        Ok((found, stat))
    }

    fn entries(&self, path: &Path, folder: &OwnedFd) -> Result<Vec<Entry>, FileError> {
        let mut entries = Vec::new();
        for found in Dir::read_from(folder).map_err(|errno| self.refused(path, errno))? {
            let found = found.map_err(|errno| self.refused(path, errno))?;
            let name = found.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if entries.len() == LIST_LIMIT {
                return Err(FileError::TooMany);
            }
            // An entry that was removed meanwhile is left out.
            let Ok(own) = statat(folder, found.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let target = match FileType::from_raw_mode(own.st_mode) {
                FileType::Symlink => self.stat(&path.join(OsStr::from_bytes(name))),
                _ => Ok(own),
            };
            let name = String::from_utf8_lossy(name).into_owned();
            let broken = target.is_err();
            entries.push(entry(name, &target.unwrap_or(own), broken));
        }
        Ok(entries)
    }

    fn walk(&self, path: &Path) -> Result<Place, FileError> {
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(FileError::Outside);
        }
        walk(self.folder.as_fd(), &self.path, path).map_err(|error| match error {
            WalkError::Outside => FileError::Outside,
            WalkError::System(source) => FileError::System { path: self.shown(path), source },
        })
    }

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        let found = self.open_beneath(path, OFlags::PATH)?;
        fstat(&found).map_err(|errno| self.refused(path, errno))
    }

    /// Opens the path, never outside. The kernel does it in one call if it can. If it cannot, or refuses an
    /// absolute link that stays inside, the path is walked.
    fn open_beneath(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, FileError> {
        let relative = relative(path);
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

    fn shown(&self, path: &Path) -> PathBuf {
        self.path.join(relative(path))
    }

    fn refused(&self, path: &Path, errno: Errno) -> FileError {
        match errno {
            Errno::NOENT => FileError::NotFound,
            errno => FileError::System { path: self.shown(path), source: errno.into() },
        }
    }
}

/// Lists the names in a folder, which need not be opened for reading.
pub(crate) fn names(folder: impl AsFd) -> Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Dir::new(openat(folder, c".", flags, Mode::empty())?)
}

/// Strips the leading slashes; the base folder itself is `.`.
fn relative(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let start = bytes.iter().position(|byte| *byte != b'/').unwrap_or(bytes.len());
    match &bytes[start..] {
        [] => Path::new("."),
        rest => Path::new(OsStr::from_bytes(rest)),
    }
}

fn opened(found: OwnedFd, stat: &Stat) -> Opened {
    Opened { size: size(stat), modified: modified(stat), file: File::from(found) }
}

fn entry(name: String, stat: &Stat, broken: bool) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        _ => Kind::File,
    };
    Entry { name, size: size(stat), kind, modified: modified(stat), mode: stat.st_mode & 0o7777, broken }
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // The fields' types differ between architectures.
fn modified(stat: &Stat) -> (i64, u64) {
    (stat.st_mtime as i64, stat.st_mtime_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn paths_outside_are_not_read_listed_or_written() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        let root = Root::open(&base).unwrap();
        std::fs::write(folder.path().join("secret"), "s").unwrap();
        symlink(folder.path(), base.join("up")).unwrap();
        symlink("../secret", base.join("link")).unwrap();
        for path in ["../secret", "link", "up/secret", "a/../../secret", "up"] {
            assert!(matches!(root.read(path), Err(FileError::Outside)), "{path}");
            assert!(matches!(root.get(path), Err(FileError::Outside)), "{path}");
            assert!(matches!(root.exists(path), Err(FileError::Outside)), "{path}");
            assert!(matches!(root.list(path), Err(FileError::Outside)), "{path}");
            assert!(matches!(root.draft(path, None), Err(FileError::Outside)), "{path}");
        }
        assert_eq!(std::fs::read(folder.path().join("secret")).unwrap(), b"s");
        let listed = root.list("").unwrap();
        assert!(listed.len() == 2 && listed.iter().all(|entry| entry.broken), "{listed:?}");
    }

    #[test]
    fn locate_resolves_client_paths() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let own = root.path().display();
        for (given, expected) in [
            (String::new(), ""),
            ("/".into(), ""),
            ("a/./b//c/".into(), "a/b/c"),
            ("a/../b".into(), "b"),
            ("a/../../b".into(), "../b"),
            ("/../../b".into(), "b"),
            ("/etc/passwd".into(), "etc/passwd"),
            (format!("{own}"), ""),
            (format!("{own}/x/../y"), "y"),
            (format!("{own}x"), &format!("{own}x")[1..]),
            (format!("{own}")[1..].to_owned(), &format!("{own}")[1..]),
        ] {
            assert_eq!(root.locate(OsStr::new(&given)), Path::new(expected), "{given:?}");
        }
    }

    proptest::proptest! {
        /// No combination of links lets a read return content from outside.
        #[test]
        fn no_path_reads_outside_content(path in "(/|\\.\\./|\\./|a/|up/|in/|abs/|secret/?|own/?|\u{e9}|%2e){0,12}") {
            let folder = tempfile::tempdir().unwrap();
            let base = folder.path().join("base");
            let root = Root::open(&base).unwrap();
            std::fs::create_dir(base.join("a")).unwrap();
            std::fs::write(base.join("own"), "inside").unwrap();
            std::fs::write(folder.path().join("secret"), "outside").unwrap();
            symlink("..", base.join("up")).unwrap();
            symlink("a/..", base.join("in")).unwrap();
            symlink(folder.path(), base.join("abs")).unwrap();
            for path in [Path::new(&path), &root.locate(OsStr::new(&path))] {
                if let Ok(mut opened) = root.read(path) {
                    let mut text = String::new();
                    std::io::Read::read_to_string(&mut opened.file, &mut text).unwrap();
                    proptest::prop_assert_eq!(&text, "inside");
                }
            }
        }
    }

    #[test]
    fn only_regular_files_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("pipe"), Mode::from_raw_mode(0o600))
            .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        assert!(matches!(root.read("pipe"), Err(FileError::NotFound)));
        assert!(matches!(root.get("pipe"), Err(FileError::Special)));
        assert!(matches!(root.get("socket"), Err(FileError::Special)));
        assert!(matches!(root.read("."), Err(FileError::NotFound)));
        assert!(matches!(root.get("."), Ok(Got::Folder(entries)) if entries.len() == 2));
        assert!(matches!(root.list("pipe"), Err(FileError::NotFound)));
        assert!(root.exists("pipe").unwrap());
        assert!(matches!(root.draft(".", None), Err(FileError::IsFolder(_))));
    }
}
