//! What the processes of a jail tell each other: init, the launcher, the warden and their callers.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::spec::Process;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessExit {
    /// It exited with this status, 0 to 255.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

/// What a jail reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// A process runs.
    Started {
        /// The number that [`crate::Jail::spawn`] gave.
        process: u64,
        /// Its id inside the jail.
        pid: u32,
    },
    /// A process could not be started. Nothing further follows for it.
    NotStarted {
        /// The number that [`crate::Jail::spawn`] gave.
        process: u64,
        /// Reason given by the kernel.
        errno: i32,
        /// In words, with what was attempted.
        reason: String,
    },
    /// A process ended. Nothing further follows for it.
    Exited {
        /// The number that [`crate::Jail::spawn`] gave.
        process: u64,
        /// How.
        exit: ProcessExit,
    },
    /// The jail is gone. Nothing follows.
    Ended,
}

/// What a jail has used so far, from its cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// What the caller asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Request {
    /// Start a process under this number; three descriptors come along.
    Spawn { process: u64, what: Process },
    /// Stand for a process under this number that does nothing but wait to be ended.
    Hold { process: u64 },
    /// Signal the process group of a process.
    Signal { process: u64, signal: i32 },
}

/// What the confinement came to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Reached {
    /// Whether the kernel has Landlock.
    pub(crate) landlock: bool,
}

/// What a half-made or single-use jail tells the one who launched it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    /// Its network namespace is set up. Descriptors: the listeners, if there are any; else this is not sent.
    Network,
    /// It stands and waits on its control channel.
    Ready(Reached),
    /// It could not be made, or its one command could not be started.
    Failed(Error),
    /// Its one command has ended.
    Ended(Reached, ProcessExit),
}
