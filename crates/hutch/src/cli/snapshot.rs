//! Flags of `hutch snapshot` and `hutch fork`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hutch_api::state;
use hutch_client::Name;

use super::{NameArgument, Place};
use crate::quantity;

/// `hutch snapshot`.
#[derive(Args)]
pub(crate) struct SnapshotArguments {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

/// Subcommands of `hutch snapshot`.
#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Make a snapshot of a Sandbox: what it has written and, with content Full, the memory of its processes.
    Create(SnapshotCreateArguments),
    /// List snapshots.
    #[command(visible_alias = "ls")]
    List(SnapshotListArguments),
    /// Delete snapshots, with their images.
    #[command(visible_alias = "rm")]
    Delete(SnapshotDeleteArguments),
    /// Create a Sandbox with the spec of the one of which the snapshot is, which starts from the snapshot.
    Restore(SnapshotRestoreArguments),
}

/// Content of a snapshot, in the words of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Content {
    /// Memory and files; for Sandboxes in gVisor.
    Full,
    /// Files that the containers have written outside of their volumes, and volumes of claims.
    Filesystem,
}

impl From<Content> for state::Content {
    fn from(content: Content) -> state::Content {
        match content {
            Content::Full => state::Content::Full,
            Content::Filesystem => state::Content::Filesystem,
        }
    }
}

/// Worth of the placeholders in the memory of forks, in the words of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Credentials {
    /// Nothing: they are refused.
    None,
    /// They stand for the credentials that policies offer; needs the verb `use` on the providers.
    Inherit,
}

impl From<Credentials> for state::ForkCredentials {
    fn from(credentials: Credentials) -> state::ForkCredentials {
        match credentials {
            Credentials::None => state::ForkCredentials::None,
            Credentials::Inherit => state::ForkCredentials::Inherit,
        }
    }
}

/// Flags of a command that waits, and prints a result.
#[derive(Args)]
pub(crate) struct Outcome {
    /// Maximum time to wait for the result; 0 only sends the request.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = quantity::timeout)]
    pub(crate) wait: Duration,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch snapshot create`.
#[derive(Args)]
pub(crate) struct SnapshotCreateArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    /// Name of the snapshot; default that of the Sandbox, with a random end.
    #[arg(long, value_name = "NAME", value_parser = quantity::subdomain)]
    pub(crate) name: Option<String>,
    /// Content of the snapshot.
    #[arg(long, value_enum, default_value = "Full", ignore_case = true)]
    pub(crate) content: Content,
    /// Names of the volumeClaimTemplates whose volumes the snapshot has, separated by commas; default all.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = quantity::label)]
    pub(crate) volumes: Option<Vec<String>>,
    /// The snapshot has no volume of a claim.
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) no_volumes: bool,
    /// Delete the snapshot this long after its completion, such as 168h.
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) sandbox: NameArgument,
}

/// `hutch snapshot list`.
#[derive(Args)]
pub(crate) struct SnapshotListArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hutch snapshot delete`.
#[derive(Args)]
pub(crate) struct SnapshotDeleteArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Snapshots.
    #[arg(required = true, value_name = "SNAPSHOT", value_parser = quantity::subdomain)]
    pub(crate) names: Vec<String>,
}

/// `hutch snapshot restore`.
#[derive(Args)]
pub(crate) struct SnapshotRestoreArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    /// The snapshot.
    #[arg(value_name = "SNAPSHOT", value_parser = quantity::subdomain)]
    pub(crate) snapshot: String,
    /// Name of the new Sandbox.
    #[arg(value_name = "SANDBOX", value_parser = quantity::label)]
    pub(crate) sandbox: String,
}

/// `hutch fork`. `-n` is the number of forks here.
#[derive(Args)]
pub(crate) struct ForkArguments {
    /// Namespace of the Sandbox; default that of the kubeconfig's context.
    #[arg(long, value_name = "NS", value_parser = quantity::label)]
    pub(crate) namespace: Option<String>,
    /// The server; default KUBECONFIG, the ServiceAccount of this Pod, ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    /// Number of Sandboxes, 1 to 100.
    #[arg(long, short = 'n', value_name = "N", default_value = "1", value_parser = replicas)]
    pub(crate) replicas: i32,
    /// Name of the forks: the Sandboxes are NAME-0, NAME-1 and so on. Default that of the source, with a random end.
    #[arg(long, value_name = "NAME", value_parser = quantity::label)]
    pub(crate) name: Option<String>,
    /// Content of the snapshot of the Sandbox from which the forks start.
    #[arg(long, value_enum, default_value = "Full", ignore_case = true, conflicts_with = "snapshot")]
    pub(crate) content: Content,
    /// Worth of the placeholders of credentials that are in the memory of the forks, since they are in that of the source.
    #[arg(long, value_enum, default_value = "None", ignore_case = true)]
    pub(crate) credentials: Credentials,
    /// Start the forks from this snapshot.
    #[arg(long, value_name = "SNAPSHOT", value_parser = quantity::subdomain, conflicts_with = "sandbox")]
    pub(crate) snapshot: Option<String>,
    /// Name of a Sandbox, or of a SandboxClaim when there is no such Sandbox; `claim/NAME`, `sandbox/NAME`.
    #[arg(id = "sandbox", value_name = "SANDBOX", required_unless_present = "snapshot")]
    pub(crate) sandbox: Option<Name>,
}

/// Parses a number of forks.
fn replicas(text: &str) -> Result<i32, String> {
    let number = text.parse().ok().filter(|number| (1..=100).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number from 1 to 100; --namespace names the namespace"))
}
