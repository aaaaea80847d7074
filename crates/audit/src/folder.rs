//! Files of a log: segments, the last signed head, keys, cursors of exporters.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::Error;

/// File of the last signed head.
pub(crate) const HEAD: &str = "head";
/// File with the number of the last record that is on the disk.
pub(crate) const DURABLE: &str = "durable";
/// Folder of the cursors of exporters.
pub(crate) const CURSORS: &str = "cursors";
/// File that a writer locks.
const LOCK: &str = "lock";
/// End of the name of a segment.
const SUFFIX: &str = ".jsonl";
/// Digits of the name of a segment.
const DIGITS: usize = 20;

/// A segment: a file that is named by the number of its first record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Number of the first record.
    pub first: u64,
    /// Path.
    pub path: PathBuf,
}

impl Segment {
    pub(crate) fn new(folder: &Path, first: u64) -> Segment {
        Segment { first, path: folder.join(format!("{first:0DIGITS$}{SUFFIX}")) }
    }

    /// Returns the name of its file.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns its bytes.
    pub(crate) fn length(&self) -> Result<u64, Error> {
        Ok(fs::metadata(&self.path).map_err(Error::file(&self.path))?.len())
    }
}

/// Returns the segments of a log in order. A folder that does not exist has none.
///
/// # Errors
/// The folder cannot be read.
pub fn segments(folder: &Path) -> Result<Vec<Segment>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::file(folder)(error)),
    };
    let mut segments = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::file(folder))?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        if let Some(first) = digits.filter(|digits| digits.len() == DIGITS).and_then(|d| d.parse().ok()) {
            segments.push(Segment::new(folder, first));
        }
    }
    segments.sort();
    Ok(segments)
}

/// Makes the folder of a log, for its owner alone.
pub(crate) fn create(folder: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    for path in [folder, &folder.join(CURSORS)] {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(Error::file(path))?;
    }
    Ok(())
}

/// Locks a log for its writer.
pub(crate) fn lock(folder: &Path) -> Result<OwnedFd, Error> {
    let path = folder.join(LOCK);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
    let file = file.map_err(|error| Error::file(&path)(error.into()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Locked(folder.to_owned())),
        Err(error) => Err(Error::file(&path)(error.into())),
    }
}

/// Returns true if a writer has the log open.
pub(crate) fn is_written(folder: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(folder.join(LOCK), flags, Mode::empty()) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Number of the last record on the disk, which a writer publishes for readers in other processes.
pub(crate) struct Durable(fs::File);

impl Durable {
    pub(crate) fn open(folder: &Path) -> Result<Durable, Error> {
        let path = folder.join(DURABLE);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        Ok(Durable(file.map_err(|error| Error::file(&path)(error.into()))?.into()))
    }

    /// Publishes a number. It is written twice, so that a reader notices half of a write.
    pub(crate) fn publish(&self, seq: u64) {
        use std::os::unix::fs::FileExt;
        // Readers only wait longer if it fails.
        let _ = self.0.write_all_at(format!("{seq:0DIGITS$} {seq:0DIGITS$}\n").as_bytes(), 0);
    }
}

/// Returns the number of the last record on the disk. `None` if no writer has published one.
pub(crate) fn durable(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join(DURABLE)).ok()?;
    let (first, second) = text.trim_end().split_once(' ')?;
    if first == second { first.parse().ok() } else { Some(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_has_one_writer() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_written(folder.path()));
        let held = lock(folder.path()).unwrap();
        assert!(is_written(folder.path()));
        assert!(matches!(lock(folder.path()), Err(Error::Locked(_))));
        drop(held);
        assert!(!is_written(folder.path()));
    }

    #[test]
    fn segments_are_in_order_and_other_files_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["00000000000000000100.jsonl", "00000000000000000020.jsonl", "7.jsonl", "head", "x.jsonl"]
        {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let firsts: Vec<_> = segments(folder.path()).unwrap().iter().map(|segment| segment.first).collect();
        assert_eq!(firsts, [20, 100]);
        assert_eq!(segments(&folder.path().join("absent")).unwrap(), []);
    }

    #[test]
    fn half_of_a_published_number_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(durable(folder.path()), None);
        Durable::open(folder.path()).unwrap().publish(12);
        assert_eq!(durable(folder.path()), Some(12));
        fs::write(folder.path().join(DURABLE), "00000000000000000099 00000000000000000012\n").unwrap();
        assert_eq!(durable(folder.path()), Some(0));
    }
}
