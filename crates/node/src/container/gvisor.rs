//! Containers that gVisor isolates: `runsc` with a bundle, inside a jail that only bounds its life and its network.
//!
//! The jail's network namespace holds nothing but `lo`, so runsc may use the network of "its host" as it is; with a
//! network stack of its own nothing could be dialled from inside the namespace.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hutch_image::PathSegment;
use hutch_jail::{Mount, Process, ProcessExit, Stdio, Upper, User};
use rustix::process::Signal;
use serde_json::Value;

use super::{Blueprint, Cell, Extra, null};
use crate::oci::{Bundle, Runsc, mounts_around};

/// How long mounting and killing by a short command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

const BUNDLE: PathSegment = PathSegment::fixed("bundle");
const CONFIG: PathSegment = PathSegment::fixed("config.json");
const ROOTFS: PathSegment = PathSegment::fixed("rootfs");
const STATE: PathSegment = PathSegment::fixed("state");
const EXEC: PathSegment = PathSegment::fixed("exec");
const UPPER: PathSegment = PathSegment::fixed("upper");
const WORK: PathSegment = PathSegment::fixed("work");
const MOUNTS: PathSegment = PathSegment::fixed("mounts");

/// One container of gVisor's.
#[derive(Debug)]
pub(crate) struct GvisorContainer {
    runsc: Runsc,
    /// Its bundle, its state and its root file system.
    folder: PathBuf,
    id: String,
    counter: AtomicU64,
}

/// A process inside that outlives its runsc client; its files go with it.
#[derive(Debug)]
pub(crate) struct InsideProcess {
    process_file: PathBuf,
    pid_file: PathBuf,
}

impl Drop for InsideProcess {
    fn drop(&mut self) {
        // They lie in the container's folder, which is removed in any case.
        let _ = std::fs::remove_file(&self.process_file);
        let _ = std::fs::remove_file(&self.pid_file);
    }
}

impl GvisorContainer {
    pub(crate) fn new(runsc: Runsc, folder: PathBuf, id: String) -> GvisorContainer {
        GvisorContainer { runsc, folder, id, counter: AtomicU64::new(0) }
    }

    /// What the jail mounts before runsc starts.
    pub(crate) fn mounts_around(&self, blueprint: &Blueprint) -> Vec<Mount> {
        mounts_around(&blueprint.mounts, &MOUNTS.below(&self.folder))
    }

    /// Writes the bundle and mounts the root file system inside the jail's mount namespace.
    pub(crate) async fn prepare(
        &self,
        cell: &Arc<Cell>,
        blueprint: &Blueprint,
        hostname: &str,
    ) -> Result<(), String> {
        let read_only = matches!(blueprint.root.upper, Upper::ReadOnly);
        let (rootfs, assembly) = (ROOTFS.below(&self.folder), MOUNTS.below(&self.folder));
        let config =
            Bundle { assembly: &assembly, ..bundle(blueprint, &rootfs, read_only, hostname) }.config();
        let folder = self.folder.clone();
        let written = tokio::task::spawn_blocking(move || write_bundle(&folder, &config)).await;
        let written = written.map_err(|e| e.to_string())?;
        written.map_err(|e| format!("cannot write the bundle for runsc: {e}"))?;
        let mount = self.overlay(blueprint)?;
        let (exit, text) = self.command(cell, mount).await?;
        match exit {
            ProcessExit::Code(0) => Ok(()),
            _ => Err(format!("cannot mount the root file system for runsc: {text}")),
        }
    }

    /// `mount -t overlay`; its options are paths of the node's own data folder.
    fn overlay(&self, blueprint: &Blueprint) -> Result<Vec<String>, String> {
        let mut options = String::from("lowerdir=");
        for (index, layer) in blueprint.root.layers.iter().enumerate() {
            let text = layer.to_str().filter(|text| !text.contains([',', ':', '\\']));
            let text =
                text.ok_or("the data folder's path has a character that an overlay mount cannot take")?;
            options.push_str(if index == 0 { "" } else { ":" });
            options.push_str(text);
        }
        let upper = UPPER.below(&self.folder);
        let upper = upper.to_str().filter(|text| !text.contains([',', ':', '\\']));
        let upper =
            upper.ok_or("the data folder's path has a character that an overlay mount cannot take")?;
        options.push_str(&format!(",upperdir={upper}/upper,workdir={upper}/work"));
        let rootfs = ROOTFS.below(&self.folder).display().to_string();
        Ok(["mount", "-t", "overlay", "overlay", "-o", &options, &rootfs].map(str::to_owned).into())
    }

    /// The process that is the container: it ends when the container does, with its exit code.
    pub(crate) fn run_process(&self, terminal: bool) -> Process {
        let bundle = BUNDLE.below(&self.folder).display().to_string();
        let argv = self.argv(&["run", "--bundle", &bundle, &self.id]);
        process(argv, terminal)
    }

    fn argv(&self, rest: &[&str]) -> Vec<String> {
        self.runsc.argv(&STATE.below(&self.folder), rest)
    }

