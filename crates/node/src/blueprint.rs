//! Parts of which a container is made.

use std::path::PathBuf;

use hutch_image::StopSignal;
use hutch_jail::{Capabilities, FileRules, Limits, Mount, Process, Root, User};

/// A container's parts, with nothing left to look up.
#[derive(Debug, Clone)]
pub(crate) struct Blueprint {
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Variables,
    pub(crate) cwd: PathBuf,
    pub(crate) user: User,
    /// The main process gets a terminal.
    pub(crate) terminal: bool,
    /// The main process gets a standard input that clients can attach to.
    pub(crate) stdin: bool,
    /// The standard input ends with the first client that attached.
    pub(crate) stdin_once: bool,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) root: Root,
    /// Files that its processes cannot read or write.
    pub(crate) files: FileRules,
    pub(crate) limits: Limits,
    /// Signal that ends the main process.
    pub(crate) stop_signal: StopSignal,
    /// Capabilities of user 0 inside, in the user namespace of its jail.
    pub(crate) capabilities: Capabilities,
    /// Folder on the machine of its termination message, if it has one.
    pub(crate) message: Option<PathBuf>,
    /// Folder on the machine where the runtime inside finds variables that come while it runs.
    pub(crate) late_env: Option<PathBuf>,
}

impl Blueprint {
    /// Returns the main process.
    pub(crate) fn main_process(&self) -> Process {
        Process {
            argv: self.argv.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            terminal: self.terminal,
            user: self.user.clone(),
        }
    }
}

/// Names and values.
pub(crate) type Variables = Vec<(String, String)>;
