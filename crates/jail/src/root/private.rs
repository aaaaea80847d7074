//! Mounts of one jail alone: writable copies of folders of the caller, and what hides files.
//!
//! Each is made on a stage, a tmpfs that is the working directory and that goes away later. The mounts stay.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use super::{FOLDER, SKELETON_BYTES, failed, make_sides, memory, overlay, tmpfs};
use crate::error::Error;
use crate::folder::CheckedFolder;
use crate::sources::Sources;
use crate::spec::{Mount, MountSource};
use crate::sys;

/// Bound of an empty folder.
const HIDDEN_BYTES: u64 = 4096;
/// Where the stage around a runtime is: a folder that is always there, and that nothing needs meanwhile.
const STAGE: &str = "/proc";

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// Returns the error of a folder that cannot have a writable copy here.
pub(super) fn no_copy(folder: &CheckedFolder) -> impl Fn(Errno) -> Error {
    move |errno| Error::NoCopy { folder: folder.path().to_owned(), errno: errno.into() }
}

/// Returns an overlay above a folder, with a writable side in memory.
pub(super) fn layered(number: usize, folder: &OwnedFd, bytes: u64) -> Result<OwnedFd, Errno> {
    let [lower, side, merged] = ["c", "s", "w"].map(|kind| format!("{kind}{number}"));
    let memory = tmpfs(bytes, "0755")?;
    for (name, tree) in [(&lower, folder), (&side, &memory)] {
        rustix::fs::mkdirat(CWD, name, FOLDER)?;
        move_mount(tree.as_fd(), "", CWD, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    make_sides(&format!("{side}/"), folder)?;
    overlay(&merged, &format!("userxattr,lowerdir={lower},upperdir={side}/upper,workdir={side}/work"), 0)?;
    open_tree(CWD, merged, CLONE)
}

/// Returns an empty folder, or an empty file without any permission.
pub(super) fn hidden(folder: bool) -> Result<OwnedFd, Errno> {
    let tree = if folder {
        tmpfs(HIDDEN_BYTES, "0555")?
    } else {
        match rustix::fs::mknodat(CWD, "hidden", FileType::RegularFile, Mode::empty(), 0) {
            Ok(()) | Err(Errno::EXIST) => open_tree(CWD, "hidden", CLONE)?,
            Err(errno) => return Err(errno),
        }
    };
    sys::set_mount_attributes(tree.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)?;
    Ok(tree)
}

/// Returns the mounts of the jail around a runtime as detached mounts.
pub(crate) fn prepare_around_runtime(mounts: &[Mount], sources: &mut Sources) -> Result<Vec<OwnedFd>, Error> {
    let needs_stage =
        |mount: &Mount| matches!(mount.source, MountSource::Layered { .. } | MountSource::Hidden { .. });
    let staged = mounts.iter().any(needs_stage);
    if staged {
        let stage = tmpfs(SKELETON_BYTES, "0755").map_err(failed("tmpfs"))?;
        move_mount(stage.as_fd(), "", CWD, STAGE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(failed("attach the stage"))?;
        rustix::process::fchdir(&stage).map_err(failed("enter the stage"))?;
    }
    let ready = mounts.iter().enumerate().map(|(number, mount)| {
        let failed = |step: &'static str| super::at(&mount.target, step);
        match &mount.source {
            MountSource::Bind(_) | MountSource::Beneath { .. } => sources.next(),
            MountSource::Layered { folder, bytes } => {
                layered(number, &sources.next()?, *bytes).map_err(no_copy(folder))
            }
            MountSource::Hidden { folder } => hidden(*folder).map_err(failed("hide")),
            MountSource::Tmpfs { bytes, mode } => memory(mount, *bytes, *mode),
            MountSource::Host { .. } => Err(Error::Spec("no overlays around a runtime".into())),
        }
    });
    let ready = ready.collect::<Result<_, _>>()?;
    if staged {
        rustix::process::chdir("/").map_err(failed("leave the stage"))?;
        unmount(STAGE, UnmountFlags::DETACH).map_err(failed("let the stage go"))?;
    }
    Ok(ready)
}
