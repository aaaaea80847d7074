//! Flags of the client commands for a Sandbox.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::naming::{Named, Side};
use crate::quantity;

/// Which cluster, and which namespace of it.
#[derive(Args)]
pub(crate) struct Place {
    /// Namespace of the Sandbox; default that of the kubeconfig's context.
    #[arg(long, short, value_name = "NS", value_parser = quantity::label)]
    pub(crate) namespace: Option<String>,
    /// The cluster; default KUBECONFIG, the ServiceAccount of this Pod, ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// What is done about a Sandbox that is not ready.
#[derive(Args)]
pub(crate) struct Readiness {
    /// Maximum time to wait until the Sandbox is ready; 0 tries at once, ready or not.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = quantity::patience)]
    pub(crate) wait: Duration,
    /// Resume the Sandbox when it is suspended.
    #[arg(long)]
    pub(crate) resume: bool,
}

/// Where in the Sandbox's Pod.
#[derive(Args)]
pub(crate) struct Container {
    /// Container; default the one that the Pod names as its default, else its first.
    #[arg(long = "container", short = 'c', value_name = "NAME", value_parser = quantity::label)]
    pub(crate) name: Option<String>,
}

/// Which Sandbox.
#[derive(Args)]
pub(crate) struct Whose {
    /// Name of a Sandbox, or of a SandboxClaim when there is no such Sandbox; `claim/NAME`, `sandbox/NAME`.
    #[arg(value_name = "SANDBOX")]
    pub(crate) named: Named,
}

/// `hutch exec`.
#[derive(Args)]
pub(crate) struct ExecArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) readiness: Readiness,
    /// Pass standard input to the command.
    #[arg(long, short = 'i')]
    pub(crate) stdin: bool,
    /// Give the command a terminal; this one, if there is one, becomes its screen and keyboard.
    #[arg(long, short = 't')]
    pub(crate) tty: bool,
    #[command(flatten)]
    pub(crate) container: Container,
    #[command(flatten)]
    pub(crate) sandbox: Whose,
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `hutch shell`.
#[derive(Args)]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) readiness: Readiness,
    #[command(flatten)]
    pub(crate) container: Container,
    #[command(flatten)]
    pub(crate) sandbox: Whose,
}

/// `hutch cp`.
#[derive(Args)]
pub(crate) struct CopyArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) readiness: Readiness,
    #[command(flatten)]
    pub(crate) container: Container,
    /// A file or folder: `PATH` here, or `SANDBOX:PATH`.
    #[arg(value_name = "SRC")]
    pub(crate) from: Side,
    /// Destination: an existing folder, or the new name. `PATH` here, or `SANDBOX:PATH`.
    #[arg(value_name = "DST")]
    pub(crate) to: Side,
}

/// `hutch logs`.
#[derive(Args)]
pub(crate) struct LogsArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Continue with new output.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print only the last N lines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32))]
    pub(crate) tail: Option<u32>,
    /// Print only output newer than this, such as 5m.
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds)]
    pub(crate) since: Option<Duration>,
    #[command(flatten)]
    pub(crate) container: Container,
    #[command(flatten)]
    pub(crate) sandbox: Whose,
}

/// `hutch suspend`, `hutch resume`.
#[derive(Args)]
pub(crate) struct ModeArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Maximum time to wait for the change; 0 only sends the request.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = quantity::patience)]
    pub(crate) wait: Duration,
    #[command(flatten)]
    pub(crate) sandbox: Whose,
}
