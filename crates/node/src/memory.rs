//! File systems in memory for volumes: `emptyDir` with `medium: Memory`, and everything that may hold secrets.
//!
//! All of them are mounted below one folder that only root can reach, which is itself a small file system with private
//! mounts: nothing of them shows elsewhere, and one lazy unmount takes all away, also what a killed process left. Each has
//! a size: what a container writes stays in memory when the container ends, and is charged to none that follows.

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use hutch_image::remove_tree;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount,
};

use crate::places::make_private;

/// Maximum size of the files that the node writes into volumes of one Pod, in bytes. A Secret has 1 MiB at most.
pub(crate) const GIVEN_BYTES: u64 = 32 << 20;
/// Size of the file system that holds the mount points, in bytes: it has no files.
const TOP_BYTES: u64 = 1 << 20;
/// Maximum folders for mount points: ten for each of 20,000 Pods.
const TOP_INODES: u64 = 200_000;
/// Maximum files of one file system.
const VOLUME_INODES: u64 = 65_536;
/// Memory of the kernel for a file, in bytes. The size of a file system does not count it.
pub(crate) const INODE_BYTES: u64 = 1024;
/// Maximum leftovers at one mount point: one for each process that was killed.
const MAX_LEFTOVERS: usize = 64;

/// Flags of every file system.
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Held while the top is mounted, so that two Pods do not mount it twice.
static MOUNTING: Mutex<()> = Mutex::new(());

/// Unmounts the top with everything below it, also what a killed process left. What is in use goes with its last user.
pub(crate) fn end(top: &Path) -> io::Result<()> {
    end_after(top, |_| ())
}

/// As [`end`], and removes the files of all file systems first: a mount namespace of another program may have copies of the
/// mounts. They are two folders below the top.
pub(crate) fn end_emptied(top: &Path) -> io::Result<()> {
    let below = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    end_after(top, |top| {
        if is_mounted(top).unwrap_or(false) {
            let volumes = below(top).flat_map(|namespace| below(&namespace.path()));
            // What cannot be read goes with the mount.
            volumes.for_each(|volume| drop(empty(&volume.path())));
        }
    })
}

/// Unmounts the top as often as it is mounted, each time after a call of `before`.
fn end_after(top: &Path, before: impl Fn(&Path)) -> io::Result<()> {
    for _ in 0..MAX_LEFTOVERS {
        before(top);
        if !unmount_lazily(top)? {
            break;
        }
    }
    Ok(())
}

/// Removes what a file system holds.
pub(crate) fn empty(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        // What cannot be removed goes with the mount.
        let _ = remove_tree(&entry?.path());
    }
    Ok(())
}

/// Mounts a file system of this size at `folder`, which is made; one that is there already stays. The top is mounted
/// with the first.
pub(crate) fn volume(top: &Path, folder: &Path, bytes: u64) -> io::Result<()> {
    volume_of(top, folder, bytes, VOLUME_INODES)
}

/// As [`volume`], with at most so many files.
pub(crate) fn volume_of(top: &Path, folder: &Path, bytes: u64, inodes: u64) -> io::Result<()> {
    let _one_at_a_time = MOUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_mounted(top)? {
        mount_at(top, TOP_BYTES, TOP_INODES)?;
        mount_change(top, MountPropagationFlags::PRIVATE)?;
    }
    make_private(folder)?;
    match is_mounted(folder)? {
        true => Ok(()),
        false => mount_at(folder, bytes, inodes),
    }
}

/// Changes the size of a file system that is mounted, for all that have mounted it.
pub(crate) fn resize(folder: &Path, bytes: u64, inodes: u64) -> io::Result<()> {
    Ok(mount_remount(folder, FLAGS, &*options(bytes, inodes)?)?)
}

/// Unmounts one file system and removes its folder. What is in use goes with its last user.
pub(crate) fn unmount_volume(folder: &Path) -> io::Result<()> {
    unmount_lazily(folder)?;
    match std::fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_mounted(folder: &Path) -> io::Result<bool> {
    let parent = folder.parent().ok_or(Errno::INVAL)?;
    Ok(rustix::fs::stat(folder)?.st_dev != rustix::fs::stat(parent)?.st_dev)
}

/// Unmounts the file systems and removes the folder of a Pod: `given`, and those in the folder `written`.
pub(crate) fn remove(folder: &Path, given: &Path, written: &Path) -> io::Result<()> {
    unmount_lazily(given)?;
    // Only the node writes here.
    for volume in std::fs::read_dir(written).into_iter().flatten() {
        unmount_lazily(&volume?.path())?;
    }
    remove_tree(folder)
}

/// Bytes that the file systems in a folder hold, with those of the kernel for their files.
pub(crate) fn used(written: &Path) -> u64 {
    let volumes = std::fs::read_dir(written).into_iter().flatten().flatten();
    let used = volumes.filter_map(|volume| {
        let path = volume.path();
        let system = is_mounted(&path).ok()?.then(|| rustix::fs::statvfs(&path).ok())??;
        let bytes = system.f_blocks.saturating_sub(system.f_bfree).saturating_mul(system.f_frsize);
        let files = system.f_files.saturating_sub(system.f_ffree);
        Some(bytes.saturating_add(files.saturating_mul(INODE_BYTES)))
    });
    used.fold(0, u64::saturating_add)
}

fn mount_at(folder: &Path, bytes: u64, inodes: u64) -> io::Result<()> {
    Ok(mount("hutch", folder, "tmpfs", FLAGS, &*options(bytes, inodes)?)?)
}

fn options(bytes: u64, inodes: u64) -> io::Result<CString> {
    Ok(CString::new(format!("size={bytes},nr_inodes={inodes},mode=0700"))?)
}

/// False when nothing is mounted there.
fn unmount_lazily(folder: &Path) -> Result<bool, Errno> {
    match unmount(folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(true),
        // Who may not unmount has mounted nothing.
        Err(Errno::INVAL | Errno::NOENT | Errno::PERM) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn writes_beyond_the_size_fail_and_nothing_stays_mounted() {
        hutch_testkit::require!(root);
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("memory");
        std::fs::create_dir(&top).unwrap();
        let pod = top.join("uid");
        let (written, two) = (pod.join("volumes"), pod.join("given"));
        let one = written.join("one");
        volume(&top, &one, 1 << 20).unwrap();
        volume(&top, &one, 1 << 20).expect("a second time changes nothing");
        volume(&top, &two, 1 << 20).unwrap();
        std::fs::write(one.join("fits"), vec![1; 512 << 10]).unwrap();
        assert!(std::fs::write(one.join("large"), vec![1; 1 << 20]).is_err());
        std::fs::write(two.join("other"), vec![1; 512 << 10]).expect("it has a size of its own");
        let before = used(&written);
        assert!((512 << 10..=(1 << 20) + (8 << 10)).contains(&before), "{before}");
        std::fs::write(one.join("empty"), "").unwrap();
        assert!(used(&written) > before, "a file without content costs memory too");
        remove(&pod, &two, &written).unwrap();
        assert_eq!(used(&written), 0);
        assert!(!pod.exists());
        volume(&top, &one, 1 << 20).unwrap();
        std::fs::write(one.join("left"), "left").unwrap();
        // As after a kill: the next process begins anew.
        end(&top).unwrap();
        assert!(!pod.exists());
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(dir.path().to_str().unwrap()), "{mounts}");
    }
}
