//! A `hutch up` in a scratch folder, and a client of its API over TLS.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hutch_testkit::cluster::Usage;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::egress::among;
use crate::machine::binary;

/// A running server; stopped when dropped.
pub(crate) struct Server {
    child: Child,
    folder: tempfile::TempDir,
    /// Time from the start of the process to the line `ready`.
    pub(crate) ready_after: Duration,
    /// Lines before `ready`.
    said: Vec<String>,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Server> {
        Server::start_with(&[])
    }

    pub(crate) fn start_with(flags: &[&str]) -> anyhow::Result<Server> {
        Server::start_as(Command::new(binary()?), flags)
    }

    /// Starts a server for which the name of the servers of `egress` leads to them.
    pub(crate) fn start_among(servers: &Path, flags: &[&str]) -> anyhow::Result<Server> {
        let mut command = among(servers);
        command.arg(binary()?);
        Server::start_as(command, flags)
    }

    fn start_as(mut command: Command, flags: &[&str]) -> anyhow::Result<Server> {
        let folder = tempfile::tempdir()?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        let started = Instant::now();
        let mut child = command
            .args(["up", "--api-listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder.path().join("data"))
            .arg("--kubeconfig")
            .arg(folder.path().join("kubeconfig"))
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("hutch up")?;
        let output = child.stdout.take().context("its output")?;
        let mut said: Vec<String> = Vec::new();
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let last = line == "ready";
            said.push(line);
            if last {
                break;
            }
        }
        if said.last().is_none_or(|line| line != "ready") {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            bail!("hutch up ended before it was ready:\n{log}");
        }
        Ok(Server { child, folder, ready_after: started.elapsed(), said })
    }

    /// Returns the first word of a line that it printed at its start.
    pub(crate) fn printed(&self, name: &str) -> Option<String> {
        let about = |line: &String| line.strip_prefix(name)?.split_whitespace().next().map(str::to_owned);
        self.said.iter().find_map(about)
    }

    /// Returns a client with its own TLS connections.
    pub(crate) async fn client(&self) -> anyhow::Result<kube::Client> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig())?;
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.read_timeout = None;
        Ok(kube::Client::try_from(config)?)
    }

    /// Returns the resident memory of the server itself in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        self.usage().resident_kib
    }

    /// Returns the resources that the root process and the front have used, without the sandboxes.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::of(self.child.id());
        if let Some(front) = self.child_named("hutch-front") {
            let of_front = Usage::of(front);
            usage.cpu += of_front.cpu;
            usage.resident_kib += of_front.resident_kib;
            usage.peak_kib += of_front.peak_kib;
        }
        usage
    }

    /// Returns the id of the child with this name; an older server has fewer.
    pub(crate) fn child_named(&self, name: &str) -> Option<u32> {
        child(self.child.id(), name)
    }

    /// Returns the path of the kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Returns the folder that is removed with the server.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Counts the traces of sandboxes on the machine.
    pub(crate) fn leftovers(&self) -> Leftovers {
        let pods = std::fs::read_dir(self.folder.path().join("data/pods"));
        let folders = pods.map_or(0, |entries| entries.flatten().count());
        Leftovers { folders, processes: descendants(self.child.id()) }
    }
}

/// Traces of running Pods on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// Number of folders of Pods.
    pub(crate) folders: usize,
    /// Number of processes below the server.
    pub(crate) processes: usize,
}

fn descendants(id: u32) -> usize {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(process) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let parent = after_name.split_whitespace().nth(1).and_then(|parent| parent.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (process, parent)));
    }
    let is_below = |process: &u32| {
        let mut above = parents.get(process).copied();
        while let Some(one) = above.filter(|one| *one != id) {
            above = parents.get(&one).copied();
        }
        above.is_some()
    };
    parents.keys().filter(|process| is_below(process)).count()
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

fn child(server: u32, wanted: &str) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{server}/task")).ok()?;
    let children =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect();
    let name = |id: &u32| std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    children.into_iter().find(|id| name(id).trim() == wanted)
}
