//! Owners, modes, times and extended attributes of entries.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::Cause;

/// Maximum bytes of a value and of all names, from the kernel.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// An entry whose attributes are read or set.
#[derive(Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A file or folder, open.
    Open(BorrowedFd<'a>),
    /// Anything else: it cannot be opened, or the opening has an effect.
    Named(BorrowedFd<'a>, &'a CStr),
}

impl Subject<'_> {
    /// Path of a named entry, whose last component is not followed: the calls of extended attributes take no folder.
    fn path(folder: BorrowedFd<'_>, name: &CStr) -> Result<CString, Errno> {
        let folder = format!("/proc/self/fd/{}/", folder.as_raw_fd());
        CString::new([folder.as_bytes(), name.to_bytes()].concat()).map_err(|_| Errno::INVAL)
    }

    fn names_length(self) -> Result<usize, Errno> {
        match self {
            Subject::Open(fd) => rustix::fs::flistxattr_query(fd),
            Subject::Named(folder, name) => rustix::fs::llistxattr_query(Subject::path(folder, name)?),
        }
    }

    fn names(self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Subject::Open(fd) => rustix::fs::flistxattr(fd, buffer),
            Subject::Named(folder, name) => rustix::fs::llistxattr(Subject::path(folder, name)?, buffer),
        }
    }

    fn value(self, name: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Subject::Open(fd) => rustix::fs::fgetxattr(fd, name, buffer),
            Subject::Named(folder, entry) => {
                rustix::fs::lgetxattr(Subject::path(folder, entry)?, name, buffer)
            }
        }
    }

    fn set(self, name: &CStr, value: &[u8]) -> Result<(), Errno> {
        let flags = XattrFlags::empty();
        match self {
            Subject::Open(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            Subject::Named(folder, entry) => {
                rustix::fs::lsetxattr(Subject::path(folder, entry)?, name, value, flags)
            }
        }
    }
}

/// Extended attributes of an entry.
pub(crate) type Xattrs = Vec<(CString, Vec<u8>)>;

/// Reads the extended attributes, sorted by name.
pub(crate) fn xattrs(subject: Subject<'_>) -> Result<Xattrs, Cause> {
    match subject.names_length() {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(errno) => return Err(Cause::io("list extended attributes of")(errno)),
    }
    let mut buffer = vec![0; MAX_XATTR_BYTES];
    let length = subject.names(&mut buffer).map_err(Cause::io("list extended attributes of"))?;
    let mut names: Vec<CString> = Vec::new();
    for name in buffer[..length].split_inclusive(|byte| *byte == 0) {
        names.extend(CStr::from_bytes_with_nul(name).ok().map(CStr::to_owned));
    }
    names.sort();
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let length = match subject.value(&name, &mut buffer) {
            Err(Errno::NODATA) => return Err(Cause::CHANGED),
            length => length.map_err(Cause::io("read an extended attribute of"))?,
        };
        found.push((name, buffer[..length].to_vec()));
    }
    Ok(found)
}

/// Sets everything of an entry that is no content. The order matters: a new owner takes capabilities and set-id bits away.
pub(crate) fn set(subject: Subject<'_>, found: &Stat, xattrs: &Xattrs) -> Result<(), Cause> {
    let (uid, gid) = (Some(Uid::from_raw(found.st_uid)), Some(Gid::from_raw(found.st_gid)));
    match subject {
        Subject::Open(fd) => rustix::fs::fchown(fd, uid, gid),
        Subject::Named(folder, name) => {
            rustix::fs::chownat(folder, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        }
    }
    .map_err(Cause::io("set the owner of"))?;
    for (name, value) in xattrs {
        subject.set(name, value).map_err(Cause::io("set an extended attribute of"))?;
    }
    let mode = Mode::from_raw_mode(found.st_mode & 0o7777);
    match subject {
        Subject::Open(fd) => rustix::fs::fchmod(fd, mode),
        // A link has no mode of its own. Other entries of this kind are new, in a folder that only this process uses.
        Subject::Named(..) if is_link(found) => Ok(()),
        Subject::Named(folder, name) => rustix::fs::chmodat(folder, name, mode, AtFlags::empty()),
    }
    .map_err(Cause::io("set the mode of"))?;
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: found.st_mtime, tv_nsec: nanoseconds(found) };
    let times = Timestamps { last_access, last_modification };
    match subject {
        Subject::Open(fd) => rustix::fs::futimens(fd, &times),
        Subject::Named(folder, name) => {
            rustix::fs::utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        }
    }
    .map_err(Cause::io("set the time of"))
}

/// Removes what a folder has inherited from its parent, so that entries made in it inherit nothing.
pub(crate) fn clear(folder: BorrowedFd<'_>) -> Result<(), Cause> {
    for (name, _) in xattrs(Subject::Open(folder))? {
        // Labels of security modules cannot be removed, only replaced.
        let is_label = name.to_bytes().starts_with(b"security.") && name.as_c_str() != c"security.capability";
        if !is_label {
            rustix::fs::fremovexattr(folder, &name).map_err(Cause::io("remove an extended attribute of"))?;
        }
    }
    Ok(())
}

fn is_link(found: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Symlink
}

/// Nanoseconds of the time of modification; always below 10^9.
pub(crate) fn nanoseconds(found: &Stat) -> i64 {
    found.st_mtime_nsec as i64
}
