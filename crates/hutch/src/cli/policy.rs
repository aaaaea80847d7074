//! Flags of `hutch policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `hutch policy`.
#[derive(Args)]
pub(crate) struct PolicyArguments {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

/// Subcommands of `hutch policy`.
#[derive(Subcommand)]
pub(crate) enum PolicyCommand {
    /// Print a file of another format as a SandboxPolicy, and each change of its meaning on standard error.
    Import(PolicyImportArguments),
}

/// `hutch policy import`.
#[derive(Args)]
pub(crate) struct PolicyImportArguments {
    /// Format of the file.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) from: PolicyFormat,
    /// Print a policy without what cannot be enforced, with a warning for each, instead of an error.
    #[arg(long)]
    pub(crate) lossy: bool,
    /// The file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Format of a file to import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyFormat {
    /// Settings of Anthropic's sandbox-runtime, in JSON.
    Srt,
    /// A `sandbox_config`, in JSON or YAML.
    SandboxConfig,
}
