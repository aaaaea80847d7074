//! What runs inside a sandbox and does the work that a client asks for: starts commands and reads and writes files
//! below one folder.
//!
//! The work itself ([`process`], [`files`]) knows nothing of HTTP; [`legacy`] is one door to it, the contract of
//! Agent Sandbox's Python runtime on port 8888. It is one thread and a few megabytes, built as a static program, so
//! that it can be put into any image.
//!
//! It refuses to name, open or make a file outside its base folder, to run a shell that nobody asked for, and to
//! outlive the interest in a command: when the client goes away, the command's process group is killed. It holds no
//! credential and checks none: who may reach the port is decided outside the sandbox.

pub mod files;
pub mod legacy;
pub mod process;
mod python;
pub mod reap;
pub mod server;
mod settings;
pub mod shlex;
mod walk;

pub use settings::{HELP, Settings, Usage};

/// Why the program cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The base folder cannot be made or opened.
    #[error("cannot open the base folder {folder}: {source}")]
    BaseFolder {
        /// As it was given.
        folder: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on port {port}: {source}")]
    Listen {
        /// As it was given.
        port: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// The handlers of SIGTERM, SIGINT or SIGCHLD cannot be set.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
}
