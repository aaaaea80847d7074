//! Copies a tree exactly: links as links, holes as holes, owners, modes, times and extended attributes.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::attributes::{self, Subject, clear, nanoseconds, xattrs};
use crate::content::read;
use crate::error::{Cause, Fault, MAKE, OPEN, READ_LINK};
use crate::links::{Links, is_whiteout, may_be_linked};
use crate::walk::{Visit, identity, open_below, open_parent, walk};

/// Bytes that are read at a time.
const BUFFER: usize = 256 << 10;
/// Bytes that may be written between two checks of the disk.
const ROOM_STEP: u64 = 64 << 20;
/// Bytes that an entry counts for.
const ENTRY_BYTES: u64 = 4 << 10;
/// Bytes of memory that a folder takes which has a file with several names.
const NODE_BYTES: usize = 48;
/// Maximum bytes of a path in one call; the kernel's limit is 4096.
const PATH_BYTES: usize = 3 << 10;

/// Counts of a copied tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Entries that were visited, without the top.
    pub entries: u64,
    /// Sockets, which are left out.
    pub sockets: u64,
}

/// Copies what is in and below the folder `source`, with its own attributes, to the empty folder `target`, which only this
/// process uses. `room` is a folder on a disk on which space must stay for others.
pub(crate) fn copy(
    source: OwnedFd,
    target: OwnedFd,
    maximum: u64,
    room: Option<PathBuf>,
) -> Result<Copied, Fault> {
    let top = target.try_clone();
    let at_top = |cause| Fault { entry: ".".into(), cause };
    let top = top.map_err(|source| at_top(Cause::Io { action: OPEN, source }))?;
    clear(target.as_fd()).map_err(at_top)?;
    let mut copier = Copier {
        top,
        here: target,
        levels: Vec::new(),
        nodes: Vec::new(),
        links: Links::new(),
        may_clone: true,
        buffer: Vec::new(),
        room: Room { folder: room, left: 0 },
        sockets: 0,
    };
    let entries = walk(source, maximum, &mut copier)?;
    Ok(Copied { entries, sockets: copier.sockets })
}

/// Watches the free space of a disk.
struct Room {
    folder: Option<PathBuf>,
    /// Bytes until the next check.
    left: u64,
}

impl Room {
    fn spend(&mut self, bytes: u64) -> Result<(), Cause> {
        let Some(folder) = &self.folder else { return Ok(()) };
        if bytes < self.left {
            self.left -= bytes;
            return Ok(());
        }
        self.left = ROOM_STEP;
        hutch_image::check_room(folder, bytes).map_err(|source| Cause::Io { action: "write", source })
    }
}

/// A folder of the target around the one at hand, or that one.
struct Level {
    name: Box<CStr>,
    identity: (u64, u64),
    /// Number of its node, once there is one.
    node: Option<u32>,
}

/// A folder of the target that has a file with several names, or is above such a folder.
struct Node {
    parent: Option<u32>,
    name: Box<CStr>,
}

struct Copier {
    top: OwnedFd,
    /// The folder of the last level.
    here: OwnedFd,
    levels: Vec<Level>,
    nodes: Vec<Node>,
    /// Folders and names of the copies of files that have several names.
    links: Links<(u32, Box<CStr>)>,
    /// Files may share their blocks with their copies.
    may_clone: bool,
    buffer: Vec<u8>,
    room: Room,
    sockets: u64,
}

