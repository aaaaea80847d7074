//! Flags of `hutch audit`.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand, ValueEnum};
use hutch_audit::export::Destination;

use crate::quantity;

/// `hutch audit`.
#[derive(Args)]
pub(crate) struct AuditArguments {
    /// Folder of the persistent state of `hutch up`, or of `hutch egress --cluster`; the log is its folder `audit`.
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
    /// Only events of a Sandbox: NAME, NAMESPACE/NAME, sandbox/NAME, its uid, or claim/NAME of its SandboxClaim.
    #[arg(long, value_name = "SANDBOX")]
    pub(crate) sandbox: Option<String>,
    /// Namespace of a NAME.
    #[arg(long, short, default_value = "default")]
    pub(crate) namespace: String,
    /// Only events since this time: a duration before now, such as 15m, or a time such as 2026-11-24T20:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<SystemTime>,
    /// Only events until this time, in the same forms.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) until: Option<SystemTime>,
    /// Only events of a kind: api, exec, file, lifecycle, connection, http, dns, credential, finding or log. Repeatable.
    #[arg(long, value_name = "KIND", value_parser = kind)]
    pub(crate) kind: Vec<hutch_audit::Kind>,
    /// Only events of this caller.
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Only requests of callers that change something.
    #[arg(long)]
    pub(crate) writes: bool,
    /// Only what was refused.
    #[arg(long)]
    pub(crate) denied: bool,
}

fn kind(text: &str) -> Result<hutch_audit::Kind, String> {
    let mut written = hutch_audit::Kind::WRITTEN.into_iter();
    written.find(|kind| kind.as_str() == text).ok_or_else(|| {
        let names = hutch_audit::Kind::WRITTEN.map(hutch_audit::Kind::as_str);
        format!("must be one of {}", names.join(", "))
    })
}

fn moment(text: &str) -> Result<SystemTime, String> {
    let wrong = || format!("`{text}` is not a time; write it like 15m, or like 2026-11-24T20:00:00Z");
    if let Ok(time) = text.parse::<k8s_openapi::jiff::Timestamp>() {
        return Ok(time.into());
    }
    SystemTime::now().checked_sub(quantity::duration(text).map_err(|_| wrong())?).ok_or_else(wrong)
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
    /// The Sandbox: NAME, NAMESPACE/NAME, sandbox/NAME, its uid, or claim/NAME of its SandboxClaim.
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
    /// Copy of the file `head` that was saved elsewhere before: the log must still have what it signs.
    #[arg(long, value_name = "FILE")]
    pub(crate) head: Option<PathBuf>,
}

/// `hutch audit export`.
#[derive(Args)]
pub(crate) struct AuditExportArguments {
    /// Receiver: file:/PATH, syslog+tcp://HOST[:PORT], syslog+tls://HOST[:PORT], otlp+http(s)://HOST[:PORT],
    /// otlp+grpc(s)://HOST[:PORT] or webhook+http(s)://HOST[:PORT]/PATH. Without it, the records are printed.
    #[arg(long, value_name = "RECEIVER")]
    pub(crate) to: Option<Destination>,
    /// Name under which the place of the last record that was sent is kept. Each receiver needs one of its own.
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
