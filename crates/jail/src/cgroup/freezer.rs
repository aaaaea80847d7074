//! Stopping all processes of a group where they are, and continuing them.
//!
//! Version 2 lets a frozen process be killed; version 1 does not, so there a kill is preceded by a thaw. On
//! both, a process that is put into a frozen group hangs: thaw before a start, and wait for the confirmation.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{failed, write};
use crate::{Errno, Error};

/// First pause between looks whether all processes have stopped; each is twice as long.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
/// The longest pause between looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// The file of version 1.
const STATE: &str = "freezer.state";

/// Stops and continues a jail. It blocks while it waits for the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Freezer {
    pub(super) group: PathBuf,
    /// Version 2.
    pub(super) unified: bool,
    /// The memory limit does not bound swap.
    pub(super) swap_uncounted: bool,
}

impl Freezer {
    pub(super) fn of_unified(group: &Path) -> Freezer {
        Freezer { group: group.to_owned(), unified: true, swap_uncounted: false }
    }

    pub(super) fn of_legacy(group: &Path) -> Freezer {
        Freezer { group: group.to_owned(), unified: false, swap_uncounted: false }
    }

    /// Freezes every process, and returns when the kernel reports that all are frozen. When that takes longer
    /// than `limit`, they are thawed.
    ///
    /// # Errors
    /// [`Error::Cgroup`]: some process does not stop in time, or the group has gone.
    pub fn freeze(&self, limit: Duration) -> Result<(), Error> {
        let frozen = self.set(true).and_then(|()| self.wait(true, limit));
        if frozen.is_err() {
            // What stopped must not stay so; the failure before is the one worth telling.
            let _ = self.set(false);
        }
        frozen
    }

    /// Thaws every process, and returns when the kernel reports none as frozen. No-op on a removed group.
    ///
    /// # Errors
    /// [`Error::Cgroup`]: not confirmed within `limit`.
    pub fn thaw(&self, limit: Duration) -> Result<(), Error> {
        match self.set(false).and_then(|()| self.wait(false, limit)) {
            Err(Error::Cgroup { errno: Errno(libc::ENOENT | libc::ENODEV), .. }) => Ok(()),
            other => other,
        }
    }

    /// Before a kill.
    pub(crate) fn release(&self) {
        release(&self.group);
    }

    fn set(&self, frozen: bool) -> Result<(), Error> {
        match (self.unified, frozen) {
            (true, frozen) => write(&self.group.join("cgroup.freeze"), if frozen { "1" } else { "0" }),
            (false, true) => write(&self.group.join(STATE), "FROZEN"),
            (false, false) => write(&self.group.join(STATE), "THAWED"),
        }
    }

    fn wait(&self, frozen: bool, limit: Duration) -> Result<(), Error> {
        let until = Instant::now() + limit;
        let mut pause = FIRST_PAUSE;
        while self.is_frozen()? != frozen {
            if Instant::now() >= until {
                let step = if frozen { "freeze" } else { "thaw" };
                return Err(failed(&self.group, step, Errno(libc::ETIMEDOUT)));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// Returns `true` when all are frozen; on version 1, `FREEZING` is not enough.
    fn is_frozen(&self) -> Result<bool, Error> {
        let file = self.group.join(if self.unified { "cgroup.events" } else { STATE });
        let text = std::fs::read_to_string(&file).map_err(|error| failed(&file, "read", error))?;
        let stopped = if self.unified { "frozen 1" } else { "FROZEN" };
        Ok(text.lines().any(|line| line.trim() == stopped))
    }
}

/// Thaws the processes of a group of version 1's freezer. Other groups lack the file.
pub(super) fn release(group: &Path) {
    let state = group.join(STATE);
    if state.exists() {
        // A group that goes meanwhile has nothing to let go.
        let _ = write(&state, "THAWED");
    }
}
