//! Flags and arguments of the commands. A mistake is reported in one line that names the flag and a valid value.

mod audit;
mod client;
mod doors;
mod image;
mod policy;
mod sandboxd;
mod snapshot;
mod up;
mod volume;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use hutch_policy::{Cidr, Credential, EgressRule};

use crate::mount::MountArgument;
use crate::quantity;
use crate::upstream_proxy::ProxyUrl;

pub(crate) use audit::{
    AuditArguments, AuditCommand, AuditExportArguments, AuditListArguments, AuditOutput, AuditSelection,
    AuditShowArguments, AuditVerifyArguments,
};
pub(crate) use client::{
    Container, CopyArguments, ExecArguments, LogsArguments, NameArgument, Place, Readiness, ResumeArguments,
    ShellArguments, Side, SuspendArguments,
};
pub(crate) use policy::{
    AllowArguments, PolicyArguments, PolicyCommand, PolicyExplainArguments, PolicyFormat,
    PolicyImportArguments, PolicyOutput, PolicyTestArguments,
};

pub(crate) use doors::{EgressArguments, McpGuardArguments, ProbeArguments};
pub(crate) use image::{
    ImageArguments, ImageCommand, ImageCommitArguments, ImageExportArguments, ImageImportArguments,
    ImageInspectArguments, ImageListArguments, ImageLoginArguments, ImagePruneArguments, ImagePullArguments,
    ImageRemoveArguments,
};
pub(crate) use sandboxd::{InstallArguments, SandboxdArguments, SandboxdCommand};
pub(crate) use snapshot::{
    ForkArguments, SnapshotArguments, SnapshotCommand, SnapshotCreateArguments, SnapshotDeleteArguments,
    SnapshotListArguments, SnapshotRestoreArguments,
};
pub(crate) use up::{AuditMode, UpArguments};
pub(crate) use volume::{
    DataDir, VolumeArguments, VolumeCommand, VolumeCopyArguments, VolumeDuArguments, VolumeListArguments,
};

/// Run untrusted code in isolated, stateful, named sandboxes.
#[derive(Parser)]
#[command(name = "hutch", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// `hutch run` as a command line of its own, because each jail parses it: building the flags of the other commands too
/// would take a tenth of the time of a jail.
#[derive(Parser)]
#[command(name = "run", bin_name = "hutch run", about = RUN)]
struct Run {
    #[command(flatten)]
    arguments: RunArguments,
}

/// Help text of `hutch run`.
const RUN: &str = "Run one command in a jail, without a server";

/// Subcommands of `hutch`.
#[derive(Subcommand)]
pub(crate) enum Command {
    #[command(about = RUN)]
    Run(RunArguments),
    /// Serve the Agent Sandbox API on this machine, without a cluster.
    Up(UpArguments),
    /// Serve a proxy to the programs of this machine that decides by policies.
    Egress(EgressArguments),
    /// Run a server of MCP, and decide about the calls on its standard input by policies.
    McpGuard(McpGuardArguments),
    /// Route HTTP and WebSocket to the sandboxes of a cluster.
    Router(RouterArguments),
    /// Create tokens for the router.
    Token(TokenArguments),
    /// Create, list and delete users of the API.
    User(UserArguments),
    /// Pull images from registries, list and remove them.
    Image(ImageArguments),
    /// List, measure, export and import persistent volumes of this machine.
    Volume(VolumeArguments),
    /// Install sandboxd into a folder for a container.
    Sandboxd(SandboxdArguments),
    /// Run a command in a Sandbox.
    Exec(ExecArguments),
    /// Open a shell in a Sandbox.
    Shell(ShellArguments),
    /// Copy files and folders into a Sandbox or out of it.
    Cp(CopyArguments),
    /// Print the output of the main process of a Sandbox.
    Logs(LogsArguments),
    /// End the processes of a Sandbox and keep its volumes.
    Suspend(SuspendArguments),
    /// Start a suspended Sandbox again.
    Resume(ResumeArguments),
    /// Make, list, delete and restore snapshots of Sandboxes.
    Snapshot(SnapshotArguments),
    /// Create Sandboxes that start from the state of another.
    Fork(ForkArguments),
    /// Let a Sandbox connect to a host, if no other policy decides about its network.
    Allow(AllowArguments),
    /// Explain, test and convert policies.
    Policy(PolicyArguments),
    /// Read, check and export the audit log of `hutch up`.
    Audit(AuditArguments),
    /// Reconcile the resources of Agent Sandbox on a cluster, in place of its own controller.
    #[command(disable_help_flag = true)]
    Controller(ControllerArguments),
    /// Move a cluster from v1alpha1 to v1beta1, in two phases around the upgrade.
    Migrate(MigrateArguments),
    /// Demonstrate the main features in a temporary folder, with times.
    Demo(DemoArguments),
    /// Report what this machine supports, and the consequence of each missing feature.
    Doctor(DoctorArguments),
    /// Report whether an address can be reached.
    #[command(name = "probe-network", hide = true)]
    ProbeNetwork(ProbeArguments),
    /// Print the version.
    Version,
}

