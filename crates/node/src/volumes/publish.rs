//! Writes the files of a volume so that readers see either all of the old ones or all of the new ones, as a kubelet does.
//!
//! The files are in a folder that is named by the time. The link `..data` leads to it and is replaced by one rename. Each
//! name at the top of the volume is a link through `..data`. Code inside a sandbox cannot write here.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use hutch_image::{Folder, PathSegment, remove_tree};
use jiff::Timestamp;
use rustix::fs::{AtFlags, Dir, readlinkat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::group;
use crate::folders::{make_folder, open_folder};
use crate::memory;

/// Link to the present files.
const DATA: &CStr = c"..data";
/// The same before it replaces the earlier one.
const NEXT: &CStr = c"..data_tmp";
/// Maximum files of one such volume.
const MAX_FILES: usize = 10_000;
/// Maximum size of the files of one such volume, in bytes.
const MAX_VOLUME_BYTES: usize = memory::GIVEN_BYTES as usize;

/// A file of a volume.
#[derive(Debug, Hash)]
pub(super) struct Item {
    pub(super) path: String,
    pub(super) content: Vec<u8>,
    pub(super) mode: i32,
}

/// Files and bytes that a volume still takes.
#[derive(Debug)]
pub(super) struct Room {
    files: usize,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room { files: MAX_FILES, bytes: MAX_VOLUME_BYTES }
    }
}

impl Room {
    /// Accounts for a file of this size. Called before its content is copied.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.files = self.files.checked_sub(1).ok_or_else(|| format!("more than {MAX_FILES} files"))?;
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or_else(|| format!("more than {MAX_VOLUME_BYTES} bytes"))?;
        Ok(())
    }
}

/// Returns a number by which files that have changed are noticed.
pub(super) fn digest(items: &[Item]) -> u64 {
    let mut hasher = DefaultHasher::new();
    items.hash(&mut hasher);
    hasher.finish()
}

/// Writes the files into a folder that is made anew. Blocks.
pub(super) fn write_new(folder: &Path, items: &[Item], group: Option<u32>) -> io::Result<()> {
    remove_tree(folder)?;
    make_folder(folder, 0o755, None)?;
    if let Some(group) = group {
        group::let_read(folder, group)?;
    }
    publish(folder, items, group)
}

