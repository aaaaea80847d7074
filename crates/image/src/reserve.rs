//! Space of the disk that unpacking leaves to others.

use std::io;
use std::path::Path;

use crate::beneath::Folder;

/// Maximum bytes that stay free: less on a small disk.
const RESERVED_BYTES: u64 = 1 << 30;
/// Maximum inodes that stay free.
const RESERVED_INODES: u64 = 65_536;
/// Fraction of a disk that stays free, if it is less than the above.
const FRACTION: u64 = 20;
/// Bytes that may be written between two checks.
const STEP_BYTES: u64 = 64 << 20;
/// Bytes for each component of an entry's path: a folder may be made for each.
const COMPONENT_BYTES: u64 = 8 << 10;

/// Watches the free space of a disk while it is written.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// Bytes until the next check.
    left: u64,
}

impl Reserve {
    /// Counts bytes that are about to be written below the folder.
    pub(crate) fn spend(&mut self, bytes: u64, folder: &Folder) -> io::Result<()> {
        if bytes < self.left {
            self.left -= bytes;
            return Ok(());
        }
        self.left = STEP_BYTES;
        check(folder)
    }

    /// Bytes until the next check.
    #[cfg(test)]
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Counts an entry with the folders above it.
    pub(crate) fn spend_on_entry(&mut self, path: &Path, folder: &Folder) -> io::Result<()> {
        self.spend(path.components().count() as u64 * COMPONENT_BYTES, folder)
    }
}

/// Fails if the file system of a folder has no more free space than is left to others.
pub(crate) fn check(folder: &Folder) -> io::Result<()> {
    check_for(folder, 0)
}

/// Fails if so many more bytes below a folder would take free space that is left to others.
///
/// # Errors
/// [`io::ErrorKind::StorageFull`], or the folder cannot be opened.
pub fn check_room(folder: &Path, bytes: u64) -> io::Result<()> {
    check_for(&Folder::open(folder)?, bytes)
}

fn check_for(folder: &Folder, needed: u64) -> io::Result<()> {
    let space = folder.space()?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    let free = bytes(space.f_bavail).saturating_sub(needed);
    if is_short(bytes(space.f_blocks), free, RESERVED_BYTES)
        || is_short(space.f_files, space.f_favail, RESERVED_INODES)
    {
        let text = "no space: less than 5 % of the disk, or 1 GiB, would be left";
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    Ok(())
}

/// A file system without such a limit has a total of 0.
fn is_short(total: u64, free: u64, reserved: u64) -> bool {
    free < reserved.min(total / FRACTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_the_smaller_of_a_fraction_and_a_size() {
        const GIB: u64 = 1 << 30;
        assert!(!is_short(0, 0, GIB));
        assert!(!is_short(10 * GIB, GIB, GIB));
        assert!(!is_short(10 * GIB, GIB / 2, GIB));
        assert!(is_short(10 * GIB, GIB / 2 - 1, GIB));
        assert!(!is_short(1000 * GIB, GIB, GIB));
        assert!(is_short(1000 * GIB, GIB - 1, GIB));
    }

    #[test]
    fn space_is_checked_before_the_first_byte_and_after_each_step() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let mut reserve = Reserve::default();
        reserve.spend_on_entry(Path::new(""), &folder).unwrap();
        assert_eq!(reserve.left, STEP_BYTES, "checked");
        reserve.spend(STEP_BYTES - 1, &folder).unwrap();
        assert_eq!(reserve.left, 1);
        reserve.spend(1, &folder).unwrap();
        assert_eq!(reserve.left, STEP_BYTES, "checked");
        check_room(dir.path(), 1).unwrap();
        assert_eq!(check_room(dir.path(), u64::MAX).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
