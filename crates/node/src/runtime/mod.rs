//! The seam between the node and what isolates a Pod: the steps of a CRI runtime. One implementation for each handler
//! of a RuntimeClass; nothing outside of this module asks which one runs a Pod.
//!
//! | CRI | Here |
//! |---|---|
//! | `RunPodSandbox` | [`Runtime::create_sandbox`]: the network namespace with addresses, routes, rules, listeners |
//! | `CreateContainer` | [`PodSandbox::create_container`]: namespaces, cgroup, root and mounts, without a process |
//! | `StartContainer` | [`Container::start`] |
//! | `Exec` | [`Container::exec`] |
//! | `Attach` | the streams that `start` was given, which [`crate::container::Running`] holds for every handler |
//! | `ContainerStats` | [`Container::stats`] |
//! | pause, resume | [`Container::freeze`], [`Container::thaw`] |
//! | | [`Container::page_out`]: memory of frozen processes goes to swap |
//! | `CheckpointContainer` | [`Container::pause`], [`checkpoint`](Container::checkpoint), [`resume`](Container::resume) |
//! | restore | [`Beginning::Restored`] of a [`ContainerPlan`] |
//! | `StopContainer` | [`Container::signal`], then [`Container::kill`] when the grace period is over |
//! | `RemoveContainer`, `RemovePodSandbox` | the last reference is dropped |
//!
//! Limits are those of containers, so cgroups belong to containers and a sandbox has none.
//!
//! A *fork* is a checkpoint that another sandbox restores. What may come fits without a change of callers: *a microVM*
//! is a third implementation: its sandbox starts the VM monitor in the Pod's
//! network namespace, its containers speak to an agent in the guest, which takes the place of a jail's init; streams are
//! descriptors there too.
//!
//! `hutch run` starts below this seam, at [`hutch_jail::run`], with the same plans of mounts, network and limits. It
//! launches its one jail by a fork of its own single thread; the seam is asynchronous, and its jails are forks of a
//! warden that outlives each of them. Going through it would add two programs and a thread pool to each start.

mod gvisor;
mod jail;
mod launcher;
mod native;
mod runsc;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use hutch_image::{PathSegment, StopSignal};
use hutch_jail::{IdRange, NetworkPlan, PageOut, Process, ProcessExit, Stdio, Usage};

use crate::blueprint::Blueprint;
use crate::config::Handler;
use crate::folders::{make_root, remove_limited};
use crate::places::root_of;
use crate::stdio::Terminal;
pub(crate) use jail::{NotStarted, Spawned};
pub(crate) use launcher::Launcher;

/// Upperdir in the folder of an overlay, as [`hutch_jail::Upper::Dir`] describes it.
const UPPER: PathSegment = PathSegment::fixed("upper");

/// Returns the upperdir of a container below the data folder of a node: all that it has changed outside of its volumes.
/// `None` if a name would lead elsewhere.
pub fn changes_folder(data: &Path, pod_uid: &str, container: &str) -> Option<PathBuf> {
    let folder = root_of(data, pod_uid, container)?;
    // No container writes beside its upperdir, so that none passes for that of another handler.
    Some(gvisor::changes(&folder).unwrap_or_else(|| UPPER.below(&folder)))
}

/// Why a sandbox or a container was not created or started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartError {
    pub(crate) message: String,
    /// `true` if a rule for files cannot be enforced.
    pub(crate) of_policy: bool,
}

impl StartError {
    fn of_jail(error: hutch_jail::Error) -> StartError {
        let of_policy = matches!(error, hutch_jail::Error::FileRule { .. });
        StartError { message: error.to_string(), of_policy }
    }
}

impl<E: std::fmt::Display> From<E> for StartError {
    fn from(error: E) -> Self {
        StartError { message: error.to_string(), of_policy: false }
    }
}

/// Creates the sandboxes of Pods.
pub(crate) trait Runtime: Send + Sync {
    /// Creates the sandbox of a Pod.
    fn create_sandbox(&self, plan: SandboxPlan) -> BoxFuture<'_, Result<NewSandbox, StartError>>;
}

/// Resources that the containers of a Pod share. It ends with the last reference, but its containers do not.
pub(crate) trait PodSandbox: Send + Sync {
    /// Returns the network namespace.
    fn network(&self) -> &Arc<OwnedFd>;

    /// Creates a container, without a process.
    fn create_container(&self, plan: ContainerPlan) -> BoxFuture<'_, Result<Arc<dyn Container>, StartError>>;
}

/// A container. The last reference to it kills everything inside.
pub(crate) trait Container: Send + Sync {
    /// Opens a terminal for a process: the node's end and the process's streams.
    fn terminal(&self) -> Result<(Terminal, Stdio), StartError>;

    /// Starts the main process. Called once.
    fn start(&self, stdio: Stdio) -> BoxFuture<'_, Result<Spawned, StartError>>;

    /// Starts a further process. Waits while the main process is being started.
    fn exec(&self, process: Process, stdio: Stdio) -> BoxFuture<'_, Result<Exec, String>>;

    /// Exit code of a further process that was lost with its container; `None` where such a process reports its own.
    fn lost_code(&self) -> Option<i32> {
        None
    }

    /// Returns what was used so far; `None` if it is not counted. Blocks for a moment.
    fn stats(&self) -> Option<Usage>;

