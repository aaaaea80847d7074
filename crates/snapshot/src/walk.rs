//! Walks a tree whose names and links are untrusted, in an order that depends on the names alone.
//!
//! Depth costs neither stack nor descriptors: only the folder at hand is open, and its parent is opened through `..`, which must
//! be the folder that it was before. No link is followed and no mount entered.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};

use crate::error::{Cause, Fault, OPEN};

/// Maximum entries of a tree. It bounds the time of a walk, and inodes that a copy takes.
pub(crate) const MAX_ENTRIES: u64 = 4_000_000;
/// Maximum folders within each other, below the top.
pub(crate) const MAX_DEPTH: usize = 256;
/// Maximum bytes that a walk keeps in memory: names of the folders around the one at hand.
const MAX_HELD_BYTES: usize = 128 << 20;
/// Maximum bytes of a path in a message.
const MAX_PATH_BYTES: usize = 300;

const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Handles the entries of a tree. Entries of a folder come between its `enter` and its `leave`.
pub(crate) trait Visit {
    /// A folder was opened; `name` is empty for the top.
    fn enter(&mut self, name: &CStr, opened: BorrowedFd<'_>, found: &Stat) -> Result<(), Cause>;
    /// An entry of the folder `parent` that is no folder.
    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CStr, found: &Stat) -> Result<(), Cause>;
    /// All entries of a folder have been visited.
    fn leave(&mut self, opened: BorrowedFd<'_>, found: &Stat) -> Result<(), Cause>;
}

/// A folder around the one at hand, or that one.
struct Level {
    names: Names,
    found: Stat,
}

/// Visits a folder and everything below it. Returns the number of entries, without the top.
pub(crate) fn walk(top: OwnedFd, maximum: u64, visit: &mut impl Visit) -> Result<u64, Fault> {
    let mut walk = Walk { here: top, levels: Vec::new(), held: 0, entries: 0, maximum };
    match walk.run(visit) {
        Ok(()) => Ok(walk.entries),
        Err(cause) => Err(Fault { entry: walk.path(), cause }),
    }
}

struct Walk {
    /// The folder of the last level.
    here: OwnedFd,
    levels: Vec<Level>,
    /// Bytes of all names.
    held: usize,
    entries: u64,
    maximum: u64,
}

impl Walk {
    fn run(&mut self, visit: &mut impl Visit) -> Result<(), Cause> {
        let found = rustix::fs::fstat(&self.here).map_err(Cause::io("read"))?;
        self.descend(c"", found, visit)?;
        while let Some(level) = self.levels.last_mut() {
            if !level.names.advance() {
                self.ascend(visit)?;
                continue;
            }
            self.entries += 1;
            if self.entries > self.maximum {
                return Err(Cause::Refused("the tree has too many entries"));
            }
            let name = level.names.current();
            let found =
                rustix::fs::statat(&self.here, name, AtFlags::SYMLINK_NOFOLLOW).map_err(Cause::io("read"))?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                let name = name.to_owned();
                self.here = open_below(self.here.as_fd(), &name, &found, OFlags::DIRECTORY)?;
                self.descend(&name, found, visit)?;
            } else {
                visit.entry(self.here.as_fd(), name, &found)?;
            }
        }
        Ok(())
    }

    /// Enters the folder at hand.
    fn descend(&mut self, name: &CStr, found: Stat, visit: &mut impl Visit) -> Result<(), Cause> {
        if self.levels.len() > MAX_DEPTH {
            return Err(Cause::Refused("more than 256 folders are within each other"));
        }
        visit.enter(name, self.here.as_fd(), &found)?;
        let names = Names::read(self.here.as_fd(), MAX_HELD_BYTES - self.held)?;
        self.held += names.held();
        self.levels.push(Level { names, found });
        Ok(())
    }

    /// Leaves the folder at hand.
    fn ascend(&mut self, visit: &mut impl Visit) -> Result<(), Cause> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        self.held -= level.names.held();
        visit.leave(self.here.as_fd(), &level.found)?;
        if let Some(parent) = self.levels.last() {
            self.here = open_parent(self.here.as_fd(), identity(&parent.found))?;
        }
        Ok(())
    }

    /// Path of the entry at hand, for a message.
    fn path(&self) -> String {
        let mut path = Vec::new();
        for level in &self.levels {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(level.names.current().to_bytes());
        }
        let start = path.len().saturating_sub(MAX_PATH_BYTES);
        let shown = String::from_utf8_lossy(&path[start..]);
        if start > 0 {
            format!("...{shown}")
        } else if path.is_empty() {
            ".".into()
        } else {
            shown.into()
        }
    }
}

/// Device and number of a file.
pub(crate) fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

