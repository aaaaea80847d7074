//! Flags of `hutch sandboxd`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::quantity;

/// `hutch sandboxd`.
#[derive(Args)]
pub(crate) struct SandboxdArguments {
    #[command(subcommand)]
    pub(crate) command: SandboxdCommand,
}

/// Subcommands of `hutch sandboxd`.
#[derive(Subcommand)]
pub(crate) enum SandboxdCommand {
    /// Write the program DIR/hutch-sandboxd. With a key, also write DIR/token, which clients must then present. An init
    /// container runs this for a container that shares the folder.
    Install(InstallArguments),
}

/// `hutch sandboxd install`.
#[derive(Args)]
pub(crate) struct InstallArguments {
    /// Folder; created when missing.
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// File with the key from which the token of the Pod is made. The router has the same key (--sandboxd-key-file).
    #[arg(long, value_name = "FILE", requires = "pod_uid")]
    pub(crate) key_file: Option<PathBuf>,
    /// UID of the Pod that the token is for.
    #[arg(long, value_name = "UID", requires = "key_file", value_parser = quantity::uid)]
    pub(crate) pod_uid: Option<String>,
}
