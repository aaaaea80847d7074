//! Controllers of the lives: those in this process, or a program that takes the Go controller's flags.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use hutch_controller::Config;
use hutch_serve::Shutdown;
use hutch_testkit::cluster::{Cluster, Conversion, Options, machine_address};
use tokio::task::JoinHandle;

use super::script::Script;
use super::webhook;

/// Readiness grace of a pooled Sandbox in an impatient life, and the pause between reconciles of unschedulable ones.
/// Elsewhere these are minutes.
const GRACE_SECONDS: u64 = 3;
const RECHECK_SECONDS: u64 = 2;
const NAME: &str = "controller";

/// Which controller.
pub(crate) enum Controller {
    /// This crate's, in this process. It has no conversion webhook.
    #[allow(dead_code, reason = "the test of the program does not")]
    Here,
    /// A program, by how it is started.
    Program(Box<dyn Fn() -> Command>),
}

/// Running controller, until it is stopped.
pub(crate) enum Running {
    Here(Shutdown, JoinHandle<()>),
    Program,
}

impl Controller {
    /// Returns whether it converts between the versions: a program does, where the API server can reach it.
    pub(crate) fn converts(&self) -> bool {
        matches!(self, Controller::Program(_)) && machine_address().is_some()
    }

    /// Returns whether it supports that life.
    pub(crate) fn takes(&self, script: &Script) -> bool {
        self.converts() || !script.both_versions
    }

    /// A control plane for it.
    pub(crate) async fn cluster(&self) -> anyhow::Result<Place> {
        let conversion = if self.converts() { Conversion::Published } else { Conversion::None };
        let cluster = Cluster::start(Options { crds: Some(conversion), ..Options::default() }).await?;
        // Free now: no other program uses ports of this range.
        let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()?.port();
        if let Some(address) = machine_address().filter(|_| self.converts()) {
            webhook::lead_to(&cluster, address, port).await?;
        }
        Ok(Place { cluster, port })
    }

    /// Starts it, and waits until it converts, if it does.
    pub(crate) async fn start(&self, place: &mut Place, impatient: bool) -> anyhow::Result<Running> {
        let Controller::Program(command) = self else {
            let (client, shutdown) = (place.cluster.client("hutch-controller").await?, Shutdown::new());
            let task = tokio::spawn(hutch_controller::run(client, config(impatient), shutdown.clone()));
            return Ok(Running::Here(shutdown, task));
        };
        let mut command = command();
        command.args(["--leader-elect=false", "--extensions"]);
        command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
        command.arg(format!("--kubeconfig={}", place.cluster.kubeconfig().display()));
        if self.converts() {
            let folder = place.cluster.folder().join("certificates");
            command.arg(format!("--webhook-port={}", place.port));
            command.arg(format!("--webhook-cert-dir={}", folder.display()));
        } else {
            command.args(["--enable-webhook=false", "--manage-webhook-certs=false"]);
        }
        if impatient {
            command.arg(format!("--sandbox-warm-pool-readiness-grace-period={GRACE_SECONDS}s"));
            command.arg(format!("--sandbox-warm-pool-unschedulable-recheck-interval={RECHECK_SECONDS}s"));
        }
        place.cluster.spawn(NAME, command)?;
        if self.converts() {
            let client = place.cluster.client("life").await?;
            place.cluster.until("conversion", || webhook::converts(&client)).await?;
        }
        Ok(Running::Program)
    }
}

fn config(impatient: bool) -> Config {
    if !impatient {
        return Config::default();
    }
    Config {
        readiness_grace: Duration::from_secs(GRACE_SECONDS),
        unschedulable_recheck: Duration::from_secs(RECHECK_SECONDS),
        ..Config::default()
    }
}

/// A control plane, and the port on which a program's webhook is looked for.
pub(crate) struct Place {
    pub(crate) cluster: Cluster,
    port: u16,
}

impl Running {
    /// Stops it; an error if it had ended by itself.
    pub(crate) async fn stop(self, place: &mut Place) -> anyhow::Result<()> {
        match self {
            Running::Here(shutdown, task) => {
                shutdown.trigger();
                Ok(task.await.context("the controllers")?)
            }
            Running::Program => {
                if let Some(ended) = place.cluster.program(NAME).filter(|program| !program.is_running()) {
                    bail!("the controller has ended\n{}", ended.log_end());
                }
                place.cluster.stop(NAME)
            }
        }
    }
}
