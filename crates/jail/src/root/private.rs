//! Mounts of one jail alone: writable copies of folders of the caller, and what hides files.
//!
//! Each is made on a stage, a tmpfs that is the working directory and that goes away later. The mounts stay.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::{FOLDER, failed, make_sides, names_of_layers, overlay, read_only_overlay, tmpfs};
use crate::error::Error;
use crate::files::FileRules;
use crate::folder::CheckedFolder;
use crate::spec::{Spec, Upper};
use crate::sys;

/// Bound of an empty folder.
const HIDDEN_BYTES: u64 = 4096;

pub(super) const CLONE: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

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

/// Returns the empty file that rules for files need, if there are any.
pub(super) fn hidden_file(files: &FileRules) -> Result<Option<OwnedFd>, Error> {
    (!files.is_empty()).then(|| hidden(false)).transpose().map_err(failed("an empty file"))
}

/// Returns the stacked layers without the writable side, if there are rules for files and an earlier jail may have written to
/// that side.
pub(super) fn image(spec: &Spec) -> Result<Option<OwnedFd>, Error> {
    const IMAGE: &str = "image";
    if spec.files.is_empty() || !matches!(spec.root.upper, Upper::Dir(_)) {
        return Ok(None);
    }
    let layers = names_of_layers(spec.root.layers.len()).join(":");
    let tree = read_only_overlay(&layers, IMAGE).and_then(|()| open_tree(CWD, IMAGE, CLONE));
    tree.map(Some).map_err(failed("overlay of the image"))
}