impl Visit for Copier {
    fn enter(&mut self, name: &CStr, _: BorrowedFd<'_>, _: &Stat) -> Result<(), Cause> {
        self.room.spend(ENTRY_BYTES)?;
        if !self.levels.is_empty() {
            rustix::fs::mkdirat(&self.here, name, Mode::RWXU).map_err(Cause::io(MAKE))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.here =
                rustix::fs::openat(&self.here, name, flags, Mode::empty()).map_err(Cause::io(OPEN))?;
        }
        let made = rustix::fs::fstat(&self.here).map_err(Cause::io("read"))?;
        self.levels.push(Level { name: name.into(), identity: identity(&made), node: None });
        Ok(())
    }

    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CStr, found: &Stat) -> Result<(), Cause> {
        self.room.spend(ENTRY_BYTES)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind == FileType::Socket {
            self.sockets += 1;
            return Ok(());
        }
        if may_be_linked(found) && self.link(name, found)? {
            return Ok(());
        }
        match kind {
            FileType::RegularFile => self.file(parent, name, found)?,
            FileType::Symlink => {
                let target =
                    rustix::fs::readlinkat(parent, name, Vec::new()).map_err(Cause::io(READ_LINK))?;
                rustix::fs::symlinkat(target.as_c_str(), &self.here, name).map_err(Cause::io(MAKE))?;
                self.attributes(parent, name, found)?;
            }
            FileType::Fifo => self.node(FileType::Fifo, parent, name, found)?,
            FileType::CharacterDevice if is_whiteout(found) => {
                self.node(FileType::CharacterDevice, parent, name, found)?;
            }
            _ => return Err(Cause::Refused("it is a device")),
        }
        if may_be_linked(found) {
            self.keep_link(name, found)?;
        }
        Ok(())
    }

    fn leave(&mut self, opened: BorrowedFd<'_>, found: &Stat) -> Result<(), Cause> {
        let xattrs = xattrs(Subject::Open(opened))?;
        // At the end: entries change the time, and inherit what some attributes say.
        attributes::set(Subject::Open(self.here.as_fd()), found, &xattrs)?;
        still_as(opened, found)?;
        self.levels.pop();
        if let Some(parent) = self.levels.last() {
            self.here = open_parent(self.here.as_fd(), parent.identity)?;
        }
        Ok(())
    }
}

impl Copier {
    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr, found: &Stat) -> Result<(), Cause> {
        let source = open_below(parent, name, found, OFlags::RDONLY)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let target = rustix::fs::openat(&self.here, name, flags, mode).map_err(Cause::io(MAKE))?;
        if !self.cloned(&source, &target, found)? {
            self.write(source.as_fd(), target.as_fd(), found)?;
        }
        let xattrs = xattrs(Subject::Open(source.as_fd()))?;
        attributes::set(Subject::Open(target.as_fd()), found, &xattrs)?;
        still_as(source.as_fd(), found)
    }

    /// Lets the copy share the blocks of the file, where the file system can.
    fn cloned(&mut self, source: &OwnedFd, target: &OwnedFd, found: &Stat) -> Result<bool, Cause> {
        if !self.may_clone || found.st_size == 0 {
            return Ok(false);
        }
        match rustix::fs::ioctl_ficlone(target, source) {
            Ok(()) => Ok(true),
            Err(Errno::NOTSUP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => {
                self.may_clone = false;
                Ok(false)
            }
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(Cause::io("write")(errno)),
            // Not this file.
            Err(_) => Ok(false),
        }
    }

    /// Writes the data of a file; holes stay holes.
    fn write(&mut self, source: BorrowedFd<'_>, target: BorrowedFd<'_>, found: &Stat) -> Result<(), Cause> {
        let length = u64::try_from(found.st_size).unwrap_or(0);
        let on_disk = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
        self.buffer.resize(BUFFER, 0);
        let mut at = 0;
        while at < length {
            let (start, end) = if on_disk >= length {
                (0, length)
            } else {
                let Some(extent) = extent(source, at, length)? else { break };
                extent
            };
            at = start;
            while at < end {
                let wanted = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
                self.room.spend(wanted as u64)?;
                read(source, &mut self.buffer[..wanted], at)?;
                write_all(target, &self.buffer[..wanted], at)?;
                at += wanted as u64;
            }
        }
        // A hole at the end. Elsewhere the length is this one already.
        rustix::fs::ftruncate(target, length).map_err(Cause::io("write"))
    }

    fn node(
        &mut self,
        kind: FileType,
        parent: BorrowedFd<'_>,
        name: &CStr,
        found: &Stat,
    ) -> Result<(), Cause> {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(&self.here, name, kind, mode, 0).map_err(Cause::io(MAKE))?;
        self.attributes(parent, name, found)
    }

    fn attributes(&self, parent: BorrowedFd<'_>, name: &CStr, found: &Stat) -> Result<(), Cause> {
        let xattrs = xattrs(Subject::Named(parent, name))?;
        attributes::set(Subject::Named(self.here.as_fd(), name), found, &xattrs)
    }

    /// Makes another name of a file that has been copied; `false` for its first name.
    fn link(&self, name: &CStr, found: &Stat) -> Result<bool, Cause> {
        let Some((node, first)) = self.links.first(found) else { return Ok(false) };
        let folder = self.open_node(*node)?;
        rustix::fs::linkat(&folder, first.as_ref(), &self.here, name, AtFlags::empty())
            .map_err(Cause::io(MAKE))?;
        Ok(true)
    }

    fn keep_link(&mut self, name: &CStr, found: &Stat) -> Result<(), Cause> {
        let (mut node, mut bytes) = (None, name.count_bytes());
        for level in &mut self.levels {
            if level.node.is_none() {
                bytes += NODE_BYTES + level.name.count_bytes();
                self.nodes.push(Node { parent: node, name: level.name.clone() });
                level.node = u32::try_from(self.nodes.len() - 1).ok();
            }
            node = level.node;
        }
        self.links.keep(found, (node.unwrap_or_default(), name.into()), bytes)
    }

    /// Opens a folder of the target by the names on its path, in as many steps as the length of a path needs.
    fn open_node(&self, node: u32) -> Result<OwnedFd, Cause> {
        let mut names = Vec::new();
        let mut at = self.nodes.get(node as usize);
        while let Some(node) = at {
            names.push(node.name.to_bytes());
            at = node.parent.and_then(|parent| self.nodes.get(parent as usize));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |folder: BorrowedFd<'_>, path: &[u8]| {
            rustix::fs::openat(folder, path, flags, Mode::empty()).map_err(Cause::io(OPEN))
        };
        let mut folder = open(self.top.as_fd(), b".")?;
        let mut path = Vec::new();
        for name in names.iter().rev().filter(|name| !name.is_empty()) {
            path.extend_from_slice(name);
            path.push(b'/');
            if path.len() > PATH_BYTES {
                folder = open(folder.as_fd(), &path)?;
                path.clear();
            }
        }
        if path.is_empty() { Ok(folder) } else { open(folder.as_fd(), &path) }
    }
}

