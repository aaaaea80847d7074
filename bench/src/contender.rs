//! Controllers to compare, each on a fresh control plane, with the same flags.

use std::path::PathBuf;
use std::process::Command;

use hutch_testkit::cluster::{Cluster, Options};

use crate::least;
use crate::machine::{before, binary};

/// Name of the controller's process in its cluster.
pub(crate) const CONTROLLER: &str = "controller";

/// Name of the Go controller in the tables.
pub(crate) const GO: &str = "Go controller";

/// Flags of every compared controller.
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

/// Returns Hutch's controller, that of `HUTCH_BEFORE`, and the Go controller if the folder HUTCH_PEERS has it.
pub(crate) fn all() -> anyhow::Result<Vec<Contender>> {
    let mut all = vec![Contender { name: "hutch", program: binary()?, subcommand: Some("controller") }];
    if let Some(program) = before() {
        all.push(Contender { name: "hutch before", program, subcommand: Some("controller") });
    }
    match peer("upstream-controller") {
        Some(program) => all.push(Contender { name: GO, program, subcommand: None }),
        None => println!("(alone: HUTCH_PEERS names no folder with upstream-controller)"),
    }
    Ok(all)
}

/// Returns a program in the folder HUTCH_PEERS.
pub(crate) fn peer(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("HUTCH_PEERS")?);
    Some(folder.join(name)).filter(|file| file.is_file())
}

/// Returns the minimal controller, an upper bound for every other: see [`least`].
pub(crate) fn bound() -> anyhow::Result<Contender> {
    let program = std::env::current_exe()?;
    Ok(Contender { name: "the minimal controller", program, subcommand: Some(least::ARGUMENT) })
}

impl Contender {
    /// Starts a cluster that runs only Kubernetes and this controller.
    pub(crate) async fn start(&self, more_flags: &[&str]) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster::start(Options::default()).await?;
        let mut command = Command::new(&self.program);
        command.args(self.subcommand).args(FLAGS).args(more_flags);
        command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
        cluster.spawn(CONTROLLER, command)?;
        Ok(cluster)
    }
}
