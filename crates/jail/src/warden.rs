//! The caller's side of the warden: a single-threaded program, exec'd once, that forks all jails.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::Error;
use crate::spec::{Process, Spec};

/// What a process of a jail gets as its standard streams.
#[derive(Debug)]
pub struct Stdio {
    /// Descriptor 0.
    pub stdin: OwnedFd,
    /// Descriptor 1.
    pub stdout: OwnedFd,
    /// Descriptor 2.
    pub stderr: OwnedFd,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessExit {
    /// It exited with this status, 0 to 255.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

/// What a jail reports.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// A process runs.
    Started {
        /// The number that [`Jail::spawn`] gave.
        process: u64,
        /// Its id inside the jail.
        pid: u32,
    },
    /// A process could not be started. Nothing further follows for it.
    NotStarted {
        /// The number that [`Jail::spawn`] gave.
        process: u64,
        /// Reason given by the kernel.
        errno: i32,
        /// In words, with what was attempted.
        reason: String,
    },
    /// A process ended. Nothing further follows for it.
    Exited {
        /// The number that [`Jail::spawn`] gave.
        process: u64,
        /// How.
        exit: ProcessExit,
    },
    /// The jail is gone. Nothing follows.
    Ended,
}

/// What a jail has used so far, from its cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// CPU time in microseconds.
    pub cpu_micros: u64,
    /// Memory in use, in bytes.
    pub memory_bytes: u64,
    /// The most memory that was in use at once, in bytes.
    pub memory_peak_bytes: u64,
    /// Processes killed because the memory limit was reached.
    pub oom_kills: u64,
    /// Processes and threads now.
    pub processes: u64,
}

/// A running warden. It is thread-safe; jails are launched one after the other.
#[derive(Debug)]
pub struct Warden {
    process: OwnedFd,
}

impl Warden {
    /// Starts the warden `program`. `state_dir` is a folder of this caller alone, in which the warden notes what a
    /// next one has to sweep up.
    pub fn start(program: &Path, state_dir: &Path) -> Result<Self, Error> {
        let _ = (program, state_dir);
        Err(Error::WardenEnded)
    }

    /// Makes a jail; blocks 1 to 2 ms. `join_network` is needed for [`crate::Network::Join`].
    pub fn launch(&self, spec: &Spec, join_network: Option<BorrowedFd<'_>>) -> Result<Jail, Error> {
        let _ = (spec, join_network);
        Err(Error::WardenEnded)
    }

    /// Readable when the warden has died (a pidfd).
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

/// One jail. Dropping it kills everything inside.
#[derive(Debug)]
pub struct Jail {
    id: String,
    init_pid: u32,
    control: OwnedFd,
    network: OwnedFd,
}

impl Jail {
    /// The id of its description.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Process id of its init, seen from outside.
    pub fn init_pid(&self) -> u32 {
        self.init_pid
    }

    /// Its network namespace.
    pub fn network(&self) -> BorrowedFd<'_> {
        self.network.as_fd()
    }

    /// Asks for a process. The number is unique in the jail; [`Event::Started`] or [`Event::NotStarted`] follows.
    pub fn spawn(&self, process: &Process, stdio: Stdio) -> Result<u64, Error> {
        let _ = (process, stdio);
        Err(Error::WardenEnded)
    }

    /// Sends a signal to the process group of a process. One that has ended already is no error.
    pub fn signal(&self, process: u64, signal: i32) -> Result<(), Error> {
        let _ = (process, signal);
        Err(Error::WardenEnded)
    }

    /// The next event, or nothing when none waits. Never blocks.
    pub fn try_event(&self) -> Result<Option<Event>, Error> {
        Err(Error::WardenEnded)
    }

    /// What it has used so far. Fails with [`Error::NoGroup`] when it was launched without limits.
    pub fn usage(&self) -> Result<Usage, Error> {
        Err(Error::NoGroup)
    }

    /// Kills everything inside. The warden removes the cgroups.
    pub fn kill(&self) {}
}

impl AsFd for Jail {
    /// Readable when an event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}