/// The next part of a file, from a place, that is no hole.
fn extent(file: BorrowedFd<'_>, at: u64, length: u64) -> Result<Option<(u64, u64)>, Cause> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) if start < length => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        // The file system does not report holes.
        Err(Errno::INVAL | Errno::NOTSUP) => return Ok(Some((at, length))),
        Err(errno) => return Err(Cause::io("read")(errno)),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).map_err(Cause::io("read"))?;
    if end <= start {
        return Err(Cause::CHANGED);
    }
    Ok(Some((start, end.min(length))))
}

fn write_all(file: BorrowedFd<'_>, bytes: &[u8], start: u64) -> Result<(), Cause> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], start + done as u64) {
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Cause::io("write")(errno)),
        }
    }
    Ok(())
}

/// Checks that a file or folder did not change while it was copied.
fn still_as(opened: BorrowedFd<'_>, found: &Stat) -> Result<(), Cause> {
    let now = rustix::fs::fstat(opened).map_err(Cause::io("read"))?;
    let state = |found: &Stat| {
        let changed = (found.st_ctime, found.st_ctime_nsec);
        (found.st_size, found.st_mtime, nanoseconds(found), changed)
    };
    if state(&now) != state(found) {
        return Err(Cause::CHANGED);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_of_length_or_time_is_noticed() {
        let file = tempfile::tempfile().unwrap();
        let found = rustix::fs::fstat(&file).unwrap();
        still_as(file.as_fd(), &found).unwrap();
        file.set_len(1).unwrap();
        assert!(still_as(file.as_fd(), &found).is_err());
        let found = rustix::fs::fstat(&file).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert!(still_as(file.as_fd(), &found).is_err());
    }
}