/// Which mechanism confines the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isolation {
    /// The native jail.
    Hutch,
    /// gVisor's runsc inside an outer jail.
    Gvisor,
}

/// Flags of `hutch run` whose values `--config` has.
const CONFIGURED: [&str; 8] =
    ["workspace", "read_only", "mount", "allow", "cpus", "memory", "timeout", "isolation"];

/// Rules of `--settings` and of policies for which there is no flag.
#[derive(Default)]
pub(crate) struct Listed {
    /// Rules of `--settings` for the network.
    pub(crate) rules: Option<Vec<EgressRule>>,
    /// Credentials of `--settings`.
    pub(crate) credentials: Vec<Credential>,
    /// Certificates of further authorities that programs inside trust, PEM.
    pub(crate) authorities: Vec<u8>,
    /// Paths that the command cannot write, each with `true` for a folder.
    pub(crate) deny_write: Vec<(PathBuf, bool)>,
    /// Paths in a read-only workspace that the command can write.
    pub(crate) write_within: Vec<PathBuf>,
    /// Paths that match a pattern now, and are hidden.
    pub(crate) deny_matching: Vec<PathBuf>,
}

/// `hutch run`.
#[derive(Args)]
pub(crate) struct RunArguments {
    /// The folder of this machine that the command can write, at the same path inside; /workspace leads to it. Others need
    /// --mount.
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Make the workspace read-only too.
    #[arg(long, requires = "workspace")]
    pub(crate) read_only: bool,
    /// Let the command write a file or folder of the workspace that is otherwise protected, because programs of this
    /// machine run it or read settings from it, such as .git/config. Repeatable.
    #[arg(long, value_name = "PATH", value_parser = crate::protect::allowed, requires = "workspace")]
    pub(crate) allow_write: Vec<PathBuf>,
    /// Show the command a file or folder of this machine, at the same path or at DST; `ro` makes it read-only. Repeatable.
    #[arg(long, value_name = "SRC[:DST][:ro]", value_parser = crate::mount::parse)]
    pub(crate) mount: Vec<MountArgument>,
    /// Hide a file or folder of this machine that the command would otherwise see: it appears empty. Repeatable.
    #[arg(long, value_name = "PATH")]
    pub(crate) deny_read: Vec<PathBuf>,
    /// Show the command the caller's toolchains, read-only: rustup, cargo, nvm, pyenv, uv and Go, with the PATH to them.
    #[arg(long)]
    pub(crate) tools: bool,
    /// Set a variable of the command's environment (nothing else of this environment goes in). Repeatable.
    #[arg(long, value_name = "K=V", value_parser = quantity::variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Maximum CPUs, such as 0.5.
    #[arg(long, value_name = "N", value_parser = quantity::cpus, allow_hyphen_values = true)]
    pub(crate) cpus: Option<u64>,
    /// Maximum memory, such as 512Mi.
    #[arg(long, value_name = "SIZE", value_parser = quantity::memory, allow_hyphen_values = true)]
    pub(crate) memory: Option<u64>,
    /// Maximum number of processes and threads, the jail's init included.
    #[arg(long, value_name = "N", value_parser = quantity::processes, allow_hyphen_values = true)]
    pub(crate) pids: Option<u64>,
    /// End the command after this time, such as 30s or 5m: SIGTERM, then SIGKILL. Exit status 124.
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Isolation of the command.
    #[arg(long, value_enum, default_value = "hutch")]
    pub(crate) isolation: Isolation,
    /// Image: hutch/host, hutch/python-runtime, hutch/pause, one that `hutch image pull` has pulled, or a folder in the OCI
    /// layout.
    #[arg(long, value_name = "REF", default_value = "hutch/host", conflicts_with = "rootfs")]
    pub(crate) image: String,
    /// A folder that holds a root file system; it is not written to.
    #[arg(long, value_name = "DIR")]
    pub(crate) rootfs: Option<PathBuf>,
    /// Let the command connect to this host: a name such as example.com, *.example.com or example.com:80, or an address. The
    /// default port is 443. Repeatable.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = crate::allow::rule)]
    pub(crate) allow: Vec<EgressRule>,
    /// Let allowed names lead to these addresses, although they do not belong to the internet: a range such as 10.0.0.0/8 or
    /// 127.0.0.1. Repeatable.
    #[arg(long, value_name = "CIDR", value_parser = crate::allow::private)]
    pub(crate) allow_private: Vec<Cidr>,
    /// Let the command connect to what the SandboxPolicy in this file allows. Repeatable: every policy must allow it.
    #[arg(long, value_name = "FILE", conflicts_with = "allow")]
    pub(crate) policy: Vec<PathBuf>,
    /// Connect through this HTTP proxy: http://[USER:PASSWORD@]HOST:PORT. The default is the variable HUTCH_UPSTREAM_PROXY,
    /// which other users of the machine cannot see.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream_proxy: Option<ProxyUrl>,
    /// Take isolation, network, folders and limits from this `sandbox_config`, in JSON or YAML.
    #[arg(long, value_name = "FILE", conflicts_with_all = CONFIGURED)]
    pub(crate) config: Option<PathBuf>,
    /// Take network and files from these settings of Anthropic's sandbox-runtime. The working directory is the workspace.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workspace", "read_only", "allow", "config"])]
    pub(crate) settings: Option<PathBuf>,
    /// Rules of `--settings` beyond the flags.
    #[arg(skip)]
    pub(crate) listed: Option<Box<Listed>>,
    /// Secrets may not leave: from `--config`.
    #[arg(skip)]
    pub(crate) scans: bool,
    /// Print one JSON object with the result and the output.
    #[arg(long)]
    pub(crate) json: bool,
    /// The command and its arguments, after `--`. The default is the entrypoint with the cmd of --image.
    #[arg(last = true, required_unless_present = "image", value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `hutch router`. Its flags are read in the way of the programs that it stands in for, by [`crate::router`].
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct RouterArguments {
    /// See `hutch router --help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    pub(crate) flags: Vec<OsString>,
}

/// `hutch token`.
#[derive(Args)]
pub(crate) struct TokenArguments {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

/// Subcommands of `hutch token`.
#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a token that opens one Sandbox through a router in mode scoped-token.
    Create(TokenCreateArguments),
}

/// `hutch token create`.
#[derive(Args)]
pub(crate) struct TokenCreateArguments {
    /// Name of the Sandbox.
    #[arg(value_name = "SANDBOX", value_parser = quantity::label)]
    pub(crate) sandbox: String,
    /// Namespace of the Sandbox.
    #[arg(long, short, value_name = "NAME", default_value = "default", value_parser = quantity::label)]
    pub(crate) namespace: String,
    /// UID of the Sandbox: the token does not open a later one of the same name.
    #[arg(long, value_name = "UID")]
    pub(crate) uid: Option<String>,
    /// Lifetime of the token, at least one second.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = quantity::seconds)]
    pub(crate) ttl: Duration,
    /// File with the key that the router has too (--authz-scoped-token-secret-file).
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,
}

/// `hutch user`.
#[derive(Args)]
pub(crate) struct UserArguments {
    #[command(subcommand)]
    pub(crate) command: UserCommand,
}

/// Subcommands of `hutch user`.
#[derive(Subcommand)]
pub(crate) enum UserCommand {
    /// Create a user with a client certificate; print its kubeconfig. Roles are bound to its name and its groups.
    Create(UserCreateArguments),
    /// List the users.
    List(UserListArguments),
    /// Delete a user: its certificate ends, and so do its open connections.
    Delete(UserDeleteArguments),
}

/// `hutch user create`.
#[derive(Args)]
pub(crate) struct UserCreateArguments {
    /// Name of the user: lower case letters, digits, '-' and '.'.
    #[arg(value_name = "NAME", value_parser = quantity::user)]
    pub(crate) name: String,
    /// Group of the user. Repeatable.
    #[arg(long = "group", value_name = "G", value_parser = quantity::group)]
    pub(crate) groups: Vec<String>,
    /// Write the kubeconfig to this new file (mode 0600) instead of standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Lifetime of the certificate: ten minutes to a year, which is the default.
    #[arg(long, value_name = "DURATION", value_parser = quantity::certificate_lifetime)]
    pub(crate) ttl: Option<Duration>,
    /// The server and the credential that may approve users; default KUBECONFIG, ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// `hutch user list`.
#[derive(Args)]
pub(crate) struct UserListArguments {
    /// The server; default KUBECONFIG, ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// `hutch user delete`.
#[derive(Args)]
pub(crate) struct UserDeleteArguments {
    /// Name of the user.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The server; default KUBECONFIG, ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// `hutch controller`.
#[derive(Args)]
pub(crate) struct ControllerArguments {
    /// Flags as Go programs take them; `hutch controller -h` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    pub(crate) flags: Vec<String>,
}

/// When a migration runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    /// Before the upgrade: create the empty pools that claims without a pool will name.
    Bootstrap,
    /// After the upgrade: write every object again, so that it is stored as v1beta1.
    Migrate,
}

/// `hutch migrate`.
#[derive(Args)]
pub(crate) struct MigrateArguments {
    /// Phase of the migration.
    #[arg(long, value_enum)]
    pub(crate) phase: Phase,
    /// Print the changes without making them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Only the objects of this namespace.
    #[arg(long, value_name = "NS")]
    pub(crate) namespace: Option<String>,
    /// The cluster; default KUBECONFIG, the ServiceAccount of this Pod, ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// `hutch demo`.
#[derive(Args)]
pub(crate) struct DemoArguments {}

/// `hutch doctor`.
#[derive(Args)]
pub(crate) struct DoctorArguments {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Try known attacks from inside a sandbox of this machine, native and gVisor, and report the result of each.
    #[arg(long)]
    pub(crate) attack: bool,
}

/// An invalid command line.
pub(crate) struct Refusal {
    error: clap::Error,
    of_command: bool,
}

impl Refusal {
    /// Prints help and version as clap does, and a mistake as one line. Exit status 125 for the commands that run a
    /// command, as for every failure to start it; else 2.
    pub(crate) fn report(self) -> ExitCode {
        use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
        match self.error.kind() {
            DisplayHelp | DisplayVersion => {
                let _ = self.error.print();
                ExitCode::SUCCESS
            }
            DisplayHelpOnMissingArgumentOrSubcommand => {
                let _ = self.error.print();
                ExitCode::from(2)
            }
            _ => {
                eprintln!("hutch: {}", self.line());
                ExitCode::from(if self.of_command { 125 } else { 2 })
            }
        }
    }

