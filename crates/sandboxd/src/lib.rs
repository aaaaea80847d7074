//! What runs inside a sandbox and does the work that a client asks for: starts commands and reads and writes files
//! below one folder.
//!
//! The work itself ([`process`], [`files`], [`archive`], [`watch`], [`ports`]) knows nothing of HTTP. Three doors lead to
//! it: [`rpc`] (gRPC, gRPC-Web and Connect, port 9090) and [`rest`] (port 8080) as sandboxd of Agent Sandbox has them, and
//! [`legacy`], the contract of its Python runtime (port 8888). It is one thread for all clients and a few for files, a
//! few megabytes, built as a static program, so that it can be put into any image.
//!
//! It refuses to name, open or make a file outside its base folder, to run a shell that nobody asked for, and, unless a
//! process was detached, to outlive the interest in a command: when the client goes away, the command's process group is
//! killed. When it was given a [`token`], it demands it; otherwise who may reach the ports is decided outside the sandbox.

pub mod activity;
mod answer;
mod archive;
mod content;
pub mod files;
pub mod first;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
pub mod legacy;
pub mod notes;
mod ports;
pub mod process;
mod python;
mod readiness;
pub mod reap;
pub mod rest;
pub mod rpc;
pub mod server;
mod settings;
pub mod shlex;
mod token;
mod walk;
mod watch;

pub use settings::{HELP, Port, Settings, Usage};

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
    /// The command that was to be started with it cannot be.
    #[error("{text}")]
    First {
        /// Exit status that says why.
        status: u8,
        /// What is wrong.
        text: String,
    },
}