/// Opens an entry that was found before, for reading. Blocks neither on a FIFO nor on a lease.
pub(crate) fn open_below(
    parent: BorrowedFd<'_>,
    name: &CStr,
    found: &Stat,
    flags: OFlags,
) -> Result<OwnedFd, Cause> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(parent, name, flags, Mode::empty(), WITHIN).map_err(Cause::io(OPEN))?;
    let now = rustix::fs::fstat(&opened).map_err(Cause::io("read"))?;
    let type_of = |found: &Stat| FileType::from_raw_mode(found.st_mode);
    if identity(&now) != identity(found) || type_of(&now) != type_of(found) {
        return Err(Cause::CHANGED);
    }
    Ok(opened)
}

/// Opens the parent of a folder, which must be the given one.
pub(crate) fn open_parent(folder: BorrowedFd<'_>, expected: (u64, u64)) -> Result<OwnedFd, Cause> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = rustix::fs::openat(folder, c"..", flags, Mode::empty()).map_err(Cause::io(OPEN))?;
    let found = rustix::fs::fstat(&parent).map_err(Cause::io("read"))?;
    if identity(&found) != expected {
        return Err(Cause::CHANGED);
    }
    Ok(parent)
}

/// Names in a folder, sorted by their bytes.
#[derive(Default)]
struct Names {
    /// Each name with a NUL at its end.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    /// Number of the name after the current one.
    next: usize,
}

impl Names {
    /// Reads the names in a folder, without `.` and `..`. They may take so many bytes of memory.
    fn read(folder: BorrowedFd<'_>, maximum: usize) -> Result<Names, Cause> {
        let mut names = Names::default();
        for entry in Dir::read_from(folder).map_err(Cause::io(OPEN))? {
            let entry = entry.map_err(Cause::io("read"))?;
            let name = entry.file_name();
            if [c".", c".."].contains(&name) {
                continue;
            }
            let start = u32::try_from(names.bytes.len()).unwrap_or(u32::MAX);
            names.starts.push(start);
            names.bytes.extend(name.to_bytes_with_nul());
            if names.held() > maximum {
                return Err(Cause::Refused("the names in its folders are too long for 128 MiB of memory"));
            }
        }
        let Names { bytes, starts, .. } = &mut names;
        starts.sort_unstable_by(|a, b| name_at(bytes, *a).cmp(name_at(bytes, *b)));
        Ok(names)
    }

    fn held(&self) -> usize {
        self.bytes.len() + self.starts.len() * size_of::<u32>()
    }

    /// Makes the next name the current one; `false` after the last one.
    fn advance(&mut self) -> bool {
        let more = self.next < self.starts.len();
        self.next += usize::from(more);
        more
    }

    /// The current name; empty before the first one.
    fn current(&self) -> &CStr {
        let start = self.next.checked_sub(1).and_then(|last| self.starts.get(last));
        start.map_or(c"", |start| name_at(&self.bytes, *start))
    }
}

fn name_at(bytes: &[u8], start: u32) -> &CStr {
    CStr::from_bytes_until_nul(&bytes[start as usize..]).unwrap_or(c"")
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_by_their_bytes_and_take_limited_memory() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a", "aa", "B", "\u{e4}"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let opened = std::fs::File::open(folder.path()).unwrap();
        let mut names = Names::read(opened.as_fd(), 1000).unwrap();
        let mut found = Vec::new();
        while names.advance() {
            found.push(names.current().to_str().unwrap().to_owned());
        }
        assert_eq!(found, ["B", "a", "aa", "b", "\u{e4}"]);
        assert_eq!(names.held(), 3 * 2 + 2 * 3 + 5 * 4);
        assert!(matches!(Names::read(opened.as_fd(), names.held() - 1), Err(Cause::Refused(_))));
        Names::read(opened.as_fd(), names.held()).unwrap();
    }

    #[test]
    fn entry_or_parent_that_is_another_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let top = std::fs::File::open(folder.path()).unwrap();
        let find = |name: &CStr| rustix::fs::statat(&top, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let (own, one, two) = (find(c"."), find(c"one"), find(c"two"));
        let opened = open_below(top.as_fd(), c"one", &one, OFlags::DIRECTORY).unwrap();
        assert!(open_below(top.as_fd(), c"one", &two, OFlags::DIRECTORY).is_err());
        open_parent(opened.as_fd(), identity(&own)).unwrap();
        assert!(open_parent(opened.as_fd(), identity(&two)).is_err());
        std::fs::rename(folder.path().join("one"), folder.path().join("two/one")).unwrap();
        assert!(open_parent(opened.as_fd(), identity(&own)).is_err());
    }
}