    fn line(&self) -> String {
        let line = one_line(&self.error.to_string());
        let unknown = match self.error.get(clap::error::ContextKind::InvalidArg) {
            Some(clap::error::ContextValue::String(word)) => word.as_str(),
            _ => "-",
        };
        // As `hutch run true` or `hutch exec mine ls`.
        let is_command = self.of_command && !unknown.starts_with(['-', '<']);
        let hint = if is_command { "; a command comes after `--`" } else { "" };
        line + hint
    }
}

/// Joins the error and the tips of clap on one line, without the usage.
fn one_line(text: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        parts.push(line.strip_prefix("error: ").unwrap_or(line));
    }
    parts.join("; ").replace(":;", ":")
}

/// Reads this process's command line.
pub(crate) fn parse() -> Result<Command, Refusal> {
    command(std::env::args_os().collect())
}

fn command(words: Vec<OsString>) -> Result<Command, Refusal> {
    let first_is = |names: &[&str]| words.get(1).is_some_and(|word| names.iter().any(|name| word == name));
    let (of_run, of_command) = (first_is(&["run"]), first_is(&["run", "exec", "shell", "mcp-guard"]));
    let command = if of_run {
        Run::try_parse_from(words.into_iter().skip(1)).map(|run| Command::Run(run.arguments))
    } else {
        Cli::try_parse_from(words).map(|cli| cli.command)
    };
    command.map_err(|error| Refusal { error, of_command })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(words: &[&str]) -> String {
        command(words.iter().map(OsString::from).collect())
            .map_or_else(|refusal| refusal.line(), |_| String::new())
    }

    #[test]
    fn every_flag_of_a_server_is_documented() {
        use clap::CommandFactory;
        let documented = include_str!("../../../docs/cli.md");
        let cli = Cli::command();
        for name in ["run", "up"] {
            let command = cli.find_subcommand(name).expect("a command");
            for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(documented.contains(&format!("`--{flag}")), "docs/cli.md lacks --{flag} of {name}");
            }
        }
    }