/// Replaces the files of a folder that [`write_new`] made. Blocks.
pub(super) fn publish(path: &Path, items: &[Item], group: Option<u32>) -> io::Result<()> {
    check(items)?;
    let top = open_folder(path)?;
    let stamp = format!("..{}", Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S.%9f"));
    let name = PathSegment::new(stamp.clone()).ok_or(Errno::INVAL)?;
    let mut written = write(&Folder::open(path)?.make_folders(Path::new(&stamp))?, items);
    if let Some(group) = group {
        written = written.and_then(|()| group::let_read(&name.below(path), group));
    }
    if let Err(error) = written {
        let _ = remove_tree(&name.below(path));
        return Err(error);
    }
    match unlinkat(&top, NEXT, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    symlinkat(&*stamp, &top, NEXT)?;
    renameat(&top, NEXT, &top, DATA)?;
    let names: BTreeSet<&OsStr> =
        items.iter().filter_map(|item| Path::new(&item.path).iter().next()).collect();
    for name in &names {
        let target = [b"..data/", name.as_bytes()].concat();
        match symlinkat(&*target, &top, *name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    tidy(&top, path, &names)
}

/// Removes names that are no longer there, and earlier files.
fn tidy(top: &OwnedFd, path: &Path, names: &BTreeSet<&OsStr>) -> io::Result<()> {
    let present = readlinkat(top, DATA, Vec::new())?;
    for entry in Dir::read_from(top.as_fd())? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c"..", DATA, &*present].contains(&name) {
            continue;
        }
        // A folder was made for a subPath that leads nowhere.
        let is_kept = names.contains(OsStr::from_bytes(name.to_bytes()));
        if let Some(name) = name.to_str().ok().and_then(PathSegment::new).filter(|_| !is_kept) {
            remove_tree(&name.below(path))?;
        }
    }
    Ok(())
}

fn check(items: &[Item]) -> io::Result<()> {
    let mut room = Room::default();
    items.iter().try_for_each(|item| room.take(item.content.len())).map_err(io::Error::other)?;
    for item in items {
        let path = Path::new(&item.path);
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || path.file_name().is_none() || item.path.starts_with("..") {
            return Err(io::Error::other(format!("{:?} is not a path within the volume", item.path)));
        }
    }
    Ok(())
}

fn write(folder: &Folder, items: &[Item]) -> io::Result<()> {
    for item in items {
        let path = Path::new(&item.path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let mut file = folder.make_folders(parent)?.create_file(Path::new(name))?;
        file.write_all(&item.content)?;
        let mode = u32::try_from(item.mode).unwrap_or(0o644) & 0o777;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    fn item(path: &str, content: &str) -> Item {
        Item { path: path.into(), content: content.into(), mode: 0o400 }
    }

    #[test]
    fn items_become_files_and_never_leave_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        write_new(&volume, &[item("a", "1"), item("x/y", "2")], None).unwrap();
        assert_eq!(std::fs::read_to_string(volume.join("a")).unwrap(), "1");
        assert_eq!(std::fs::read_to_string(volume.join("x/y")).unwrap(), "2");
        let mode = std::fs::metadata(volume.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o400);
        for path in ["../escape", "/escape", "..data", "..x/y", "", "x/../y"] {
            assert!(publish(&volume, &[item(path, "3")], None).is_err(), "{path:?}");
        }
        assert_eq!(std::fs::read_to_string(volume.join("a")).unwrap(), "1", "a refusal changes nothing");
        assert!(!dir.path().join("escape").exists());
    }

    #[test]
    fn planted_links_are_not_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let volume = dir.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        std::os::unix::fs::symlink(outside.path(), volume.join("x")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("file"), volume.join("a")).unwrap();
        write_new(&volume, &[item("a", "1"), item("x/y", "2")], None).unwrap();
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        assert!(volume.join("x/y").is_file());
    }

    #[test]
    fn publishing_replaces_all_files_at_once_and_removes_the_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        write_new(&volume, &[item("a", "1"), item("gone", "1")], None).unwrap();
        let before = std::fs::read_link(volume.join("..data")).unwrap();
        let open = std::fs::File::open(volume.join("a")).unwrap();
        publish(&volume, &[item("a", "2"), item("new/deep", "2")], None).unwrap();
        assert_eq!(std::fs::read_to_string(volume.join("a")).unwrap(), "2");
        assert_eq!(std::io::read_to_string(open).unwrap(), "1", "an open file stays as it was");
        let mut names: Vec<String> = std::fs::read_dir(&volume)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let present = std::fs::read_link(volume.join("..data")).unwrap();
        assert_ne!(present, before);
        assert_eq!(names, [present.to_str().unwrap(), "..data", "a", "new"]);
    }

    #[test]
    fn folder_that_was_made_for_a_sub_path_does_not_hold_up_a_refresh() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        write_new(&volume, &[item("a", "1")], None).unwrap();
        std::fs::create_dir_all(volume.join("missing/deep")).unwrap();
        publish(&volume, &[item("a", "2")], None).unwrap();
        assert_eq!(std::fs::read_to_string(volume.join("a")).unwrap(), "2");
        let left = std::fs::read_dir(&volume).unwrap().count();
        assert_eq!(left, 3, "the files, the link to them, and a name");
    }

    #[test]
    fn digest_changes_with_path_content_and_mode() {
        let one = digest(&[item("a", "1")]);
        assert_eq!(one, digest(&[item("a", "1")]));
        let mode = Item { mode: 0o644, ..item("a", "1") };
        for other in [item("b", "1"), item("a", "2"), mode] {
            assert_ne!(one, digest(&[other]));
        }
    }
}
