//! Numbers of restores. Each is greater than every earlier one of this machine, also after a loss of power, so that a program
//! which compares the number of its start with the present one notices that its memory was restored.
//!
//! A number is the time in milliseconds, or more: it says nothing about the restores of others.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use crate::folders::write_durable;

/// Path inside of the file that has the number of the container.
pub(crate) const FILE: &str = "/run/hutch/generation";
/// Number of a container that was never restored.
const NEVER: u64 = 0;

/// The last number of this machine.
pub(crate) struct Generations {
    file: PathBuf,
    /// `None` until it was read.
    last: Mutex<Option<u64>>,
}

impl Generations {
    /// `file` has the last number.
    pub(crate) fn new(file: PathBuf) -> Generations {
        Generations { file, last: Mutex::default() }
    }

    /// Returns a number that is greater than all earlier ones, and than `above`. It is on the disk. Blocks.
    ///
    /// # Errors
    /// The last number cannot be read, or the next one not be written.
    pub(crate) fn next(&self, above: u64, now: Timestamp) -> io::Result<u64> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.file.display()));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match *last {
            Some(known) => known,
            None => read(&self.file).map_err(named)?,
        };
        let time = u64::try_from(now.as_millisecond()).unwrap_or_default();
        let next = time.max(known.saturating_add(1)).max(above.saturating_add(1));
        let new = self.file.with_extension("new");
        write_durable(&self.file, &new, format!("{next}\n").as_bytes()).map_err(named)?;
        *last = Some(next);
        Ok(next)
    }
}

fn read(file: &Path) -> io::Result<u64> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(NEVER),
        text => text?,
    };
    let damaged = "it has no number: remove it, if the clock is right";
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, damaged))
}

/// Writes the file of a container that is restored. Blocks.
pub(crate) fn set(file: &Path, number: u64) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    std::fs::write(file, format!("{number}\n"))?;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644))
}

/// Makes the file of a container that was not restored, if it is absent. Blocks.
pub(crate) fn prepare(file: &Path) -> io::Result<()> {
    if file.exists() { Ok(()) } else { set(file, NEVER) }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    #[test]
    fn number_grows_whatever_the_clock_shows_and_after_a_kill() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("generation");
        let first = Generations::new(file.clone());
        assert_eq!(first.next(0, at(1000)).unwrap(), 1000);
        assert_eq!(first.next(0, at(1000)).unwrap(), 1001);
        assert_eq!(first.next(0, at(5)).unwrap(), 1002);
        // The next life of a node that was killed.
        let second = Generations::new(file.clone());
        assert_eq!(second.next(0, at(-5)).unwrap(), 1003);
        assert_eq!(second.next(7000, at(6)).unwrap(), 7001);
        assert_eq!(second.next(0, at(8000)).unwrap(), 8000);
        // What a killed process left half written does not count.
        std::fs::write(file.with_extension("new"), "9").unwrap();
        assert_eq!(Generations::new(file).next(0, at(1)).unwrap(), 8001);
    }

    #[test]
    fn damaged_file_is_named_and_gives_no_number() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("generation");
        std::fs::write(&file, "").unwrap();
        let error = Generations::new(file).next(0, at(1)).unwrap_err().to_string();
        assert!(error.contains("generation: it has no number"), "{error}");
    }

    #[test]
    fn file_of_a_container_keeps_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("generations/main");
        let read = || std::fs::read_to_string(&file).unwrap();
        prepare(&file).unwrap();
        assert_eq!(read(), "0\n");
        set(&file, 12).unwrap();
        prepare(&file).unwrap();
        assert_eq!(read(), "12\n");
    }
}
