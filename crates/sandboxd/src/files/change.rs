//! Creates folders, renames entries, sets permissions.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawMode, RenameFlags, chmod, renameat, renameat_with, symlinkat};
use rustix::io::Errno;

use super::draft::{make_folder, temporary_name};
use super::{FileError, Root};
use crate::walk::Place;

impl Root {
    /// Creates a folder and its missing parents. `mode` is that of new folders, less the umask.
    ///
    /// # Errors
    /// [`FileError::Exists`] if the path exists and is not a folder.
    pub fn make_folder(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), FileError> {
        let path = path.as_ref();
        match self.walk(path)? {
            Place::Found(..) => match self.folder(path) {
                Ok(_) => Ok(()),
                Err(_) => Err(FileError::Exists),
            },
            Place::Missing(folder, names) => {
                let made = names.iter().try_fold(folder, |folder, name| make_folder(&folder, name, mode));
                made.map(drop).map_err(|errno| self.refused(path, errno))
            }
        }
    }

    /// Renames `from` to `to`. A link is renamed itself; the parent folders of `to` must exist.
    ///
    /// # Errors
    /// [`FileError::Exists`] if `to` exists, unless `replace` is set (a folder replaces only an empty
    /// folder).
    pub fn rename(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        replace: bool,
    ) -> Result<(), FileError> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let ((old_folder, old), (new_folder, new)) = (self.spot(from)?, self.spot(to)?);
        let moved = match replace {
            true => renameat(&old_folder, old.as_os_str(), &new_folder, new.as_os_str()),
            false => {
                let flags = RenameFlags::NOREPLACE;
                renameat_with(&old_folder, old.as_os_str(), &new_folder, new.as_os_str(), flags)
            }
        };
        moved.map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY => FileError::Exists,
            Errno::ISDIR | Errno::NOTDIR if replace => FileError::Exists,
            errno => self.refused(from, errno),
        })
    }

    /// Sets the permission bits of the path, with its links followed.
    ///
    /// # Errors
    /// The path is absent, or the system refuses.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), FileError> {
        let path = path.as_ref();
        let found = self.open_beneath(path, OFlags::PATH)?;
        // The descriptor's link in /proc leads to the opened file, even if the name was replaced meanwhile.
        let own = format!("/proc/self/fd/{}", found.as_raw_fd());
        chmod(own, Mode::from_raw_mode(mode as RawMode)).map_err(|errno| self.refused(path, errno))
    }

    /// Creates a link and replaces an existing entry unless that is a folder. The target is not validated: a
    /// link that leads outside is never followed here.
    ///
    /// # Errors
    /// [`FileError::IsFolder`] if the path is a folder; other errors of the system.
    pub fn link(&self, path: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<(), FileError> {
        let path = path.as_ref();
        let (folder, name) = self.spot(path)?;
        let draft = temporary_name();
        symlinkat(target.as_ref(), &folder, &draft).map_err(|errno| self.refused(path, errno))?;
        renameat(&folder, &draft, &folder, name.as_os_str()).map_err(|errno| {
            let _ = rustix::fs::unlinkat(&folder, &draft, rustix::fs::AtFlags::empty());
            if errno == Errno::ISDIR {
                FileError::IsFolder(self.shown(path))
            } else {
                self.refused(path, errno)
            }
        })
    }

    /// Returns the parent folder and the name; the entry itself is not inspected.
    fn spot(&self, path: &Path) -> Result<(OwnedFd, OsString), FileError> {
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(FileError::Outside);
        }
        match path.file_name() {
            Some(name) => Ok((self.folder(path.parent().unwrap_or(Path::new("")))?, name.to_owned())),
            None if path.components().any(|part| part == std::path::Component::ParentDir) => {
                Err(FileError::Outside)
            }
            None => Err(FileError::IsRoot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn folders_names_and_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("base")).unwrap();
        let at = |path: &str| folder.path().join("base").join(path);
        fs::write(folder.path().join("secret"), "s").unwrap();
        root.make_folder("a/b/c", 0o755).unwrap();
        root.make_folder("/a/b", 0o755).unwrap();
        fs::write(at("a/file"), "1").unwrap();
        assert!(matches!(root.make_folder("a/file", 0o755), Err(FileError::Exists)));
        assert!(matches!(root.make_folder("../x", 0o755), Err(FileError::Outside)));
        root.rename("a/file", "a/b/moved", false).unwrap();
        fs::write(at("other"), "2").unwrap();
        assert!(matches!(root.rename("other", "a/b/moved", false), Err(FileError::Exists)));
        assert!(matches!(root.rename("other", "a/b", true), Err(FileError::Exists)));
        root.rename("other", "a/b/moved", true).unwrap();
        assert_eq!(fs::read(at("a/b/moved")).unwrap(), b"2");
        assert!(matches!(root.rename("none", "x", false), Err(FileError::NotFound)));
        assert!(matches!(root.rename("", "x", false), Err(FileError::IsRoot)));
        assert!(matches!(root.rename("a", "../x", false), Err(FileError::Outside)));
        root.set_mode("a/b/moved", 0o4711).unwrap();
        assert_eq!(at("a/b/moved").metadata().unwrap().permissions().mode() & 0o7777, 0o4711);
        symlink("../secret", at("out")).unwrap();
        assert!(matches!(root.set_mode("out", 0o777), Err(FileError::Outside)));
        root.rename("out", "kept", false).unwrap();
        assert!(at("kept").is_symlink(), "the link was moved, not what it points to");
        root.link("kept", "a/b").unwrap();
        assert!(at("kept/moved").exists());
        assert!(matches!(root.link("a/b", "x"), Err(FileError::IsFolder(_))));
        assert_eq!(fs::read_dir(at("a")).unwrap().count(), 1, "nothing unfinished is left");
    }
}
