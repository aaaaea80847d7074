//! Finds the files that a run created or changed and that programs of this machine run.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{BENEATH, is_trusted};

/// Maximum listed names; the rest is counted.
const MAX_NAMES: usize = 100;
/// Maximum checked entries of a workspace.
const MAX_ENTRIES: usize = 4_000_000;

/// Folders of which programs trust a part.
const FOLDERS: [&str; 2] = [".git", ".cargo"];

/// New and changed files.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Paths within the workspace, and absolute ones of the jail for other folders: of each at most 100, hooks and settings of
    /// git first.
    pub(crate) names: Vec<String>,
    /// Number of further paths.
    pub(crate) more: usize,
    /// Folders, at most 100, that could not be read, such as ones nested too deep.
    pub(crate) unchecked: Vec<String>,
}

impl Change {
    /// Returns the change of several folders as one.
    pub(crate) fn all(changes: impl Iterator<Item = Change>) -> Change {
        let mut all = Change::default();
        for Change { names, more, unchecked } in changes {
            all.names.extend(names);
            all.more += more;
            all.unchecked.extend(unchecked);
        }
        all
    }

    /// Returns the change with the paths of a folder that is mounted at `target`.
    pub(super) fn at(self, target: &Path) -> Change {
        let at = |name: String| format!("{}/{name}", target.display());
        let all = |names: Vec<String>| names.into_iter().map(at).collect();
        Change { names: all(self.names), more: self.more, unchecked: all(self.unchecked) }
    }

    /// Returns the line to print, if there is a change.
    pub(crate) fn line(&self) -> Option<String> {
        let mut line = String::new();
        if !self.names.is_empty() {
            line = format!(
                "programs of this machine may run what is new or changed here: {}",
                self.names.join(", ")
            );
            if self.more > 0 {
                line += &format!(", and {} more", self.more);
            }
        }
        if !self.unchecked.is_empty() {
            let separator = if line.is_empty() { "" } else { "; " };
            line += &format!("{separator}these folders could not be checked: {}", self.unchecked.join(", "));
        }
        (!line.is_empty()).then_some(line)
    }
}

/// The trusted files of a workspace by path, with inode and ctime. Code inside can set every other time, and a moved file
/// has another path. Stored as hashes with a random key.
pub(super) struct Snapshot {
    key: RandomState,
    files: HashMap<u64, u64>,
}

impl Snapshot {
    /// Reads the workspace.
    pub(super) fn of(workspace: &OwnedFd) -> Snapshot {
        let key = RandomState::new();
        let mut files = HashMap::new();
        // A folder that still cannot be read at the end is reported then.
        let _ = walk(workspace, &mut |path, status| {
            files.insert(key.hash_one(path), version(&key, status));
        });
        Snapshot { key, files }
    }

    /// Returns new and changed files, but for placeholders, which another run uses.
    pub(super) fn compare(&self, workspace: &OwnedFd, is_placeholder: &dyn Fn(&Path) -> bool) -> Change {
        let mut found = BTreeSet::new();
        let mut more = 0;
        let unchecked = walk(workspace, &mut |path, status| {
            let is_known = self.files.get(&self.key.hash_one(path)) == Some(&version(&self.key, status));
            if is_known || is_placeholder(path) {
                return;
            }
            found.insert((rank(path), shown(path)));
            if found.len() > MAX_NAMES {
                found.pop_last();
                more += 1;
            }
        });
        Change { names: found.into_iter().map(|(_, name)| name).collect(), more, unchecked }
    }
}

/// Order in the output: files that run without a question come first.
fn rank(path: &Path) -> u8 {
    let has = |name: &str| path.components().any(|part| part.as_os_str() == name);
    match (has(".git"), has(".envrc") || has(".cargo")) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

fn version(key: &RandomState, status: &Stat) -> u64 {
    key.hash_one((status.st_dev, status.st_ino, status.st_ctime, status.st_ctime_nsec))
}

/// Visits each trusted file and folder; returns the folders, at most 100, that could not be read.
fn walk(workspace: &OwnedFd, visit: &mut dyn FnMut(&Path, &Stat)) -> Vec<String> {
    let mut unchecked = Vec::new();
    // Folders to read, and true if all in them is trusted.
    let mut folders = vec![(PathBuf::new(), false)];
    let mut left = MAX_ENTRIES;
    while let Some((path, trusted)) = folders.pop() {
        if !read_folder(workspace, &path, trusted, &mut folders, &mut left, visit)
            && unchecked.len() < MAX_NAMES
        {
            unchecked.push(shown(&path));
        }
    }
    unchecked
}

/// Visits the entries of one folder; returns false if it cannot be read.
fn read_folder(
    workspace: &OwnedFd,
    path: &Path,
    trusted: bool,
    folders: &mut Vec<(PathBuf, bool)>,
    left: &mut usize,
    visit: &mut dyn FnMut(&Path, &Stat),
) -> bool {
    let name = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match rustix::fs::openat2(workspace, name, flags, Mode::empty(), BENEATH) {
        Ok(folder) => folder,
        // It is gone: a placeholder of another run, for example.
        Err(errno) => return errno == Errno::NOENT,
    };
    let Ok(entries) = rustix::fs::Dir::read_from(&folder) else { return false };
    for entry in entries {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Some(rest) = left.checked_sub(1) else { return false };
        *left = rest;
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        let known = entry.file_type();
        // A file or link in the place of a folder chooses what is in it.
        let of_folder = path.file_name().is_some_and(|name| FOLDERS.iter().any(|folder| name == *folder));
        let trusted = trusted || is_trusted(&path) || (of_folder && known != FileType::Directory);
        if !trusted && known == FileType::Directory {
            folders.push((path, false));
            continue;
        }
        if !trusted && known != FileType::Unknown {
            continue;
        }
        let Ok(status) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if trusted && !is_sample(&path) {
            visit(&path, &status);
        }
        if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
            folders.push((path, trusted));
        }
    }
    true
}

/// Returns true for a sample that `git init` makes, which git does not run: a real hook would be hard to see among them.
fn is_sample(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("sample"))
        && path.parent().is_some_and(|folder| folder.ends_with(".git/hooks"))
}

/// Returns a path of any bytes on one line.
fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut shown: String = text.chars().take(300).flat_map(char::escape_debug).collect();
    if text.chars().count() > 300 {
        shown.push_str("...");
    }
    shown
}