    /// Starts a further process inside.
    pub(crate) async fn spawn(
        &self,
        cell: &Arc<Cell>,
        blueprint: &Blueprint,
        further: &Process,
        stdio: Stdio,
    ) -> Result<Extra, String> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let folder = EXEC.below(&self.folder);
        let file = |name: String| PathSegment::new(name).map(|name| name.below(&folder)).unwrap_or_default();
        let inside = InsideProcess {
            process_file: file(format!("{number}.json")),
            pid_file: file(format!("{number}.pid")),
        };
        // By a file, because arguments show in the machine's process list and the environment may hold secrets.
        let Process { argv, env, terminal, .. } = further;
        let usual = bundle(blueprint, Path::new(""), true, "");
        let description = Bundle { argv, env, terminal: *terminal, ..usual }.process();
        write_private(&inside.process_file, &description)
            .map_err(|e| format!("cannot start in runsc: {e}"))?;
        let (file, pid) = (inside.process_file.display().to_string(), inside.pid_file.display().to_string());
        let command = self.argv(&["exec", "--process", &file, "--internal-pid-file", &pid, &self.id]);
        let spawned = cell.spawn(&process(command, *terminal), stdio).await.map_err(|e| e.to_string())?;
        Ok(Extra { spawned, inside: Some(inside) })
    }

    /// Kills a process whose client was killed.
    pub(crate) fn kill_inside(&self, cell: &Arc<Cell>, inside: &InsideProcess) {
        let pid = std::fs::read_to_string(&inside.pid_file).unwrap_or_default();
        if let Ok(pid @ 2..) = pid.trim().parse::<u32>() {
            self.fire(cell, self.argv(&["kill", "--pid", &pid.to_string(), &self.id, "KILL"]));
        }
    }

    /// Sends a signal to the main process inside.
    pub(crate) fn signal(&self, cell: &Arc<Cell>, signal: Signal) {
        self.fire(cell, self.argv(&["kill", &self.id, &signal.as_raw().to_string()]));
    }

    /// Runs a command beside runsc without waiting for it.
    fn fire(&self, cell: &Arc<Cell>, argv: Vec<String>) {
        let (cell, id) = (Arc::clone(cell), self.id.clone());
        tokio::spawn(async move {
            let stdio = null()
                .and_then(|fd| Ok(Stdio { stdin: fd.try_clone()?, stdout: fd.try_clone()?, stderr: fd }));
            let spawned = match stdio {
                Ok(stdio) => cell.spawn(&process(argv, false), stdio).await.map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = spawned {
                tracing::warn!(container = id, error, "failed to start runsc to send a signal");
            }
        });
    }

    /// Runs a command in the jail and gives its exit and what it printed as error.
    async fn command(&self, cell: &Arc<Cell>, argv: Vec<String>) -> Result<(ProcessExit, String), String> {
        use tokio::io::AsyncReadExt;
        let (ends, stdio) = super::pipes(false, false, true).map_err(|e| e.to_string())?;
        let mut spawned = cell.spawn(&process(argv, false), stdio).await.map_err(|e| e.to_string())?;
        let work = async {
            spawned.started().await.map_err(|failed| failed.reason)?;
            let mut text = String::new();
            if let Some(stderr) = ends.stderr {
                // What cannot be read is missing from the message only.
                let _ = stderr.take(4096).read_to_string(&mut text).await;
            }
            Ok((spawned.exited().await, text.trim().to_owned()))
        };
        tokio::time::timeout(COMMAND_TIMEOUT, work).await.map_err(|_| "timed out".to_owned())?
    }
}

fn process(argv: Vec<String>, terminal: bool) -> Process {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let env = vec![("PATH".to_owned(), path.to_owned()), ("HOME".to_owned(), "/".to_owned())];
    Process { argv, env, cwd: PathBuf::from("/"), terminal, user: User::default() }
}

/// Makes the folders of a container and writes its bundle. Blocks.
fn write_bundle(folder: &Path, config: &Value) -> io::Result<()> {
    let (bundle, upper) = (BUNDLE.below(folder), UPPER.below(folder));
    let top = UPPER.below(&upper);
    for folder in
        [&bundle, &ROOTFS.below(folder), &STATE.below(folder), &EXEC.below(folder), &top, &WORK.below(&upper)]
    {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // The top of the overlay is the root inside, which every user there has to pass.
    std::fs::set_permissions(top, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    write_private(&CONFIG.below(&bundle), config)
}

/// Writes a file that nobody else may read, in place of an older one.
fn write_private(path: &Path, content: &Value) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.to_string().as_bytes())
}

/// What the bundle of a container is made of.
fn bundle<'a>(blueprint: &'a Blueprint, rootfs: &'a Path, read_only: bool, hostname: &'a str) -> Bundle<'a> {
    Bundle {
        rootfs,
        read_only,
        hostname,
        argv: &blueprint.argv,
        env: &blueprint.env,
        cwd: &blueprint.cwd,
        user: &blueprint.user,
        terminal: blueprint.terminal,
        mounts: &blueprint.mounts,
        assembly: Path::new(""),
    }
}