    #[test]
    fn mistakes_name_the_flag_in_one_line() {
        let cases: [(&[&str], &str); 25] = [
            (&["hutch", "run", "--worspace", "x", "--", "true"], "--worspace"),
            (&["hutch", "run", "--memory", "lots", "--", "true"], "--memory"),
            (&["hutch", "run", "--env", "novalue", "--", "true"], "--env"),
            (&["hutch", "run", "--timeout", "0s", "--", "true"], "--timeout"),
            (&["hutch", "run"], "COMMAND"),
            (&["hutch", "run", "true"], "after `--`"),
            (&["hutch", "exec", "mine", "ls"], "after `--`"),
            (&["hutch", "token", "create", "a"], "--key-file"),
            (&["hutch", "token", "create", "A", "--key-file", "k"], "SANDBOX"),
            (&["hutch", "token", "create", "a", "--key-file", "k", "--ttl", "10ms"], "--ttl"),
            (&["hutch", "up", "--router-allow-unauthenticated"], "--router-listen"),
            (&["hutch", "exec", "a"], "COMMAND"),
            (&["hutch", "exec", "../a", "--", "true"], "SANDBOX"),
            (&["hutch", "shell", "pod/a"], "SANDBOX"),
            (&["hutch", "logs", "--since", "soon", "a"], "--since"),
            (&["hutch", "suspend", "--wait", "later", "a"], "or 0 for no wait"),
            (&["hutch", "logs", "--tail", "x", "a"], "not a number of lines"),
            (&["hutch", "up", "--api-listen", "localhost"], "write it like 127.0.0.1:6443"),
            (&["hutch", "up", "--runtime-class", "gvisor"], "has no `=`; write it like NAME=HANDLER"),
            (&["hutch", "run", "--read-only", "--", "true"], "--workspace"),
            (&["hutch", "run", "--pids", "1", "--", "true"], "from 2 to"),
            (&["hutch", "run", "--memory", "10k", "--", "true"], "less than 1Mi"),
            (&["hutch", "user", "create", "admin"], "choose another name"),
            (&["hutch", "user", "create", "a", "--group", ""], "--group"),
            (&["hutch", "user", "create", "a", "--ttl", "9000h"], "from 10m to 8760h"),
        ];
        for (words, named) in cases {
            let line = refusal(words);
            assert!(line.contains(named) && !line.contains('\n'), "{words:?}: {line}");
        }
    }

