//! Files of a tree that have several names.

use std::collections::HashMap;

use rustix::fs::{FileType, Stat};

use crate::error::Cause;
use crate::walk::identity;

/// Maximum bytes of memory for all of them.
const MAX_HELD_BYTES: usize = 128 << 20;
/// Bytes that one takes, beside what is kept for it.
const ENTRY_BYTES: usize = 64;

/// First names of files that have more names.
pub(crate) struct Links<T> {
    seen: HashMap<(u64, u64), T>,
    held: usize,
}

impl<T> Links<T> {
    pub(crate) fn new() -> Links<T> {
        Links { seen: HashMap::new(), held: 0 }
    }

    /// Returns the value that was kept for the first name of this file.
    pub(crate) fn first(&self, found: &Stat) -> Option<&T> {
        self.seen.get(&identity(found))
    }

    /// Keeps something for the first name of a file, which takes so many bytes.
    pub(crate) fn keep(&mut self, found: &Stat, kept: T, bytes: usize) -> Result<(), Cause> {
        self.held += bytes + ENTRY_BYTES;
        if self.held > MAX_HELD_BYTES {
            return Err(Cause::Refused("the tree has more hard links than 128 MiB of memory can hold"));
        }
        self.seen.insert(identity(found), kept);
        Ok(())
    }
}

/// Returns `true` if an entry may be another name of a file. Overlays link their whiteouts with each other, which means nothing.
pub(crate) fn may_be_linked(found: &Stat) -> bool {
    found.st_nlink > 1 && FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice
}

/// Returns `true` for the character device by which an overlay hides an entry of a lower layer.
pub(crate) fn is_whiteout(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_take_limited_memory() {
        let file = tempfile::tempfile().unwrap();
        let found = rustix::fs::fstat(&file).unwrap();
        let mut links = Links::new();
        links.keep(&found, 7, MAX_HELD_BYTES - ENTRY_BYTES).unwrap();
        assert_eq!(links.first(&found), Some(&7));
        assert!(matches!(links.keep(&found, 8, 0), Err(Cause::Refused(_))));
    }
}
