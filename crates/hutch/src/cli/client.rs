//! Flags of the client commands for a Sandbox.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use hutch_client::Name;

use crate::quantity;

/// Flags for the cluster and the namespace.
#[derive(Args)]
pub(crate) struct Place {
    /// Namespace of the Sandbox; default that of the kubeconfig's context.
    #[arg(long, short, value_name = "NS", value_parser = quantity::label)]
    pub(crate) namespace: Option<String>,
    /// The cluster; default KUBECONFIG, the ServiceAccount of this Pod, ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// Flags for a Sandbox that is not ready.
#[derive(Args)]
pub(crate) struct Readiness {
    /// Maximum time to wait until the Sandbox is ready; 0 tries at once, ready or not.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = quantity::timeout)]
    pub(crate) wait: Duration,
    /// Resume the Sandbox when it is suspended.
    #[arg(long)]
    pub(crate) resume: bool,
}

/// Flag for the container.
#[derive(Args)]
pub(crate) struct Container {
    /// Container; default the one that the Pod names as its default, else its first.
    #[arg(long = "container", short = 'c', value_name = "NAME", value_parser = quantity::label)]
    pub(crate) name: Option<String>,
}

/// Argument for the Sandbox.
#[derive(Args)]
pub(crate) struct NameArgument {
    /// Name of a Sandbox, or of a SandboxClaim when there is no such Sandbox; `claim/NAME`, `sandbox/NAME`.
    #[arg(id = "sandbox", value_name = "SANDBOX")]
    pub(crate) name: Name,
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
    /// Give the command a terminal, connected to the terminal of this command if it has one.
    #[arg(long, short = 't')]
    pub(crate) tty: bool,
    #[command(flatten)]
    pub(crate) container: Container,
    #[command(flatten)]
    pub(crate) sandbox: NameArgument,
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
    pub(crate) sandbox: NameArgument,
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
    #[arg(long, value_name = "N", value_parser = quantity::lines)]
    pub(crate) tail: Option<u32>,
    /// Print only output newer than this, such as 5m.
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds)]
    pub(crate) since: Option<Duration>,
    #[command(flatten)]
    pub(crate) container: Container,
    #[command(flatten)]
    pub(crate) sandbox: NameArgument,
}

/// `hutch suspend`.
#[derive(Args)]
pub(crate) struct SuspendArguments {
    #[command(flatten)]
    pub(crate) change: ResumeArguments,
    /// Keep the memory of the processes, in gVisor. Later suspends keep it too.
    #[arg(long)]
    pub(crate) memory: bool,
}

/// `hutch resume`.
#[derive(Args)]
pub(crate) struct ResumeArguments {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Maximum time to wait for the change; 0 only sends the request.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = quantity::timeout)]
    pub(crate) wait: Duration,
    #[command(flatten)]
    pub(crate) sandbox: NameArgument,
}

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// On this machine.
    Here(PathBuf),
    /// In a Sandbox. A relative path starts at the container's working directory.
    There(Name, String),
}

impl FromStr for Side {
    type Err = String;

    /// Reads the text before the first colon as the name of a Sandbox, unless it looks like a path, such as `./a:b`.
    fn from_str(text: &str) -> Result<Side, String> {
        if let Some((name, path)) = text.split_once(':')
            && !name.starts_with(['.', '/'])
        {
            let name = name.parse().map_err(|error: hutch_client::Error| error.to_string())?;
            return Ok(Side::There(name, path.to_owned()));
        }
        if text.is_empty() { Err("an empty path".to_owned()) } else { Ok(Side::Here(text.into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_is_here_or_in_a_sandbox() {
        let side = |text: &str| text.parse::<Side>();
        assert_eq!(side("a/b"), Ok(Side::Here("a/b".into())));
        assert_eq!(side("./a:b"), Ok(Side::Here("./a:b".into())));
        assert_eq!(side("/a:b"), Ok(Side::Here("/a:b".into())));
        assert_eq!(side("a:"), Ok(Side::There(Name::Either("a".into()), String::new())));
        assert_eq!(side("claim/a:/x:y"), Ok(Side::There(Name::Claim("a".into()), "/x:y".into())));
        for wrong in ["", ":x", "A:x", "a/b:c"] {
            assert!(side(wrong).is_err(), "{wrong}");
        }
    }
}
