//! Finds what a run made or changed of the files that programs of this machine run.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec};

use super::{BENEATH, is_trusted};

/// Most names that are listed; the rest is counted.
const MAX_NAMES: usize = 100;
/// Most entries of a workspace that are looked at.
const MAX_ENTRIES: usize = 4_000_000;

/// What is new or changed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(in crate::run) struct Change {
    /// Paths within the workspace, at most 100, in order.
    pub(in crate::run) names: Vec<String>,
    /// How many more there are.
    pub(in crate::run) more: usize,
    /// Folders, at most 100, that could not be looked into, such as ones nested too deep.
    pub(in crate::run) unchecked: Vec<String>,
}

impl Change {
    /// One line for a person, if there is something to say.
    pub(in crate::run) fn line(&self) -> Option<String> {
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

/// Looks through the workspace for trusted files whose inode changed since `began`: code inside can set any time but
/// that one.
pub(super) fn since(workspace: &OwnedFd, began: Timespec) -> Change {
    let mut change = Change::default();
    // Folders to look into, and whether all in them is trusted.
    let mut folders = vec![(PathBuf::new(), false)];
    let mut left = MAX_ENTRIES;
    while let Some((path, trusted)) = folders.pop() {
        if !look_into(workspace, &path, trusted, began, &mut folders, &mut left, &mut change)
            && change.unchecked.len() < MAX_NAMES
        {
            change.unchecked.push(shown(&path));
        }
    }
    change.names.sort();
    change
}

/// Looks at the entries of one folder; false when that cannot be done.
fn look_into(
    workspace: &OwnedFd,
    path: &Path,
    trusted: bool,
    began: Timespec,
    folders: &mut Vec<(PathBuf, bool)>,
    left: &mut usize,
    change: &mut Change,
) -> bool {
    let name = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::openat2(workspace, name, flags, Mode::empty(), BENEATH) else {
        return false;
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
        let is_git_file = path.file_name() == Some(OsStr::new(".git")) && known != FileType::Directory;
        let trusted = trusted || is_trusted(&path) || is_git_file;
        if !trusted && known != FileType::Directory && known != FileType::Unknown {
            continue;
        }
        let Ok(status) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let ctime = (status.st_ctime, i64::try_from(status.st_ctime_nsec).unwrap_or(0));
        let is_folder = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
        if trusted && ctime >= (began.tv_sec, began.tv_nsec) {
            match change.names.len() < MAX_NAMES {
                true => change.names.push(shown(&path)),
                false => change.more += 1,
            }
        }
        if is_folder {
            folders.push((path, trusted));
        }
    }
    true
}

/// A path on one line, whatever bytes it has.
fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut shown: String = text.chars().take(300).flat_map(char::escape_debug).collect();
    if text.chars().count() > 300 {
        shown.push_str("...");
    }
    shown
}
