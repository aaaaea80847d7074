//! A real etcd, kube-apiserver and kube-controller-manager with `hutch controller`, and a Node whose Pods are processes of
//! this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use hutch_testkit::cluster::{Cluster, Options, Worker};
use kube::Client;

use crate::harness::HUTCH;

pub(crate) struct ControlPlane {
    // Ends before its cluster.
    _worker: Worker,
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
}

impl ControlPlane {
    pub(crate) async fn start() -> ControlPlane {
        let options = Options { node: false, ..Options::default() };
        let mut cluster = Cluster::start(options).await.expect("a cluster");
        let client = cluster.client("test").await.expect("a client");
        let worker = Worker::start(&cluster, &sandboxd(cluster.folder())).await.expect("a Node");
        let mut command = Command::new(HUTCH);
        command.args(["controller", "--extensions", "--enable-webhook=false", "--leader-elect=false"]);
        command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
        command.arg("--kubeconfig").arg(cluster.kubeconfig());
        cluster.spawn("controller", command).expect("the controller starts");
        ControlPlane { _worker: worker, cluster, client }
    }

    /// Starts `hutch router` on free ports of loopback.
    pub(crate) fn router(&mut self, name: &str, flags: &[String]) {
        let mut command = Command::new(HUTCH);
        command.args(["router", "--http-bind-address=127.0.0.1:0", "--wake-on-connect"]).args(flags);
        command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig());
        self.cluster.spawn(name, command).expect("the router starts");
    }

    /// Waits until these routers listen.
    pub(crate) async fn listening(&self, routers: &[&str]) {
        let ready = async || routers.iter().all(|name| self.printed(name, "ready").is_some());
        self.cluster.until("the routers listen", ready).await.unwrap();
    }

    /// The rest of the line that starts with this, in what the program has printed.
    pub(crate) fn printed(&self, program: &str, start: &str) -> Option<String> {
        let log = std::fs::read_to_string(self.cluster.program(program)?.log()).ok()?;
        log.lines().find_map(|line| line.strip_prefix(start)).map(|rest| rest.trim().to_owned())
    }

    /// The path of a file of the cluster.
    pub(crate) fn file(&self, name: &str) -> String {
        self.cluster.folder().join(name).display().to_string()
    }
}

/// The sandboxd that `hutch` carries inside, as a file in this folder.
pub(crate) fn sandboxd(folder: &Path) -> PathBuf {
    let installed = Command::new(HUTCH).args(["sandboxd", "install"]).arg(folder).output().expect("hutch");
    assert!(installed.status.success(), "{installed:?}");
    PathBuf::from(String::from_utf8(installed.stdout).expect("a path").trim())
}
