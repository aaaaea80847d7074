//! Controllers that are measured side by side, each on a fresh control plane, with the same flags.

use std::path::PathBuf;
use std::process::Command;

use hutch_testkit::cluster::{Cluster, Options};

use crate::least;
use crate::machine::binary;

/// The name under which the controller's process is known to its cluster.
pub(crate) const CONTROLLER: &str = "controller";

/// The name of the Go controller here.
pub(crate) const GO: &str = "Go controller";

/// Those that are compared take these.
const FLAGS: [&str; 6] = [
    "--leader-elect=false",
    "--extensions",
    "--enable-webhook=false",
    "--manage-webhook-certs=false",
    "--metrics-bind-address=0",
    "--health-probe-bind-address=0",
];

/// A controller.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    program: PathBuf,
    subcommand: Option<&'static str>,
}

/// Ours, and the Go controller where the folder that HUTCH_PEERS names holds it.
pub(crate) fn all() -> anyhow::Result<Vec<Contender>> {
    let mut all = vec![Contender { name: "hutch", program: binary()?, subcommand: Some("controller") }];
    match peer("upstream-controller") {
        Some(program) => all.push(Contender { name: GO, program, subcommand: None }),
        None => println!("(alone: HUTCH_PEERS names no folder with upstream-controller)"),
    }
    Ok(all)
}

/// A program in the folder that HUTCH_PEERS names.
pub(crate) fn peer(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("HUTCH_PEERS")?);
    Some(folder.join(name)).filter(|file| file.is_file())
}

/// What no controller can be quicker than: see [`least`].
pub(crate) fn bound() -> anyhow::Result<Contender> {
    let program = std::env::current_exe()?;
    Ok(Contender { name: "the minimal controller", program, subcommand: Some(least::ARGUMENT) })
}

impl Contender {
    /// A cluster in which nothing but this controller runs, beside what belongs to Kubernetes.
    pub(crate) async fn start(&self, more_flags: &[&str]) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster::start(Options::default()).await?;
        let mut command = Command::new(&self.program);
        command.args(self.subcommand).args(FLAGS).args(more_flags);
        command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
        cluster.spawn(CONTROLLER, command)?;
        Ok(cluster)
    }
}
