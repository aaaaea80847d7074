//! Commands, started without a shell in their own process group, and killed as a group when no client waits
//! for them. [`Runner`] runs them to the end; [`Processes`] are interactive.

mod capture;
mod follow;
mod input;
mod late_env;
mod memory;
mod registry;
mod ring;
mod run;
mod start;
pub mod terminal;

use rustix::process::{Pid, Signal, kill_process_group};

pub use capture::{Captured, OUTPUT_LIMIT, TOTAL_LIMIT};
pub use follow::{Event, Source};
pub use input::InputError;
pub(crate) use memory::LINE as OUT_OF_MEMORY;
pub use registry::{DETACHED_LIMIT, ENDED_LIMIT, Listed, ProcessError, Processes, RUNNING_LIMIT, Started};
pub use ring::RING_LIMIT;
pub use run::{Finished, Job, Runner, TURNS};
pub(crate) use start::pid;
pub use start::{Program, StartError};
pub use terminal::Size;

/// End of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Exit with this code (0 to 255).
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

impl Exit {
    pub(crate) fn of(status: std::process::ExitStatus) -> Exit {
        use std::os::unix::process::ExitStatusExt;
        match status.code() {
            Some(code) => Exit::Code(code),
            None => Exit::Signal(status.signal().unwrap_or(0)),
        }
    }
}

/// Reason why a command has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The command exceeded its time limit and was killed with its group.
    #[error("the command ran longer than {0:?}")]
    TimedOut(std::time::Duration),
    /// Its output or its exit status could not be read.
    #[error("cannot follow the command: {0}")]
    Follow(std::io::Error),
}

/// Kills a process group on drop, unless the group has been marked as ended.
pub(crate) struct Group(pub(crate) Option<Pid>);

impl Group {
    pub(crate) fn kill(&mut self) {
        if let Some(leader) = self.0.take() {
            // It may have just ended, or is about to lead its own group and does not
            // yet.
            if kill_process_group(leader, Signal::KILL).is_err() {
                let _ = rustix::process::kill_process(leader, Signal::KILL);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
