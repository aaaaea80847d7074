//! A real Kubernetes control plane for one test or one test program: etcd, kube-apiserver, and by option
//! kube-controller-manager, kube-scheduler and kwok, which plays the kubelet of one Node. With the feature `worker` a Node
//! whose Pods are processes: [`Worker`].
//!
//! Everything lives in a temporary folder, listens on loopback, and ends with the [`Cluster`], also when the test
//! program is killed. A start takes a few seconds and half a GiB, so the tests of one program do well to share one
//! cluster and to take a [`Cluster::namespace`] each. Needs the programs of [`crate::require!`]`(kubernetes)`.

mod access;
mod audit;
mod crds;
mod credentials;
mod guardian;
mod kubelet;
mod ports;
mod program;
mod start;
#[cfg(feature = "worker")]
mod worker;

use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::Client;

use crate::wait;

pub use access::Access;
pub use audit::{Audit, Write};
pub use crds::Conversion;
pub use kubelet::kubelet;
pub use program::{Program, Usage};
#[cfg(feature = "worker")]
pub use worker::Worker;

use guardian::Guardian;

/// Longest wait for a part of the cluster to be ready.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// Programs beside etcd and kube-apiserver.
#[derive(Debug, Clone)]
pub struct Options {
    /// The CRDs of Agent Sandbox, with this conversion between their versions; without, none is there. They are served
    /// before the controller manager starts, whose garbage collector would otherwise see them half a minute late.
    pub crds: Option<Conversion>,
    /// kube-controller-manager: garbage collection, namespaces, service accounts, Deployments.
    pub controllers: bool,
    /// kube-scheduler, kwok and one Node. A Pod is Running and Ready a moment after it was made, without a process.
    pub node: bool,
}

impl Default for Options {
    /// Everything, with CRDs that do not convert.
    fn default() -> Self {
        Options { crds: Some(Conversion::None), controllers: true, node: true }
    }
}

/// A running control plane.
pub struct Cluster {
    programs: Vec<Program>,
    guardian: Guardian,
    folder: PathBuf,
    access: Access,
}

impl Cluster {
    /// Starts a cluster and waits until all of it is ready.
    ///
    /// # Errors
    /// A program that is missing, ends, or is not ready after two minutes; the end of its log is in the error.
    pub async fn start(options: Options) -> anyhow::Result<Cluster> {
        let folder = tempfile::Builder::new().prefix("hutch-cluster-").tempdir()?.keep();
        let guardian = Guardian::start(&folder)?;
        let [etcd, etcd_peers, api, kubelet] = ports::free()?;
        let token = credentials::write(&folder)?;
        let access = Access::admin(&folder, format!("https://127.0.0.1:{api}"), &token)?;
        let mut cluster = Cluster { programs: Vec::new(), guardian, folder, access };
        cluster.start_etcd(etcd, etcd_peers)?;
        cluster.start_apiserver(etcd, api)?;
        let client = cluster.client("hutch-testkit").await?;
        cluster.until("kube-apiserver answers", || access::is_ready(&client)).await?;
        if let Some(conversion) = &options.crds {
            crds::apply(&client, conversion).await?;
            cluster.until("the CRDs are served", || crds::are_served(&client)).await?;
        }
        if options.controllers {
            cluster.start_controller_manager()?;
        }
        if options.node {
            cluster.start_node(&client, kubelet).await?;
        }
        if options.controllers {
            cluster.until("the default service account", || access::has_account(&client, "default")).await?;
        }
        Ok(cluster)
    }

    /// The administrator's kubeconfig, also for other programs.
    pub fn kubeconfig(&self) -> &Path {
        self.access.kubeconfig()
    }

    /// Where the cluster keeps its files: a place for a test's own, which goes with it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A client with every right, on connections of its own. `agent` is its user agent, by which [`Audit`] knows it
    /// again. It belongs to the tokio runtime of the caller.
    ///
    /// # Errors
    /// None but for a damaged kubeconfig.
    pub async fn client(&self, agent: &str) -> anyhow::Result<Client> {
        self.access.client(agent).await
    }

    /// The rights of a ServiceAccount, through a token for it that is good for an hour.
    ///
    /// # Errors
    /// What the server says against it, for one when there is no such account.
    pub async fn service_account(&self, namespace: &str, name: &str) -> anyhow::Result<Access> {
        self.access.service_account(&self.client("hutch-testkit").await?, namespace, name).await
    }

    /// Makes a namespace with a random name that starts with `prefix` and returns the name once Pods can be made in it.
    ///
    /// # Errors
    /// What the server says against it.
    pub async fn namespace(&self, client: &Client, prefix: &str) -> anyhow::Result<String> {
        let name = access::create_namespace(client, prefix).await?;
        if self.program("kube-controller-manager").is_some() {
            self.until("its service account", || access::has_account(client, &name)).await?;
        }
        Ok(name)
    }

    /// The writes that the API server has answered so far.
    pub fn audit(&self) -> Audit {
        Audit::new(self.folder.join("audit.log"))
    }

    /// Starts a program that ends with the cluster. Its output goes to `NAME.log` in [`Cluster::folder`].
    ///
    /// # Errors
    /// What the system says against it.
    pub fn spawn(&mut self, name: &str, command: std::process::Command) -> anyhow::Result<&mut Program> {
        let program = Program::start(name, command, &self.folder)?;
        self.guardian.watch(program.id())?;
        self.programs.push(program);
        self.programs.last_mut().context("just added")
    }

    /// A program of the cluster, or one that [`Cluster::spawn`] started, by name.
    pub fn program(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|program| program.name() == name)
    }

    /// Sends SIGTERM to a program that [`Cluster::spawn`] started, and waits for its end.
    ///
    /// # Errors
    /// No such program, or what the system says.
    pub fn stop(&mut self, name: &str) -> anyhow::Result<()> {
        self.take(name)?.stop()
    }

    /// Kills a program as a power cut would.
    ///
    /// # Errors
    /// No such program, or what the system says.
    pub fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        self.take(name)?.kill()
    }

    fn take(&mut self, name: &str) -> anyhow::Result<Program> {
        let index = self.programs.iter().position(|program| program.name() == name);
        let program = self.programs.remove(index.with_context(|| format!("no program {name} runs"))?);
        self.guardian.forget(program.id())?;
        Ok(program)
    }

    /// Waits until the answer is yes.
    ///
    /// # Errors
    /// It stays no for two minutes, or a program of the cluster has ended; the ends of the logs are in the error.
    pub async fn until(&self, what: &str, ask: impl AsyncFn() -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let check = Instant::now();
            if ask().await {
                return Ok(());
            }
            if let Some(ended) = self.programs.iter().find(|program| !program.is_running()) {
                bail!("{} ended while waiting for this: {what}\n{}", ended.name(), ended.log_end());
            }
            if began.elapsed() > WAIT_LIMIT {
                let logs: Vec<String> = self.programs.iter().map(Program::log_end).collect();
                bail!("never: {what}\n{}", logs.join("\n"));
            }
            tokio::time::sleep(wait::pause(check)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.guardian.end();
        for program in &mut self.programs {
            program.reap();
        }
    }
}

/// An address of this machine that is not loopback, if it has a network. An EndpointSlice takes no loopback address, so
/// this is where a webhook listens that the API server is to reach through a Service.
pub fn machine_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: connecting a UDP socket only looks up the route, here to an address for documentation.
    socket.connect("198.51.100.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}
