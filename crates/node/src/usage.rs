//! Disk use of a folder that a sandbox writes.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Maximum depth that is measured, which is also the number of descriptors that it takes.
const MAX_DEPTH: usize = 256;
/// Maximum entries that are counted: code inside may add more meanwhile.
const MAX_ENTRIES: u64 = 50_000_000;
/// Size of a block of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

/// Part of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Allocated bytes.
    pub bytes: u64,
    /// Files, folders and links.
    pub inodes: u64,
}

impl Usage {
    /// Usage of a folder that is too deep or too large to be measured: more than that of any other.
    const UNMEASURED: Usage = Usage { bytes: u64::MAX, inodes: u64::MAX };

    pub(crate) fn add(&mut self, stat: &Stat) {
        // Each name of a file adds a part of it.
        let links = u64::from(stat.st_nlink.max(1) as u32);
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
        self.bytes = self.bytes.saturating_add(if is_folder { bytes } else { bytes / links });
        self.inodes = self.inodes.saturating_add(1);
    }

    /// Usage of both.
    #[must_use]
    pub(crate) fn and(self, other: Usage) -> Usage {
        Usage {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

/// Measures what lies below a folder, without following links or crossing mount points. What cannot be read counts as
/// nothing. Blocks.
pub fn measure(folder: &Path) -> Usage {
    measure_within(folder, MAX_ENTRIES)
}

fn measure_within(folder: &Path, most: u64) -> Usage {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, folder, flags, Mode::empty()).and_then(Dir::new);
    let Ok(top) = top else { return Usage::default() };
    let (mut usage, mut open) = (Usage::default(), vec![top]);
    while let Some(entries) = open.last_mut() {
        match enter(entries, &mut usage, most) {
            Some(_) if open.len() == MAX_DEPTH => return Usage::UNMEASURED,
            Some(folder) => open.push(folder),
            None if usage.inodes >= most => return Usage::UNMEASURED,
            None => drop(open.pop()),
        }
    }
    usage
}

/// Counts entries up to the next folder, and opens that. `None` at the end.
fn enter(entries: &mut Dir, usage: &mut Usage, most: u64) -> Option<Dir> {
    while usage.inodes < most
        && let Some(Ok(entry)) = entries.read()
    {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(folder) = entries.fd() else { return None };
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        usage.add(&stat);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && let Ok(inner) = subfolder(folder, name).and_then(Dir::new)
        {
            return Some(inner);
        }
    }
    None
}

fn subfolder(parent: impl std::os::fd::AsFd, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), within)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn hard_links_count_once_and_symbolic_links_are_not_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        std::fs::write(dir.path().join("folder/file"), vec![1; 64 << 10]).unwrap();
        std::fs::hard_link(dir.path().join("folder/file"), dir.path().join("again")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        let usage = measure(dir.path());
        assert_eq!(usage.inodes, 4);
        assert!((64 << 10..128 << 10).contains(&usage.bytes), "{usage:?}");
        assert_eq!(measure(&dir.path().join("missing")), Usage::default());
    }

    #[test]
    fn folder_that_is_too_deep_uses_more_than_any_other() {
        let dir = tempfile::tempdir().unwrap();
        let deep = |depth: usize| ["d"; 300][..depth].join("/");
        std::fs::create_dir_all(dir.path().join(deep(MAX_DEPTH - 1))).unwrap();
        assert_eq!(measure(dir.path()).inodes, MAX_DEPTH as u64 - 1);
        std::fs::create_dir_all(dir.path().join(deep(MAX_DEPTH))).unwrap();
        assert_eq!(measure(dir.path()), Usage::UNMEASURED);
    }

    #[test]
    fn folder_with_too_many_entries_uses_more_than_any_other() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(measure_within(dir.path(), 4).inodes, 3);
        assert_eq!(measure_within(dir.path(), 3), Usage::UNMEASURED);
    }
}
