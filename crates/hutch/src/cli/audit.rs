//! Flags of `hutch audit`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hutch_audit::export::Destination;

use crate::quantity;

/// `hutch audit`.
#[derive(Args)]
pub(crate) struct AuditArguments {
    /// Folder of the persistent state of `hutch up`; the log is its folder `audit`.
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/lib/hutch")]
    pub(crate) data_dir: PathBuf,
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

/// Subcommands of `hutch audit`.
#[derive(Subcommand)]
pub(crate) enum AuditCommand {
    /// Print the events.
    List(AuditListArguments),
    /// Print the events, and wait for further ones.
    Follow(AuditListArguments),
    /// Print a summary of what a Sandbox did.
    Show(AuditShowArguments),
    /// Check the chain and the signatures. Exit status 1 if something was changed, removed or cut off.
    Verify(AuditVerifyArguments),
    /// Print the records as they are in the log, or send them to a receiver, from where the last one ended.
    Export(AuditExportArguments),
}

/// `hutch audit list` and `hutch audit follow`.
#[derive(Args)]
pub(crate) struct AuditListArguments {
    #[command(flatten)]
    pub(crate) selection: AuditSelection,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value = "lines")]
    pub(crate) output: AuditOutput,
}

/// Selection of events.
#[derive(Args)]
pub(crate) struct AuditSelection {
    /// Only events of a Sandbox: NAMESPACE/NAME, or its uid.
    #[arg(long, value_name = "SANDBOX")]
    pub(crate) sandbox: Option<String>,
    /// Only events of this last time, such as 15m.
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    pub(crate) since: Option<Duration>,
    /// Only events of a kind: connection, http, dns, exec, file, api, credential, approval, finding, lifecycle or log.
    /// Repeatable.
    #[arg(long, value_name = "KIND", value_parser = kind)]
    pub(crate) kind: Vec<hutch_audit::Kind>,
    /// Only what was refused.
    #[arg(long)]
    pub(crate) denied: bool,
}

fn kind(text: &str) -> Result<hutch_audit::Kind, String> {
    hutch_audit::Kind::parse(text).ok_or_else(|| {
        let names: Vec<&str> = hutch_audit::Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        format!("must be one of {}", names.join(", "))
    })
}

/// Format of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuditOutput {
    /// One line of text for each event.
    Lines,
    /// One line of JSON for each event, as OCSF defines it.
    Json,
}

/// `hutch audit show`.
#[derive(Args)]
pub(crate) struct AuditShowArguments {
    /// The Sandbox: NAME, NAMESPACE/NAME, or its uid.
    #[arg(value_name = "SANDBOX")]
    pub(crate) sandbox: String,
    /// Namespace of a NAME.
    #[arg(long, short, default_value = "default")]
    pub(crate) namespace: String,
}

/// `hutch audit verify`.
#[derive(Args)]
pub(crate) struct AuditVerifyArguments {
    /// Public key of the log, saved elsewhere before; the default is the one in the folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

/// `hutch audit export`.
#[derive(Args)]
pub(crate) struct AuditExportArguments {
    /// Receiver: file:/PATH, syslog+tcp://HOST[:PORT], syslog+tls://HOST[:PORT], otlp+http(s)://HOST[:PORT] or
    /// webhook+http(s)://HOST[:PORT]/PATH. Without it, the records are printed.
    #[arg(long, value_name = "RECEIVER")]
    pub(crate) to: Option<Destination>,
    /// Name under which the place of the last record that was sent is kept.
    #[arg(long, value_name = "NAME", requires = "to", default_value = "default")]
    pub(crate) name: String,
    /// Wait for further records.
    #[arg(long, requires = "to")]
    pub(crate) follow: bool,
    /// Certificates of the receiver's authorities, PEM; the default are those of the machine.
    #[arg(long, value_name = "FILE", requires = "to")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Secret by which a webhook is signed.
    #[arg(long, value_name = "FILE", requires = "to")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Headers of requests, one in each line, such as Authorization.
    #[arg(long, value_name = "FILE", requires = "to")]
    pub(crate) header_file: Option<PathBuf>,
}
