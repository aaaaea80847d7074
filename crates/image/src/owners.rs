//! Sets owners of entries that a process without privileges has made, after its end.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::beneath::Folder;
use crate::unpack::{MAX_ENTRIES, MAX_PATH_BYTES};

/// Maximum entries of an unpacked layer, with the folders that were made for them.
const MAX_FOUND: u64 = 2 * MAX_ENTRIES;

/// Owners of the entries of one folder.
pub(crate) struct Setter {
    root: Folder,
    /// User of that process. What still belongs to it in the end goes to root.
    id: u32,
    /// Folder of the last entry.
    parent: Option<(PathBuf, Folder)>,
    /// Inodes with several names whose owner was set.
    linked: HashSet<u64>,
}

impl Setter {
    pub(crate) fn new(root: Folder, id: u32) -> Setter {
        Setter { root, id, parent: None, linked: HashSet::new() }
    }

    /// Sets the owner of an entry. Two calls of the kernel beside those for a new parent.
    pub(crate) fn set(&mut self, path: &Path, owner: (u32, u32)) -> io::Result<()> {
        let Some(name) = path.file_name() else {
            return Ok(self.root.set_owner(owner)?);
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.parent.as_ref().is_none_or(|(known, _)| known != parent) {
            self.parent = Some((parent.to_owned(), self.root.folder(parent)?));
        }
        let Some((_, folder)) = &self.parent else { return Ok(()) };
        let name = Path::new(name);
        let found = match folder.metadata(name) {
            // A later entry has replaced it.
            Err(Errno::NOENT) => return Ok(()),
            found => found?,
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory && found.st_nlink > 1 {
            // Without Landlock the process could give a file of this machine a name here.
            if found.st_uid != self.id && !self.linked.contains(&found.st_ino) {
                return Err(io::Error::other("it is a file of another user that has a further name"));
            }
            self.linked.insert(found.st_ino);
        }
        Ok(folder.set_link_owner(name, Some(owner))?)
    }

    /// Gives everything that still belongs to the process to root, such as folders that were made for an entry.
    pub(crate) fn finish(self) -> io::Result<()> {
        let too_large = |what| io::Error::new(io::ErrorKind::FileTooLarge, what);
        let mut pending = vec![Vec::new()];
        let (mut left, mut bytes) = (MAX_FOUND, 0);
        while let Some(path) = pending.pop() {
            bytes -= path.len() as u64;
            let folder = self.root.folder(Path::new(OsStr::from_bytes(&path)))?;
            if folder.owner()? == self.id {
                folder.set_owner((0, 0))?;
            }
            for entry in folder.entries()? {
                let entry = entry?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                left = u64::checked_sub(left, 1).ok_or_else(|| too_large("too many entries"))?;
                let name = Path::new(OsStr::from_bytes(name.to_bytes()));
                let found = folder.metadata(name)?;
                if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                    let below = below(&path, name);
                    bytes += below.len() as u64;
                    pending.push(below);
                } else if found.st_uid == self.id {
                    folder.set_link_owner(name, Some((0, 0)))?;
                }
                if bytes > MAX_PATH_BYTES {
                    return Err(too_large("the paths of its folders are too long"));
                }
            }
        }
        Ok(())
    }
}

/// Path of an entry of a folder below the root.
fn below(folder: &[u8], name: &Path) -> Vec<u8> {
    let mut path = folder.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_os_str().as_bytes());
    path
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in temporary folders")]
mod tests {
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    use super::*;

    const OWN: (u32, u32) = (5, 6);

    fn uid(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().uid()
    }

    fn give(path: &Path) {
        lchown(path, Some(7), Some(7)).unwrap();
    }

    #[test]
    fn owners_of_a_report_change_nothing_outside() {
        hutch_testkit::require!(root);
        let machine = tempfile::tempdir().unwrap();
        let layer = tempfile::tempdir_in(&machine).unwrap();
        let outside = machine.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "").unwrap();
        symlink(&outside, layer.path().join("link")).unwrap();
        give(layer.path());
        std::fs::create_dir(layer.path().join("folder")).unwrap();
        give(&layer.path().join("folder"));
        std::fs::write(layer.path().join("folder/file"), "").unwrap();
        let mut setter = Setter::new(Folder::open(layer.path()).unwrap(), 7);
        setter.set(Path::new("folder/file"), OWN).unwrap();
        setter.set(Path::new("link"), OWN).unwrap();
        assert!(setter.set(Path::new("link/file"), OWN).is_err());
        assert!(setter.set(Path::new("../outside/file"), OWN).is_err());
        let absolute = outside.join("file");
        assert!(setter.set(&absolute, OWN).is_err());
        setter.finish().unwrap();
        assert_eq!(uid(&layer.path().join("folder/file")), 5);
        assert_eq!(uid(&layer.path().join("link")), 5);
        assert_eq!(uid(&layer.path().join("folder")), 0);
        assert_eq!(uid(layer.path()), 0);
        assert_eq!((uid(&outside), uid(&outside.join("file"))), (0, 0));
    }

    #[test]
    fn file_of_the_machine_with_a_name_in_the_layer_keeps_its_owner() {
        hutch_testkit::require!(root);
        let machine = tempfile::tempdir().unwrap();
        let layer = tempfile::tempdir_in(&machine).unwrap();
        let outside = machine.path().join("file");
        std::fs::write(&outside, "").unwrap();
        std::fs::hard_link(&outside, layer.path().join("linked")).unwrap();
        let mut setter = Setter::new(Folder::open(layer.path()).unwrap(), 7);
        assert!(setter.set(Path::new("linked"), OWN).is_err());
        setter.finish().unwrap();
        assert_eq!(uid(&outside), 0);
    }

    #[test]
    fn file_of_the_layer_with_two_names_may_have_its_owner_set_twice() {
        hutch_testkit::require!(root);
        let layer = tempfile::tempdir().unwrap();
        let (one, two) = (layer.path().join("one"), layer.path().join("two"));
        std::fs::write(&one, "").unwrap();
        give(&one);
        std::fs::hard_link(&one, &two).unwrap();
        let mut setter = Setter::new(Folder::open(layer.path()).unwrap(), 7);
        setter.set(Path::new("one"), (1, 1)).unwrap();
        setter.set(Path::new("one"), OWN).unwrap();
        setter.finish().unwrap();
        assert_eq!((uid(&one), uid(&two)), (5, 5));
    }

    #[test]
    fn what_has_no_owner_of_its_own_goes_to_root() {
        hutch_testkit::require!(root);
        let layer = tempfile::tempdir().unwrap();
        let deep = layer.path().join("a/b/c");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), "").unwrap();
        for path in ["", "a", "a/b", "a/b/c", "a/b/c/file"] {
            give(&layer.path().join(path));
        }
        let mut setter = Setter::new(Folder::open(layer.path()).unwrap(), 7);
        setter.set(Path::new("a/b"), OWN).unwrap();
        setter.finish().unwrap();
        let owners = ["", "a", "a/b", "a/b/c", "a/b/c/file"].map(|path| uid(&layer.path().join(path)));
        assert_eq!(owners, [0, 0, 5, 0, 0]);
    }
}
