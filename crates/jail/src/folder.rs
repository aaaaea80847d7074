//! A folder whose name others may give to something else.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// A folder, identified at the time of its inspection.
///
/// A process that may write its parent folders, such as one in another jail, can put another folder or a link in its place
/// at any time. Then it is refused: it never leads elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedFolder {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Look-ups below it stay on its mount.
    #[serde(default)]
    is_one_mount: bool,
}

impl CheckedFolder {
    /// Looks at a folder. A link on the way to it is ELOOP.
    pub fn look(path: &Path) -> io::Result<CheckedFolder> {
        let path = std::path::absolute(path)?;
        let found = rustix::fs::fstat(open_without_links(&path)?)?;
        Ok(CheckedFolder { path, device: found.st_dev, inode: found.st_ino, is_one_mount: false })
    }

    /// Returns the folder without what is mounted below it: a look-up there fails with EXDEV.
    #[must_use]
    pub fn without_mounts(self) -> CheckedFolder {
        CheckedFolder { is_one_mount: true, ..self }
    }

    /// Flags of a look-up of a path below the folder: without links.
    pub fn within(&self) -> ResolveFlags {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        if self.is_one_mount { within | ResolveFlags::NO_XDEV } else { within }
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder, as a descriptor that is good for looking up what is in it. ESTALE when something else has its name.
    pub fn open(&self) -> io::Result<OwnedFd> {
        Ok(self.descriptor()?)
    }

    /// Its owner, mode and the like.
    pub fn metadata(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(self.descriptor()?)?)
    }

    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        let folder = open_without_links(&self.path)?;
        let found = rustix::fs::fstat(&folder)?;
        match (found.st_dev, found.st_ino) == (self.device, self.inode) {
            true => Ok(folder),
            false => Err(Errno::STALE),
        }
    }
}

/// Opens a folder for look-ups. A link on the way is ELOOP.
pub(crate) fn open_without_links(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_the_place_of_a_folder_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        let path = top.join("a");
        std::fs::create_dir_all(path.join("b")).unwrap();
        let checked = CheckedFolder::look(&path.join("b")).unwrap();
        checked.open().unwrap();
        std::fs::rename(&path, top.join("c")).unwrap();
        let failure = |checked: &CheckedFolder| checked.open().unwrap_err().raw_os_error();
        assert_eq!(failure(&checked), Some(libc::ENOENT));
        std::os::unix::fs::symlink("c", &path).unwrap();
        assert_eq!(failure(&checked), Some(libc::ELOOP), "the same folder, by way of a link");
        assert_eq!(CheckedFolder::look(&path).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir_all(path.join("b")).unwrap();
        assert_eq!(failure(&checked), Some(libc::ESTALE), "another folder");
    }
}
