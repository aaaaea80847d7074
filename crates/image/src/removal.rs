//! Removes a folder with everything below it, whatever a sandbox has put there.
//!
//! Folders are flattened: a subfolder that holds something is emptied, and the folders in it are moved to the top.
//! Depth therefore costs neither stack nor descriptors nor long paths. Every call names one component below an open
//! folder, so neither a link nor a concurrent rename leads out of the folder. Mounts are not entered.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Maximum entries removed by one call. It bounds a removal that races a process which keeps adding entries.
const MAX_ENTRIES: u64 = 1 << 30;
/// Maximum subvolumes of btrfs within each other. A folder cannot be moved from one to another, so each is emptied by itself.
const MAX_SUBVOLUMES: u8 = 8;
/// Stem of the names that moved folders get at the top.
const MOVED: &str = "hutch-moved-";

/// Removes the file or folder at `path` with everything below it; nothing there is no error.
///
/// The parent of `path` is trusted, what lies at and below `path` is not. Uses a bounded stack and three descriptors, and two
/// more for each of the subvolumes within each other.
///
/// # Errors
/// When something stays behind: a mount point, an immutable file, an I/O error. Everything else is removed even so; the
/// error is the first one.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a path that can be removed"));
    };
    let name = CString::new(name.as_encoded_bytes())?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match rustix::fs::openat(CWD, parent, flags, Mode::empty()) {
        Ok(parent) => remove_at(parent.as_fd(), &name).map_err(io::Error::from),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn remove_at(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        // Some file systems answer so for a folder.
        Err(Errno::PERM) if is_folder(parent, name) => {}
        Err(errno) => return Err(errno),
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    match open(parent, name).and_then(Dir::new) {
        Ok(top) => Removal { moved: 0, left: MAX_ENTRIES, subvolumes: 0, error: None }.empty(top)?,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn is_folder(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

/// Opens a subfolder: no link, no mount point.
fn open(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat2(parent, name, flags, Mode::empty(), within) {
        // A folder of an image whose owner may not read it. Root may always.
        Err(Errno::ACCESS) if !rustix::process::geteuid().is_root() => {
            let path = flags.difference(OFlags::RDONLY) | OFlags::PATH;
            let folder = rustix::fs::openat2(parent, name, path, Mode::empty(), within)?;
            let own = format!("/proc/self/fd/{}", folder.as_raw_fd());
            rustix::fs::chmod(own, Mode::RWXU)?;
            rustix::fs::openat2(parent, name, flags, Mode::empty(), within)?
        }
        opened => opened?,
    };
    if !rustix::process::geteuid().is_root() {
        // Its entries can be removed then. Where that fails, their removal fails too.
        let _ = rustix::fs::fchmod(&opened, Mode::RWXU);
    }
    Ok(opened)
}

/// Result of removing an entry.
enum Outcome {
    Removed,
    /// It is a folder that holds something.
    Filled,
    /// It stays, for the reason that was noted.
    Stays,
}

/// A removal under way.
struct Removal {
    /// Number of the next moved folder.
    moved: u64,
    /// Entries that may still be removed or moved.
    left: u64,
    /// Subvolumes around the folder that is emptied.
    subvolumes: u8,
    /// The first failure of the current pass.
    error: Option<Errno>,
}

impl Removal {
    /// Empties a folder, in passes: each removes what is there, and what an earlier pass moved there.
    fn empty(&mut self, mut top: Dir) -> Result<(), Errno> {
        loop {
            let before = self.left;
            self.error = None;
            top.rewind();
            let mut found = false;
            while let Some(name) = next(&mut top)? {
                found = true;
                self.remove_or_flatten(top.fd()?, &name);
                if self.left == 0 {
                    return Err(Errno::FBIG);
                }
            }
            if !found {
                return Ok(());
            }
            if self.left == before {
                return Err(self.error.unwrap_or(Errno::NOTEMPTY));
            }
        }
    }

    /// Removes an entry of the top folder. Of a folder that holds something the files are removed, and its folders are
    /// moved to the top.
    fn remove_or_flatten(&mut self, top: BorrowedFd<'_>, name: &CStr) {
        if !matches!(self.remove(top, name), Outcome::Filled) {
            return;
        }
        match self.flatten(top, name) {
            Ok(()) | Err(Errno::NOENT) => drop(self.remove(top, name)),
            Err(errno) => self.note(errno),
        }
    }

    fn flatten(&mut self, top: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let folder = open(top, name)?;
        let is_subvolume = rustix::fs::fstat(&folder)?.st_dev != rustix::fs::fstat(top)?.st_dev;
        let mut entries = Dir::new(folder)?;
        if is_subvolume {
            return self.empty_subvolume(entries);
        }
        while let Some(inner) = next(&mut entries)? {
            let folder = entries.fd()?;
            if self.left > 0 && matches!(self.remove(folder, &inner), Outcome::Filled) {
                self.lift(folder, &inner, top);
            }
        }
        Ok(())
    }

    fn empty_subvolume(&mut self, top: Dir) -> Result<(), Errno> {
        if self.subvolumes == MAX_SUBVOLUMES {
            return Err(Errno::XDEV);
        }
        let subvolumes = self.subvolumes + 1;
        let mut inner = Removal { moved: 0, left: self.left, subvolumes, error: None };
        let emptied = inner.empty(top);
        self.left = inner.left;
        emptied
    }

    /// Removes a file, a link or an empty folder.
    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Outcome {
        let result = match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR),
            Err(Errno::PERM) if is_folder(parent, name) => {
                rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
            }
            other => other,
        };
        match result {
            Ok(()) => {
                self.left = self.left.saturating_sub(1);
                Outcome::Removed
            }
            Err(Errno::NOENT) => Outcome::Removed,
            Err(Errno::NOTEMPTY | Errno::EXIST) => Outcome::Filled,
            Err(errno) => {
                self.note(errno);
                Outcome::Stays
            }
        }
    }

    /// Moves a folder to the top under a name of its own.
    fn lift(&mut self, parent: BorrowedFd<'_>, name: &CStr, top: BorrowedFd<'_>) {
        while self.left > 0 {
            let Ok(target) = CString::new(format!("{MOVED}{}", self.moved)) else { return };
            self.moved += 1;
            match rustix::fs::renameat(parent, name, top, &target) {
                Ok(()) => {
                    self.left -= 1;
                    return;
                }
                Err(Errno::NOENT) => return,
                // A sandbox may have taken the name. An empty folder of that name is replaced, which removes it.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => self.left -= 1,
                Err(errno) => return self.note(errno),
            }
        }
    }

    fn note(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }
}

/// The next name of a folder, without `.` and `..`.
fn next(entries: &mut Dir) -> Result<Option<CString>, Errno> {
    for entry in entries.by_ref() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
#[path = "removal/tests.rs"]
mod tests;
