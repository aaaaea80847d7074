//! A `hutch up` in a scratch folder, and a client of its API over TLS.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::machine::binary;

/// A running server; stopped when dropped.
pub(crate) struct Server {
    child: Child,
    folder: tempfile::TempDir,
    /// From the start of the process to the line `ready`.
    pub(crate) ready_after: Duration,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Server> {
        let folder = tempfile::tempdir()?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        let started = Instant::now();
        let mut child = Command::new(binary()?)
            .args(["up", "--api-listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder.path().join("data"))
            .arg("--kubeconfig")
            .arg(folder.path().join("kubeconfig"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("hutch up")?;
        let output = child.stdout.take().context("its output")?;
        let ready = BufReader::new(output).lines().map_while(Result::ok).any(|line| line == "ready");
        if !ready {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            bail!("hutch up ended before it was ready:\n{log}");
        }
        Ok(Server { child, folder, ready_after: started.elapsed() })
    }

    /// A client of its own TLS connections.
    pub(crate) async fn client(&self) -> anyhow::Result<kube::Client> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfig = Kubeconfig::read_from(self.folder.path().join("kubeconfig"))?;
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.read_timeout = None;
        Ok(kube::Client::try_from(config)?)
    }

    /// Resident memory of the server itself, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        );
        let _ = self.child.wait();
    }
}
