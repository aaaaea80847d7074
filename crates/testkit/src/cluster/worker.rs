//! A Node of this machine: each Pod is a process for each container, at an address of its own on `lo`, and its kubelet serves
//! exec, attach, port-forward and logs to the API server.
//!
//! A container without a command runs the program that [`Worker::start`] is given. What a Pod says about images, limits and
//! restarts is not done; of volumes, variables lead to the files of ConfigMaps. `runAsUser` of a Pod counts. Pods without a
//! node are taken: no scheduler is needed.

mod address;
mod container;
mod endpoint;
mod log;
mod node;
mod pod;
mod pods;
mod process;
mod streams;
mod terminal;
mod volumes;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use hutch_serve::{Listener, Shutdown};
use tokio::task::JoinSet;

use super::Cluster;
use pods::Pods;

/// The Node, for as long as this lives; then its processes, addresses and files are gone, also when the test program is
/// killed.
pub struct Worker {
    pods: Arc<Pods>,
    tasks: JoinSet<()>,
}

impl Worker {
    /// Joins the cluster, which must have no other Node ([`super::Options::node`]). `runtime` is the sandboxd of containers
    /// without a command. Needs root, for the addresses.
    ///
    /// # Errors
    /// What the system or the API server says against it.
    pub async fn start(cluster: &Cluster, runtime: &Path) -> anyhow::Result<Worker> {
        let client = cluster.client("hutch-testkit-worker").await?;
        let listener =
            Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.context("the kubelet's port")?;
        let tls = endpoint::tls(cluster.folder())?;
        node::register(&client, listener.address()).await.context("the Node")?;
        let pods = Arc::new(Pods::new(client.clone(), cluster.folder().join("pods"), runtime.to_owned())?);
        let mut tasks = JoinSet::new();
        tasks.spawn(listener.serve_tls(endpoint::routes(pods.clone()), tls, Shutdown::new()));
        tasks.spawn(node::beat(client));
        tasks.spawn(pods.clone().follow());
        Ok(Worker { pods, tasks })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks.abort_all();
        self.pods.end();
    }
}
