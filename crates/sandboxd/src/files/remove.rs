//! Removes files and whole trees. A tree of any depth needs few descriptors and no stack: a folder that is
//! not empty is first moved to the top of the removed tree.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::draft::temporary_name;
use super::{FileError, Root};
use crate::walk::Place;

/// Maximum names in one read of a folder.
const BATCH: usize = 1024;
/// Maximum times that a folder is found refilled by other processes before the removal fails.
const REFILL_LIMIT: usize = 1000;

impl Root {
    /// Removes the path, with its links followed: a link is left and its target is removed. The base folder
    /// itself is emptied.
    ///
    /// # Errors
    /// [`FileError::NotEmpty`] and, for the base folder, [`FileError::IsRoot`], unless `recursive`.
    pub fn remove(&self, path: impl AsRef<Path>, recursive: bool) -> Result<(), FileError> {
        let path = path.as_ref();
        let refused = |errno| self.refused(path, errno);
        let Place::Found(folder, name) = self.walk(path)? else { return Err(FileError::NotFound) };
        if name == "." {
            if !recursive {
                return Err(FileError::IsRoot);
            }
            return empty(&self.open_beneath(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?)
                .map_err(refused);
        }
        let name = CString::new(name.into_encoded_bytes()).map_err(|_| FileError::NotFound)?;
        match remove_simple(&folder, &name) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => remove_full(&folder, &name).map_err(refused),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(FileError::NotEmpty),
            other => other.map_err(refused),
        }
    }
}

/// Removes a file or an empty folder.
fn remove_simple(folder: impl AsFd, name: &CStr) -> Result<(), Errno> {
    match unlinkat(folder.as_fd(), name, AtFlags::empty()) {
        Err(Errno::ISDIR) => unlinkat(folder.as_fd(), name, AtFlags::REMOVEDIR),
        other => other,
    }
}

fn remove_full(folder: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    for _ in 0..REFILL_LIMIT {
        empty(&open_folder(folder, name)?)?;
        match unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            other => return other,
        }
    }
    Err(Errno::BUSY)
}

fn open_folder(folder: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

/// Removes everything in `top`.
fn empty(top: &OwnedFd) -> Result<(), Errno> {
    loop {
        let names = names(top)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            match remove_simple(top, &name) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => raise(top, &name)?,
                Err(Errno::NOENT) => {}
                other => other?,
            }
        }
    }
}

/// Removes the folder `name` of `top`; its folders that are not empty are moved to `top` first.
fn raise(top: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    for _ in 0..REFILL_LIMIT {
        let folder = open_folder(top, name)?;
        for inner in names(&folder)? {
            match remove_simple(&folder, &inner) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => renameat(&folder, &*inner, top, temporary_name())?,
                Err(Errno::NOENT) => {}
                other => other?,
            }
        }
        match unlinkat(top, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(()),
            other => return other,
        }
    }
    // More than a million names, or another process fills the folder; the next round of `empty` removes the
    // rest.
    Ok(())
}

fn names(folder: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
        if names.len() == BATCH {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn removal_spares_link_targets_outside() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("base")).unwrap();
        let at = |path: &str| folder.path().join("base").join(path);
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/kept"), "k").unwrap();
        fs::create_dir_all(at("tree/x/y")).unwrap();
        for number in 0..2500 {
            fs::write(at("tree/x").join(number.to_string()), "").unwrap();
        }
        symlink("../../../outside", at("tree/x/link")).unwrap();
        assert!(matches!(root.remove("tree", false), Err(FileError::NotEmpty)));
        assert!(matches!(root.remove("tree/x/link", true), Err(FileError::Outside)));
        root.remove("tree", true).unwrap();
        assert!(!at("tree").exists() && folder.path().join("outside/kept").exists());
        fs::write(at("file"), "").unwrap();
        symlink("file", at("link")).unwrap();
        root.remove("link", false).unwrap();
        assert!(at("link").is_symlink() && !at("file").exists(), "the target of a link is what is removed");
        assert!(matches!(root.remove("link", false), Err(FileError::NotFound)));
        assert!(matches!(root.remove("", false), Err(FileError::IsRoot)));
        root.remove("", true).unwrap();
        assert_eq!(fs::read_dir(at("")).unwrap().count(), 0);
    }

    #[test]
    fn a_tree_deeper_than_path_max_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let mut here = root.folder("").unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&here, "folder", Mode::from_raw_mode(0o755)).unwrap();
            here = openat(&here, "folder", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        root.remove("folder", true).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