    #[test]
    fn every_flag_is_documented() {
        use clap::CommandFactory;
        let documented = include_str!("../../../docs/cli.md");
        let mut cli = Cli::command();
        cli.build();
        let (mut commands, mut count) = (vec![&cli], 0);
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands());
            for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
                count += 1;
                let known = ["help", "version"].contains(&flag) || documented.contains(&format!("--{flag}"));
                assert!(known, "docs/cli.md lacks --{flag} of {}", command.get_name());
            }
        }
        assert!(count > 40, "{count} flags");
    }

    #[test]
    fn controller_receives_its_arguments_unchanged() {
        for words in [
            &["-extensions"][..],
            &["--version"],
            &["-h"],
            &["--help"],
            &["--kubeconfig", "f", "-x=1"],
            &["x"],
            &[],
        ] {
            let all = ["hutch", "controller"].iter().chain(words).map(OsString::from).collect();
            let Ok(Command::Controller(controller)) = command(all) else { panic!("{words:?} not taken") };
            assert_eq!(controller.flags, words);
        }
    }

    #[test]
    fn run_has_the_same_flags_alone_and_among_the_others() {
        use clap::CommandFactory;
        let mut among = Cli::command();
        among.build();
        let among = among.find_subcommand_mut("run").expect("it is there").render_long_help().to_string();
        assert_eq!(Run::command().render_long_help().to_string(), among);
    }

    #[test]
    fn arguments_after_the_dashes_are_unchanged() {
        let words = ["hutch", "run", "--json", "--", "sh", "-c", "--memory"];
        let Ok(Command::Run(run)) = command(words.map(OsString::from).to_vec()) else { panic!("not taken") };
        assert_eq!(run.command, ["sh", "-c", "--memory"]);
        assert!(run.json);
    }
}
