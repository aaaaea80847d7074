//! Gives volumes to the group that `fsGroup` names, as a kubelet does.

use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

use rustix::fs::Mode;

use super::open_folder;

/// Rights of the group to files and folders that only the node writes.
const FILE: u32 = 0o440;
const FOLDER: u32 = 0o2550;

/// Gives a folder that containers write to a group.
pub(super) fn give(path: &Path, group: u32) -> io::Result<()> {
    let folder = open_folder(path)?;
    rustix::fs::fchown(&folder, None, Some(rustix::fs::Gid::from_raw(group)))?;
    let mode = rustix::fs::fstat(&folder)?.st_mode & 0o7777 | 0o2070;
    Ok(rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode))?)
}

/// Gives a folder that only the node writes to a group that may read it, with all that is in it.
pub(super) fn let_read(path: &Path, group: u32) -> io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    lchown(path, None, Some(group))?;
    let more = if found.is_dir() { FOLDER } else { FILE };
    let mode = found.permissions().mode() & 0o7777 | more;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    if !found.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let_read(&entry?.path(), group)?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn group_reads_what_the_node_has_written() {
        hutch_testkit::require!(root);
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("v");
        std::fs::create_dir_all(volume.join("deep")).unwrap();
        for (name, mode) in [("a", 0o400), ("deep/b", 0o644)] {
            std::fs::write(volume.join(name), "").unwrap();
            std::fs::set_permissions(volume.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let_read(&volume, 77).unwrap();
        for (name, mode) in [("", 0o2755), ("a", 0o440), ("deep", 0o2755), ("deep/b", 0o644)] {
            let found = volume.join(name).metadata().unwrap();
            assert_eq!((found.gid(), found.mode() & 0o7777), (77, mode), "{name:?}");
        }
    }
}
