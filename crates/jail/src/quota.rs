//! Hard limits of folders: subvolumes of btrfs, whose quota groups hold at most so many bytes.
//!
//! They are used where the administrator has enabled quotas on the file system. Code inside a jail can make no subvolume,
//! which would have a quota group without a limit: the filter of system calls refuses that.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `f_type` of btrfs.
const BTRFS: u64 = 0x9123_683e;
/// Number of the inode at the top of each subvolume.
const TOP_INODE: u64 = 256;
/// `BTRFS_IOC_SUBVOL_CREATE`.
const SUBVOLUME_CREATE: u32 = 0x5000_940e;
/// All requests that make a subvolume: also `BTRFS_IOC_SNAP_CREATE`, and the second versions of both.
pub(crate) const SUBVOLUMES: [u32; 4] = [SUBVOLUME_CREATE, 0x5000_9401, 0x5000_9417, 0x5000_9418];
/// `BTRFS_IOC_QGROUP_LIMIT`.
const QGROUP_LIMIT: u32 = 0x8030_942b;
/// `BTRFS_QGROUP_LIMIT_MAX_RFER`.
const MAX_REFERENCED: u64 = 1;
/// Smallest limit, in bytes: an empty subvolume has some, and removing files takes some too.
const SMALLEST: u64 = 256 << 10;

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct Name {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_qgroup_limit_args`. Group 0 is that of the folder's subvolume.
#[repr(C)]
#[derive(Default)]
struct Limit {
    group: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

fn ioctl<T>(folder: BorrowedFd<'_>, request: u32, argument: &mut T) -> Result<(), Errno> {
    // SAFETY: the argument has the size and the layout that the request names, and both are of this file system.
    let result = unsafe { libc::ioctl(folder.as_raw_fd(), request as libc::Ioctl, &raw mut *argument) };
    match result {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

fn is_btrfs(folder: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(folder).is_ok_and(|system| u64::try_from(system.f_type).unwrap_or(0) == BTRFS)
}

/// Returns true if folders that are made here can have a hard limit.
pub fn is_available(folder: impl AsFd) -> bool {
    // Changes nothing, and fails where quotas are not enabled.
    is_btrfs(folder.as_fd()) && ioctl(folder.as_fd(), QGROUP_LIMIT, &mut Limit::default()).is_ok()
}

/// Makes a folder that holds at most so many bytes. Returns false where there are no hard limits; then nothing is made.
///
/// # Errors
/// When the folder is there already, or cannot be made.
pub fn make_folder(parent: impl AsFd, name: &CStr, bytes: u64) -> Result<bool, Errno> {
    let parent = parent.as_fd();
    if !is_available(parent) {
        return Ok(false);
    }
    let text = name.to_bytes();
    let mut argument = Name { fd: 0, name: [0; 4088] };
    argument.name.get_mut(..text.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(text);
    ioctl(parent, SUBVOLUME_CREATE, &mut argument)?;
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let made = rustix::fs::openat(parent, name, flags, rustix::fs::Mode::empty())?;
    set(&made, bytes)
}

/// Sets the limit of a folder that [`make_folder`] made. Returns false for any other folder.
///
/// # Errors
/// When the file system cannot set it.
pub fn set(folder: impl AsFd, bytes: u64) -> Result<bool, Errno> {
    let folder = folder.as_fd();
    if !is_btrfs(folder) || rustix::fs::fstat(folder)?.st_ino != TOP_INODE {
        return Ok(false);
    }
    let max_referenced = bytes.max(SMALLEST);
    let mut limit = Limit { flags: MAX_REFERENCED, max_referenced, ..Limit::default() };
    match ioctl(folder, QGROUP_LIMIT, &mut limit) {
        Ok(()) => Ok(true),
        // Quotas are not enabled.
        Err(Errno::NOTCONN | Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_sizes_of_their_arguments() {
        assert_eq!((SUBVOLUME_CREATE >> 16 & 0x3fff) as usize, size_of::<Name>());
        assert_eq!((QGROUP_LIMIT >> 16 & 0x3fff) as usize, size_of::<Limit>());
    }

    #[test]
    fn other_file_systems_have_no_hard_limits() {
        let folder =
            rustix::fs::open("/proc", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(make_folder(&folder, c"new", 1 << 20), Ok(false));
        assert_eq!(set(&folder, 1 << 20), Ok(false));
    }
}
