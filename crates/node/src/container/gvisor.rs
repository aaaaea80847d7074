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

use hutch_jail::{Limits, MountSource, Process, ProcessExit, Stdio, Upper, User};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Blueprint, Cell, Extra, null};

/// What runsc itself uses beside the container: its sentry and gofer, in bytes.
const OVERHEAD_BYTES: u64 = 128 << 20;
/// Threads of the sentry, the gofer and the stubs.
const OVERHEAD_PIDS: u64 = 512;
/// How long mounting and killing by a short command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds `runsc` on the search path of this process.
pub(crate) fn find_runsc() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("runsc")).find(|file| file.is_file())
}

/// One container of gVisor's.
#[derive(Debug)]
pub(crate) struct GvisorContainer {
    runsc: PathBuf,
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
    pub(crate) fn new(runsc: PathBuf, folder: PathBuf, id: String) -> GvisorContainer {
        GvisorContainer { runsc, folder, id, counter: AtomicU64::new(0) }
    }

    /// The container's limits and what runsc needs beside.
    pub(crate) fn limits(container: Limits) -> Limits {
        Limits {
            cpu_millis: container.cpu_millis,
            memory_bytes: container.memory_bytes.map(|bytes| bytes.saturating_add(OVERHEAD_BYTES)),
            pids: container.pids.map(|count| count.saturating_add(OVERHEAD_PIDS)),
        }
    }

    /// Writes the bundle and mounts the root file system inside the jail's mount namespace.
    pub(crate) async fn prepare(
        &self,
        cell: &Arc<Cell>,
        blueprint: &Blueprint,
        hostname: &str,
    ) -> Result<(), String> {
        let failed = |e: io::Error| format!("cannot write the bundle for runsc: {e}");
        for folder in ["bundle", "rootfs", "state", "exec", "upper/upper", "upper/work"] {
            let path = self.folder.join(folder);
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        }
        // The top of the overlay is the root inside, which every user there has to pass.
        let top = std::fs::Permissions::from(std::os::unix::fs::PermissionsExt::from_mode(0o755));
        std::fs::set_permissions(self.folder.join("upper/upper"), top).map_err(failed)?;
        let config = config(&self.folder.join("rootfs"), blueprint, hostname);
        write_private(&self.folder.join("bundle/config.json"), &config).map_err(failed)?;
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
        let upper = self.folder.join("upper");
        let upper = upper.to_str().filter(|text| !text.contains([',', ':', '\\']));
        let upper =
            upper.ok_or("the data folder's path has a character that an overlay mount cannot take")?;
        options.push_str(&format!(",upperdir={upper}/upper,workdir={upper}/work"));
        let rootfs = self.folder.join("rootfs").display().to_string();
        Ok(["mount", "-t", "overlay", "overlay", "-o", &options, &rootfs].map(str::to_owned).into())
    }

    /// The process that is the container: it ends when the container does, with its exit code.
    pub(crate) fn run_process(&self, terminal: bool) -> Process {
        let bundle = self.folder.join("bundle").display().to_string();
        let argv = self.argv(&["run", "--bundle", &bundle, &self.id]);
        process(argv, terminal)
    }

    fn argv(&self, rest: &[&str]) -> Vec<String> {
        let state = self.folder.join("state").display().to_string();
        let runsc = self.runsc.display().to_string();
        let fixed = [
            runsc.as_str(),
            "--root",
            &state,
            "--network=host",
            "--ignore-cgroups",
            "--platform=systrap",
            "--overlay2=none",
        ];
        fixed.iter().chain(rest).map(|text| (*text).to_owned()).collect()
    }

    /// Starts a further process inside.
    pub(crate) fn spawn(
        &self,
        cell: &Arc<Cell>,
        blueprint: &Blueprint,
        argv: Vec<String>,
        terminal: bool,
        stdio: Stdio,
    ) -> Result<Extra, String> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join("exec");
        let inside = InsideProcess {
            process_file: folder.join(format!("{number}.json")),
            pid_file: folder.join(format!("{number}.pid")),
        };
        // By a file, because arguments show in the machine's process list and the environment may hold secrets.
        let description = process_json(blueprint, &argv, terminal);
        write_private(&inside.process_file, &description)
            .map_err(|e| format!("cannot start in runsc: {e}"))?;
        let (file, pid) = (inside.process_file.display().to_string(), inside.pid_file.display().to_string());
        let command = self.argv(&["exec", "--process", &file, "--internal-pid-file", &pid, &self.id]);
        let spawned = cell.spawn(&process(command, terminal), stdio).map_err(|e| e.to_string())?;
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
        let spawned = null()
            .and_then(|fd| Ok(Stdio { stdin: fd.try_clone()?, stdout: fd.try_clone()?, stderr: fd }))
            .map_err(|e| e.to_string())
            .and_then(|stdio| cell.spawn(&process(argv, false), stdio).map_err(|e| e.to_string()));
        if let Err(error) = spawned {
            tracing::warn!(container = self.id, error, "runsc could not be asked to signal");
        }
    }

    /// Runs a command in the jail and gives its exit and what it printed as error.
    async fn command(&self, cell: &Arc<Cell>, argv: Vec<String>) -> Result<(ProcessExit, String), String> {
        use tokio::io::AsyncReadExt;
        let (ends, stdio) = super::pipes(false, false, true).map_err(|e| e.to_string())?;
        let mut spawned = cell.spawn(&process(argv, false), stdio).map_err(|e| e.to_string())?;
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

/// Writes a file that nobody else may read, in place of an older one.
fn write_private(path: &Path, content: &Value) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.to_string().as_bytes())
}

fn process_json(blueprint: &Blueprint, argv: &[String], terminal: bool) -> Value {
    let env: Vec<String> = blueprint.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let none: [&str; 0] = [];
    json!({
        "terminal": terminal,
        "user": {
            "uid": blueprint.user.uid, "gid": blueprint.user.gid, "additionalGids": blueprint.user.groups,
        },
        "args": argv,
        "env": env,
        "cwd": blueprint.cwd,
        "noNewPrivileges": true,
        "capabilities": {
            "bounding": none, "effective": none, "inheritable": none, "permitted": none, "ambient": none,
        },
    })
}

/// The OCI runtime configuration. There is no network namespace in it: the jail's is used.
fn config(rootfs: &Path, blueprint: &Blueprint, hostname: &str) -> Value {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts"}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
               "options": ["nosuid", "nodev", "mode=1777", "size=64m"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
    ];
    mounts.extend(blueprint.mounts.iter().filter_map(|mount| {
        let access = if mount.read_only { "ro" } else { "rw" };
        let (kind, source, options) = match &mount.source {
            MountSource::Bind(path) => ("bind", path.clone(), vec!["bind".to_owned(), access.into()]),
            MountSource::Tmpfs { bytes, mode } => (
                "tmpfs",
                "tmpfs".into(),
                vec![format!("size={bytes}"), format!("mode={mode:o}"), access.into()],
            ),
            // The node makes no such mount for a container of gVisor's.
            MountSource::Overlay { .. } => return None,
        };
        Some(json!({"destination": mount.target, "type": kind, "source": source, "options": options}))
    }));
    json!({
        "ociVersion": "1.0.2",
        "process": process_json(blueprint, &blueprint.argv, blueprint.terminal),
        "root": {"path": rootfs, "readonly": matches!(blueprint.root.upper, Upper::ReadOnly)},
        "hostname": hostname,
        "mounts": mounts,
        "linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]},
    })
}
