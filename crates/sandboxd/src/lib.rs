//! Runtime inside a sandbox: runs commands, and reads and writes files below one folder, for
//! clients.
//!
//! The work itself ([`process`], [`files`], [`archive`], [`watch`], [`ports`]) does not depend on HTTP. Three
//! APIs lead to it: [`rpc`] (gRPC, gRPC-Web and Connect, port 9090) and [`rest`] (port 8080) as in sandboxd
//! of Agent Sandbox, and [`legacy`], the contract of its Python runtime (port 8888). One thread serves all
//! clients, and a few threads work on files. It is a static program of a few megabytes that runs in any
//! image.
//!
//! It never names, opens or creates a file outside its base folder, and starts no shell of its own. When a
//! client disconnects, the process group of its command is killed, unless the process is detached. With a
//! [`token`], every request needs it; otherwise access to the ports is decided outside the sandbox.

pub mod activity;
mod answer;
mod archive;
mod content;
pub mod files;
pub mod first;
pub mod generators;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
pub mod legacy;
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

/// Reason why the program cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The base folder cannot be created or opened.
    #[error("cannot open the base folder {folder}: {source}")]
    BaseFolder {
        /// Folder as configured.
        folder: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on port {port}: {source}")]
    Listen {
        /// Port as configured.
        port: u16,
        /// Error of the system.
        source: std::io::Error,
    },
    /// All ports are in use, and there is no command to run.
    #[error(
        "no port is left to serve: each is in use or disabled; choose others with --port, --rest-port and --grpc-port"
    )]
    NoPort,
    /// The handlers of SIGTERM, SIGINT or SIGCHLD cannot be set.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    /// The container's own command cannot be started.
    #[error("{text}")]
    First {
        /// Exit status of this program.
        status: u8,
        /// Error text.
        text: String,
    },
}
