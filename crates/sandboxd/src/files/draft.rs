//! File that is replaced as a whole: written under a temporary name, synced to disk, then renamed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawMode, fchmod, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::{FileError, Root};
use crate::walk::Place;

/// Returns a temporary name that is unique within this process.
pub(super) fn temporary_name() -> String {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    format!(".sandboxd-tmp-{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed))
}

/// File that is being written under a temporary name. Dropping it removes the file.
#[derive(Debug)]
pub struct Draft {
    file: File,
    name: OsString,
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
        // After `keep` it has its final name and is not removed.
        let _ = unlinkat(&self.folder, &self.draft, AtFlags::empty());
    }
}

impl Root {
    /// Starts to replace the file at the path and creates its parent folders. The file is invisible before
    /// [`Draft::keep`]. Without a mode it keeps that of the replaced file, or has the default mode of a new
    /// file.
    ///
    /// # Errors
    /// The path leads outside, is a folder, or the system refuses.
    pub fn draft(&self, path: impl AsRef<Path>, mode: Option<u32>) -> Result<Draft, FileError> {
        let path = path.as_ref();
        let refused = |errno: Errno| self.refused(path, errno);
        let (folder, name, old) = match self.walk(path)? {
            Place::Found(folder, name) => {
                let stat = statat(&folder, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).map_err(refused)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    return Err(FileError::IsFolder(self.shown(path)));
                }
                (folder, name, Some(stat.st_mode & 0o7777))
            }
            Place::Missing(mut folder, mut names) => {
                let name = names.pop().ok_or(FileError::NotFound)?;
                for parent in names {
                    folder = make_folder(&folder, &parent, 0o777).map_err(refused)?;
                }
                (folder, name, None)
            }
        };
        let draft = temporary_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(&folder, &draft, flags, Mode::from_raw_mode(0o666)).map_err(refused)?;
        let made = Draft {
            file: File::from(made),
            name,
            left: Some(Leftover { folder, draft }),
            path: self.shown(path),
        };
        if let Some(mode) = mode.or(old) {
            fchmod(&made.file, Mode::from_raw_mode(mode as RawMode)).map_err(refused)?;
        }
        Ok(made)
    }
}

impl Draft {
    /// Appends to the file.
    ///
    /// # Errors
    /// Error of the system, such as a full disk.
    pub fn write(&mut self, content: &[u8]) -> Result<(), FileError> {
        std::io::Write::write_all(&mut self.file, content).map_err(|source| self.refused(source))
    }

    /// Gives the file its name, atomically, after its content was synced to disk.
    ///
    /// # Errors
    /// Error of the system; the previous file is then unchanged.
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

/// Creates a folder unless it exists, and opens it. A link in its place is refused: the walk found none here.
pub(super) fn make_folder(parent: &OwnedFd, name: &OsStr, mode: u32) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, Mode::from_raw_mode(mode as RawMode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    openat(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_draft_replaces_a_file_atomically_or_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let target = folder.path().join("deep/down/file");
        let mode = || target.metadata().unwrap().permissions().mode() & 0o7777;
        let mut draft = root.draft("deep/down/file", None).unwrap();
        draft.write(b"one").unwrap();
        assert!(!target.exists());
        draft.keep().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"one");
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut abandoned = root.draft("/deep/down/file", None).unwrap();
        abandoned.write(b"two").unwrap();
        drop(abandoned);
        assert_eq!(std::fs::read(&target).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);
        let mut next = root.draft("deep/down/file", None).unwrap();
        next.write(b"three").unwrap();
        next.keep().unwrap();
        assert_eq!((std::fs::read(&target).unwrap(), mode()), (b"three".to_vec(), 0o755));
        root.draft("deep/down/file", Some(0o640)).unwrap().keep().unwrap();
        assert_eq!((std::fs::read(&target).unwrap(), mode()), (b"".to_vec(), 0o640));
    }
}
