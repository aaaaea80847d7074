//! The digest of a tree: over every name, attribute and byte that a copy keeps, in the order of the names.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::{FileType, OFlags, Stat};

use crate::attributes::{Subject, nanoseconds, xattrs};
use crate::content::{self, ContentKey, Digest};
use crate::error::{Cause, Fault, READ_LINK};
use crate::links::{Links, is_whiteout, may_be_linked};
use crate::walk::{Visit, open_below, walk};

/// Start of what is digested.
const DOMAIN: &[u8] = b"hutch/snapshot-tree/v1.";

/// A tree as it lies on the disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) digest: Digest,
    /// Entries without the top.
    pub(crate) entries: u64,
    /// Bytes of its files that are not in pages of zeros.
    pub(crate) bytes: u64,
}

/// Reads a tree of at most so many entries.
pub(crate) fn tree(top: OwnedFd, maximum: u64, key: &ContentKey) -> Result<Tree, Fault> {
    let mut digester =
        Digester { key, context: Context::new(&SHA256), links: Links::new(), number: 0, bytes: 0 };
    digester.context.update(DOMAIN);
    let entries = walk(top, maximum, &mut digester)?;
    Ok(Tree { digest: content::finish(digester.context), entries, bytes: digester.bytes })
}

struct Digester<'a> {
    key: &'a ContentKey,
    context: Context,
    /// Numbers of the first names of files.
    links: Links<u64>,
    /// Number of the entry at hand.
    number: u64,
    bytes: u64,
}

impl Digester<'_> {
    fn number(&mut self, number: u64) {
        self.context.update(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.context.update(bytes);
    }

    /// Each record begins so; its kind decides what follows, so no two trees have the same records.
    fn begin(&mut self, kind: u8, name: &CStr) {
        self.context.update(&[kind]);
        self.bytes(name.to_bytes());
    }

    fn attributes(&mut self, subject: Subject<'_>, found: &Stat) -> Result<(), Cause> {
        for number in [found.st_uid, found.st_gid, found.st_mode & 0o7777] {
            self.number(u64::from(number));
        }
        self.context.update(&found.st_mtime.to_le_bytes());
        self.context.update(&nanoseconds(found).to_le_bytes());
        let xattrs = xattrs(subject)?;
        self.number(xattrs.len() as u64);
        for (name, value) in xattrs {
            self.bytes(name.to_bytes());
            self.bytes(&value);
        }
        Ok(())
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr, found: &Stat) -> Result<(), Cause> {
        let file = open_below(parent, name, found, OFlags::RDONLY)?;
        self.begin(b'f', name);
        self.attributes(Subject::Open(file.as_fd()), found)?;
        let length = u64::try_from(found.st_size).unwrap_or(0);
        let number =
            u32::try_from(self.number).map_err(|_| Cause::Refused("the tree has too many entries"))?;
        let content = content::content(self.key, number, file.as_fd(), length)?;
        if rustix::fs::fstat(&file).map_err(Cause::io("read"))?.st_size != found.st_size {
            return Err(Cause::CHANGED);
        }
        self.number(length);
        self.context.update(&content.digest);
        self.bytes += content.bytes;
        Ok(())
    }
}

impl Visit for Digester<'_> {
    fn enter(&mut self, name: &CStr, opened: BorrowedFd<'_>, found: &Stat) -> Result<(), Cause> {
        self.number += 1;
        self.begin(b'd', name);
        self.attributes(Subject::Open(opened), found)
    }

    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CStr, found: &Stat) -> Result<(), Cause> {
        self.number += 1;
        if may_be_linked(found) {
            if let Some(&first) = self.links.first(found) {
                self.begin(b'=', name);
                self.number(first);
                return Ok(());
            }
            self.links.keep(found, self.number, size_of::<u64>())?;
        }
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => return self.file(parent, name, found),
            FileType::Symlink => {
                self.begin(b'l', name);
                let target =
                    rustix::fs::readlinkat(parent, name, Vec::new()).map_err(Cause::io(READ_LINK))?;
                self.bytes(target.to_bytes());
            }
            FileType::Fifo => self.begin(b'p', name),
            FileType::CharacterDevice if is_whiteout(found) => self.begin(b'w', name),
            FileType::Socket => return Err(Cause::Refused("it is a socket")),
            _ => return Err(Cause::Refused("it is a device")),
        }
        self.attributes(Subject::Named(parent, name), found)
    }

    fn leave(&mut self, _: BorrowedFd<'_>, _: &Stat) -> Result<(), Cause> {
        self.context.update(b"e");
        Ok(())
    }
}
