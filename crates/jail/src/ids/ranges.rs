//! Ranges of ids outside, one for each jail of root, never one for two at a time: on the whole machine, by locks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use crate::error::Error;
use crate::spec::RANGE;
use crate::sys;

/// Folder of the lock file: of root alone, and gone when the machine restarts, as the jails are.
const FOLDER: &str = "/run/hutch";
/// The lock file: the byte of a range's number is locked while the range is in use.
const FILE: &str = "/run/hutch/ids";
/// Number of the first range. Below it are the ids of users, of systemd's services and containers (to 0x6fff_ffff),
/// and the ranges of most entries of `/etc/subuid`.
const FIRST: u32 = 0x7000;
/// Number after the last range: the range with the id -1 is unusable.
const END: u32 = 0xffff;
/// Files that give ranges of ids to users.
const DELEGATED: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// Gives out ranges of 65536 ids. The ranges of two programs on a machine never overlap, nor do they overlap those that
/// `/etc/subuid` and `/etc/subgid` give to users.
#[derive(Debug, Clone)]
pub struct IdRanges(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    file: File,
    /// Numbers of ranges that belong to users, first and last.
    delegated: Vec<(u32, u32)>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Where the search begins: one that was given back is not given out soon.
    next: u32,
    /// A process does not exclude itself by a lock.
    held: BTreeSet<u32>,
}

/// A range of 65536 ids, until it is dropped or the process ends.
#[derive(Debug)]
pub struct IdRange {
    number: u32,
    of: IdRanges,
}

impl IdRange {
    /// The first id, at least 65536.
    pub fn base(&self) -> u32 {
        self.number * RANGE
    }
}

impl IdRanges {
    /// Opens what all programs on the machine share. `start` is any number: where the search for a free range begins.
    ///
    /// # Errors
    /// [`Error::IdRange`] when the lock file cannot be opened; only root can.
    pub fn open(start: u32) -> Result<IdRanges, Error> {
        let failed = |error: std::io::Error| Error::IdRange { step: FILE.into(), reason: error.to_string() };
        let file = match open_file() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut folder = std::fs::DirBuilder::new();
                folder.recursive(true).mode(0o700).create(FOLDER).map_err(failed)?;
                open_file()
            }
            other => other,
        };
        let mut delegated = Vec::new();
        for path in DELEGATED {
            match std::fs::read_to_string(path) {
                Ok(text) => delegated.extend(text.lines().filter_map(delegated_range)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(Error::IdRange { step: path.into(), reason: error.to_string() });
                }
            }
        }
        let state = Mutex::new(State { next: FIRST + start % (END - FIRST), held: BTreeSet::new() });
        Ok(IdRanges(Arc::new(Shared { file: file.map_err(failed)?, delegated, state })))
    }

    /// Takes a free range.
    ///
    /// # Errors
    /// [`Error::IdRange`] when no range is free.
    pub fn take(&self) -> Result<IdRange, Error> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        for number in (state.next..END).chain(FIRST..state.next) {
            if state.held.contains(&number) || self.is_delegated(number) {
                continue;
            }
            match sys::lock_byte(self.0.file.as_fd(), number.into(), true) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::ACCESS) => continue,
                Err(errno) => {
                    let reason = std::io::Error::from(errno).to_string();
                    return Err(Error::IdRange { step: FILE.into(), reason });
                }
            }
            state.held.insert(number);
            state.next = if number + 1 < END { number + 1 } else { FIRST };
            return Ok(IdRange { number, of: self.clone() });
        }
        Err(Error::IdRange { step: "find a free range".into(), reason: "all are taken".into() })
    }

    fn is_delegated(&self, number: u32) -> bool {
        self.0.delegated.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }
}

impl Drop for IdRange {
    fn drop(&mut self) {
        let mut state = self.of.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held.remove(&self.number);
        // A range that stays locked is only not given out again.
        let _ = sys::lock_byte(self.of.0.file.as_fd(), self.number.into(), false);
    }
}

fn open_file() -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW).open(Path::new(FILE))
}

/// The ranges that a line such as `user:100000:65536` touches.
fn delegated_range(line: &str) -> Option<(u32, u32)> {
    let mut fields = line.trim().split(':').skip(1);
    let first: u64 = fields.next()?.parse().ok()?;
    let count: u64 = fields.next()?.parse().ok()?;
    let last = first.checked_add(count.checked_sub(1)?)?;
    let number = |id: u64| u32::try_from(id / u64::from(RANGE)).unwrap_or(END);
    Some((number(first), number(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_subuid_names_the_ranges_it_touches() {
        assert_eq!(delegated_range("user:100000:65536"), Some((1, 2)));
        assert_eq!(delegated_range("1000:65536:65536"), Some((1, 1)));
        assert_eq!(delegated_range("user:4294901760:65536"), Some((0xffff, 0xffff)));
        for nothing in ["", "# text", "user:100000", "user:100000:0", "user:x:1"] {
            assert_eq!(delegated_range(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn ranges_of_two_programs_never_overlap() {
        hutch_testkit::require!(root);
        // Two open files of one process stand for two programs.
        let (one, other) = (IdRanges::open(7).unwrap(), IdRanges::open(7).unwrap());
        let mut all: Vec<IdRange> = Vec::new();
        for _ in 0..20 {
            all.push(one.take().unwrap());
            all.push(other.take().unwrap());
        }
        let bases: BTreeSet<u32> = all.iter().map(IdRange::base).collect();
        assert_eq!(bases.len(), all.len());
        assert!(bases.iter().all(|base| *base >= FIRST * RANGE && base.checked_add(RANGE).is_some()));
        let (number, base) = (all[0].number, all[0].base());
        drop(all);
        other.0.state.lock().unwrap().next = number;
        assert_eq!(other.take().unwrap().base(), base, "one that was given back is free for others");
    }
}
