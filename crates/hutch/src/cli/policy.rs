//! Flags of `hutch policy` and `hutch allow`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::client::{NameArgument, Place};
use crate::quantity;
use crate::question::Question;

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
    /// Print which policies apply to a Sandbox, and what each decides about a destination. Exit status 1 if it is denied.
    Explain(PolicyExplainArguments),
    /// Decide the cases of PolicyTest documents. Exit status 1 if a case fails.
    Test(PolicyTestArguments),
}

/// `hutch policy explain`.
#[derive(Args)]
pub(crate) struct PolicyExplainArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Method of the request, for a URL: GET by default.
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Option<String>,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value = "table")]
    pub(crate) output: PolicyOutput,
    #[command(flatten)]
    pub(crate) sandbox: NameArgument,
    /// The destination: a URL, or a host with or without a port; the default port is 443.
    #[arg(value_name = "URL|HOST[:PORT]")]
    pub(crate) question: Question,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyOutput {
    /// One line for each policy, and the verdict.
    Table,
    /// One JSON object.
    Json,
}

/// `hutch policy test`.
#[derive(Args)]
pub(crate) struct PolicyTestArguments {
    /// Files with policies and PolicyTest documents, in YAML or JSON.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

/// `hutch allow`.
#[derive(Args)]
pub(crate) struct AllowArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Time after which the rule no longer counts, such as 1h. Without it, the rule has no end.
    #[arg(long = "for", value_name = "DURATION", value_parser = quantity::seconds)]
    pub(crate) lasts: Option<Duration>,
    #[command(flatten)]
    pub(crate) sandbox: NameArgument,
    /// The host, as for `hutch run --allow`; the default port is 443.
    #[arg(value_name = "HOST[:PORT]", value_parser = crate::allow::host)]
    pub(crate) host: String,
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
