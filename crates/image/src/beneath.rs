//! Makes and opens files below one folder, whatever the paths and the links in it say.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, StatVfs, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

/// A folder that nothing done through it leaves: no `..`, no absolute path, no symbolic link on the way.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
}

const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Ownership and mode to set on an entry after its creation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    /// Permission bits; set-id bits are never kept.
    pub(crate) mode: u32,
    /// Owner, set only when it may be.
    pub(crate) owner: Option<(u32, u32)>,
    /// Modification time in seconds.
    pub(crate) mtime: i64,
}

impl Folder {
    /// Opens the folder itself, whose path is trusted.
    ///
    /// # Errors
    /// When it is not there or no folder.
    pub fn open(path: &Path) -> Result<Folder, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder { fd: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Opens a sub-folder; the empty path is the folder itself.
    ///
    /// # Errors
    /// When it is not there, no folder, or a link or a mount is on its path.
    pub fn folder(&self, path: &Path) -> Result<Folder, Errno> {
        self.subfolder(path, WITHIN)
    }

    /// As [`Folder::folder`], where file systems may be mounted below the folder.
    pub(crate) fn folder_over_mounts(&self, path: &Path) -> Result<Folder, Errno> {
        self.subfolder(path, WITHIN.difference(ResolveFlags::NO_XDEV))
    }

    fn subfolder(&self, path: &Path, within: ResolveFlags) -> Result<Folder, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder { fd: rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), within)? })
    }

    /// Opens a sub-folder, making what is missing of it with mode 0755.
    ///
    /// # Errors
    /// As [`Folder::folder`], or when a folder cannot be made.
    pub fn make_folders(&self, path: &Path) -> Result<Folder, Errno> {
        match self.folder(path) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let mut here = self.folder(Path::new(""))?;
        for part in path.components() {
            let name = Path::new(part.as_os_str());
            here = match here.folder(name) {
                Err(Errno::NOENT) => {
                    let mode = Mode::from_raw_mode(0o755);
                    rustix::fs::mkdirat(&here.fd, name, mode)?;
                    let made = here.folder(name)?;
                    // Separately, because the process's mask takes bits away on creation.
                    rustix::fs::fchmod(&made.fd, mode)?;
                    made
                }
                other => other?,
            };
        }
        Ok(here)
    }

    /// Opens a regular file for reading; anything else is [`Errno::NOTSUP`]. Never blocks, not even on a pipe.
    pub(crate) fn open_file(&self, path: &Path) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), WITHIN)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            _ => Err(Errno::NOTSUP),
        }
    }

    /// Makes a new file `name` with mode 0600 in this folder, in place of a file or link of that name.
    ///
    /// # Errors
    /// When the name is taken by a folder, or the file cannot be made.
    pub fn create_file(&self, name: &Path) -> Result<File, Errno> {
        self.remove_file(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        Ok(File::from(rustix::fs::openat2(&self.fd, name, flags, mode, WITHIN)?))
    }

    pub(crate) fn symlink(&self, target: &Path, name: &Path) -> Result<(), Errno> {
        self.remove_file(name)?;
        rustix::fs::symlinkat(target, &self.fd, name)
    }

    /// Gives the file `existing_name` of the folder `existing` a second name here.
    pub(crate) fn hard_link(
        &self,
        existing: &Folder,
        existing_name: &Path,
        name: &Path,
    ) -> Result<(), Errno> {
        if !std::ptr::eq(self, existing) || existing_name != name {
            self.remove_file(name)?;
        }
        rustix::fs::linkat(&existing.fd, existing_name, &self.fd, name, AtFlags::empty())
    }

    /// Returns `true` when an entry of that name exists.
    pub(crate) fn has(&self, name: &Path) -> bool {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Metadata of an entry, which may be a link.
    pub(crate) fn metadata(&self, name: &Path) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Space of the file system of this folder.
    pub(crate) fn space(&self) -> Result<StatVfs, Errno> {
        rustix::fs::fstatvfs(&self.fd)
    }

    /// Entries of this folder itself.
    pub(crate) fn entries(&self) -> Result<Dir, Errno> {
        Dir::read_from(&self.fd)
    }

    /// An overlay's mark that a lower layer's entry is gone: a character device 0/0, which needs no privilege.
    pub(crate) fn white_out(&self, name: &Path) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(0o000);
        rustix::fs::mknodat(&self.fd, name, FileType::CharacterDevice, mode, 0)
    }

    /// An overlay's mark that nothing of a lower layer's folder shows, for mounts of root and of user namespaces.
    pub(crate) fn set_opaque(&self) -> Result<(), Errno> {
        rustix::fs::fsetxattr(&self.fd, "user.overlay.opaque", b"y", XattrFlags::empty())?;
        match rustix::fs::fsetxattr(&self.fd, "trusted.overlay.opaque", b"y", XattrFlags::empty()) {
            // An ordinary user mounts in a user namespace, where only the first form is read.
            Err(Errno::PERM | Errno::NOTSUP) => Ok(()),
            other => other,
        }
    }

    /// Sets an extended attribute of this folder itself.
    pub(crate) fn set_extended(&self, name: &OsStr, value: &[u8]) -> Result<(), Errno> {
        set_extended(&self.fd, name, value)
    }

    /// Sets mode, owner and time of this folder itself.
    pub(crate) fn set_attributes(&self, attributes: Attributes) -> Result<(), Errno> {
        set_attributes(&self.fd, attributes)
    }

    /// User to whom this folder itself belongs.
    pub(crate) fn owner(&self) -> Result<u32, Errno> {
        Ok(rustix::fs::fstat(&self.fd)?.st_uid)
    }

    /// Sets the owner of this folder itself.
    pub(crate) fn set_owner(&self, (uid, gid): (u32, u32)) -> Result<(), Errno> {
        rustix::fs::fchown(&self.fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
    }

    /// Sets the owner of an entry, which may be a link.
    pub(crate) fn set_link_owner(&self, name: &Path, owner: Option<(u32, u32)>) -> Result<(), Errno> {
        let Some((uid, gid)) = owner else { return Ok(()) };
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(&self.fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Gives the entry `from` of this folder the name `to`, in place of a file of that name.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
    }

    /// Gives a new file the owner of this folder, which may be another process's user.
    pub(crate) fn share_owner(&self, file: &File) -> Result<(), Errno> {
        let own = rustix::fs::fstat(&self.fd)?;
        rustix::fs::fchown(file, Some(Uid::from_raw(own.st_uid)), Some(Gid::from_raw(own.st_gid)))
    }

    /// Writes the names of this folder to the disk.
    pub(crate) fn sync_names(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.fd)
    }

    /// Writes everything of this file system to the disk.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.fd)
    }

    /// Removes a file or link; nothing there is no error.
    pub(crate) fn remove_file(&self, name: &Path) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Sets an extended attribute of an open file, if its file system has any.
pub(crate) fn set_extended(fd: impl std::os::fd::AsFd, name: &OsStr, value: &[u8]) -> Result<(), Errno> {
    match rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()) {
        Err(Errno::NOTSUP) => Ok(()),
        other => other,
    }
}

/// Sets mode, owner and time of an open file.
pub(crate) fn set_attributes(fd: impl std::os::fd::AsFd, attributes: Attributes) -> Result<(), Errno> {
    if let Some((uid, gid)) = attributes.owner {
        rustix::fs::fchown(&fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    // Without set-id bits: nothing inside may gain privileges anyway, and these files lie on the host.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(attributes.mode & 0o1777))?;
    let time = Timespec { tv_sec: attributes.mtime, tv_nsec: 0 };
    rustix::fs::futimens(&fd, &Timestamps { last_access: time, last_modification: time })
}
