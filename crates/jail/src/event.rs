//! Messages between the processes of a jail: init, the launcher, the warden and their callers.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::spec::Process;

/// Exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessExit {
    /// It exited with this status, 0 to 255.
    Code(i32),
    /// A signal killed it.
    Signal(i32),
}

/// An event of a jail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// A process has started.
    Started {
        /// The number that [`crate::Jail::spawn`] returned.
        process: u64,
        /// Its id inside the jail.
        pid: u32,
    },
    /// A process could not be started. No further event follows for it.
    NotStarted {
        /// The number that [`crate::Jail::spawn`] returned.
        process: u64,
        /// Errno.
        errno: i32,
        /// Message text, with the operation that failed.
        reason: String,
    },
    /// A process exited. No further event follows for it.
    Exited {
        /// The number that [`crate::Jail::spawn`] returned.
        process: u64,
        /// Exit status.
        exit: ProcessExit,
    },
    /// The jail has ended. No further event follows.
    Ended,
}

/// Resource usage of a jail so far, from its cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// CPU time in microseconds.
    pub cpu_micros: u64,
    /// Memory in use, in bytes.
    pub memory_bytes: u64,
    /// Part of that memory that caches files of disks, in bytes.
    #[serde(default)]
    pub memory_cache_bytes: u64,
    /// Peak memory usage, in bytes.
    pub memory_peak_bytes: u64,
    /// Processes killed because the memory limit was reached.
    pub oom_kills: u64,
    /// Current number of processes and threads.
    pub processes: u64,
}

/// A request of the caller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Request {
    /// Starts a process under this number; three file descriptors come along.
    Spawn { process: u64, what: Process },
    /// Creates a placeholder process under this number, which only waits for its end.
    Hold { process: u64 },
    /// Signals the process group of a process.
    Signal { process: u64, signal: i32 },
}

/// Result of the confinement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Reached {
    /// `true` when the kernel has Landlock.
    pub(crate) landlock: bool,
}

/// Report of an unfinished or single-use jail to its launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    /// Its network namespace is set up. File descriptors: the listeners, if any; otherwise it is not sent.
    Network,
    /// It is ready and waits on its control channel.
    Ready(Reached),
    /// The setup failed, or its one command could not be started.
    Failed(Error),
    /// Its one command has exited.
    Ended(Reached, ProcessExit),
}