    /// Returns true if it can be frozen.
    fn is_freezable(&self) -> bool;

    /// Freezes all processes. Blocks until they are frozen, or fails after two seconds.
    fn freeze(&self) -> Result<(), String>;

    /// Returns why its memory cannot be written to swap while it is frozen, on any machine.
    fn without_page_out(&self) -> Option<&'static str>;

    /// Writes the memory of the frozen processes to swap. Blocks until that is done or `going` returns false, and at most for
    /// a minute.
    fn page_out(&self, going: &dyn Fn() -> bool) -> Result<PageOut, String>;

    /// Thaws all processes. Blocks until they run, or fails after ten seconds.
    fn thaw(&self) -> Result<(), String>;

    /// Returns why the memory of its processes cannot be written to disk.
    fn without_checkpoint(&self) -> Option<&'static str>;

    /// Pauses all processes until [`Container::resume`]. Further processes wait meanwhile.
    fn pause(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Writes the memory of paused processes. Returns the folder with the files.
    fn checkpoint(&self) -> BoxFuture<'_, Result<PathBuf, String>>;

    /// Resumes paused processes. Without effect if they run.
    fn resume(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Returns its upperdir: what it has written outside of its volumes.
    fn changes(&self) -> PathBuf;

    /// Sends a signal to the main process and its group. Without effect if it has ended.
    fn signal(&self, signal: StopSignal);

    /// Kills everything inside.
    fn kill(&self);
}

/// Plan of a Pod's sandbox.
#[derive(Debug)]
pub(crate) struct SandboxPlan {
    pub(crate) hostname: String,
    /// User and group ids on the machine, of which nothing else there has any. Free again when the sandbox ends.
    pub(crate) ids: IdRange,
    pub(crate) network: NetworkPlan,
}

/// A sandbox, and the listeners of its network, in the order of the plan.
pub(crate) struct NewSandbox {
    pub(crate) sandbox: Arc<dyn PodSandbox>,
    pub(crate) listeners: Vec<OwnedFd>,
}

/// Beginning of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// Nothing: what an earlier container wrote in its folder is removed.
    Fresh,
    /// The content of its folder.
    Kept,
    /// The content of its folder, and the memory of processes in this one.
    Restored(PathBuf),
}

/// Plan of a container.
#[derive(Debug, Clone)]
pub(crate) struct ContainerPlan {
    /// Name of its jail; unique on the node over all restarts.
    pub(crate) id: String,
    /// Folder of its root file system: what it writes outside of volumes.
    pub(crate) folder: PathBuf,
    /// Its beginning.
    pub(crate) beginning: Beginning,
    /// Maximum bytes of that folder, where its file system has quotas.
    pub(crate) disk_bytes: Option<u64>,
    /// `true` if it may be frozen.
    pub(crate) freezable: bool,
    pub(crate) blueprint: Arc<Blueprint>,
}

/// A process beside the main process. Dropped before its end, it is killed.
pub(crate) struct Exec {
    spawned: Spawned,
    kill: Option<Box<dyn FnOnce() + Send>>,
}

impl Exec {
    fn new(spawned: Spawned, kill: impl FnOnce() + Send + 'static) -> Exec {
        Exec { spawned, kill: Some(Box::new(kill)) }
    }

    /// Waits until it runs.
    pub(crate) async fn started(&mut self) -> Result<(), NotStarted> {
        let started = self.spawned.started().await.map(drop);
        if started.is_err() {
            self.kill = None;
        }
        started
    }

    /// Waits until it has ended.
    pub(crate) async fn exited(mut self) -> ProcessExit {
        let exit = self.spawned.exited().await;
        self.kill = None;
        exit
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if let Some(kill) = self.kill.take() {
            kill();
        }
    }
}

/// Returns the upperdir of a container in its folder.
pub(crate) fn upper(handler: Handler, folder: &Path) -> PathBuf {
    match handler {
        Handler::Native => UPPER.below(folder),
        Handler::Gvisor => UPPER.below(&UPPER.below(folder)),
    }
}

/// Returns the runtime of a handler.
pub(crate) fn of(handler: Handler, launcher: &Arc<Launcher>) -> Box<dyn Runtime> {
    match handler {
        Handler::Native => Box::new(native::Native::new(launcher.clone())),
        Handler::Gvisor => Box::new(gvisor::Gvisor::new(launcher.clone())),
    }
}

/// Makes the folder of a container's root, without what an earlier one wrote, or with it. Blocks.
fn prepare_folder(folder: &Path, beginning: &Beginning, disk_bytes: Option<u64>) -> std::io::Result<()> {
    if *beginning == Beginning::Fresh {
        remove_limited(folder)?;
    }
    make_root(folder, disk_bytes)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a folder of the test")]
mod tests {
    use super::*;

    #[test]
    fn root_of_an_earlier_container_is_kept_only_as_planned() {
        let folder = tempfile::tempdir().unwrap();
        let (root, file) = (folder.path().join("c"), folder.path().join("c/upper/file"));
        for (beginning, left) in [(Beginning::Kept, true), (Beginning::Fresh, false)] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "written").unwrap();
            prepare_folder(&root, &beginning, None).unwrap();
            assert_eq!(file.exists(), left, "{beginning:?}");
            assert!(root.is_dir());
        }
    }
}
