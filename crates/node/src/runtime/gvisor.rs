//! The gVisor handler: each container is `runsc` with a bundle, inside a jail that bounds its life and its network.
//!
//! The jail's network namespace holds nothing but `lo`, so runsc may use the network of "its host" as it is; with a
//! network stack of its own nothing could be dialed from inside the namespace.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_image::StopSignal;
use hutch_image::{PathSegment, remove_tree};
use hutch_jail::{
    Capabilities, FileAccess, FileRule, Ids, Mount, MountSource, Network, PageOut, Process, Profile, Root,
    RuntimeRoot, Spec, Stdio, Upper, Usage,
};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::runsc::{COMMAND_TIMEOUT, CommandError, ExecFiles, RunscContainer, process};
use super::{
    Beginning, Container, ContainerPlan, Exec, Launcher, NewSandbox, PodSandbox, Runtime, SandboxPlan,
    Spawned, StartError, UPPER, prepare_folder, upper,
};
use crate::blueprint::Blueprint;
use crate::config::Handler;
use crate::oci::{Bundle, Runsc, mounts_around, shown};
use crate::stdio::Terminal;

/// Maximum time that a further process waits for runsc to start the main process.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the state of runsc is read meanwhile.
const RUNNING_INTERVAL: Duration = Duration::from_millis(5);

const BUNDLE: PathSegment = PathSegment::fixed("bundle");
const CONFIG: PathSegment = PathSegment::fixed("config.json");
const ROOTFS: PathSegment = PathSegment::fixed("rootfs");
pub(super) const STATE: PathSegment = PathSegment::fixed("state");
const EXEC: PathSegment = PathSegment::fixed("exec");
const WORK: PathSegment = PathSegment::fixed("work");
const MOUNTS: PathSegment = PathSegment::fixed("mounts");
/// Memory that runsc writes.
const CHECKPOINT: PathSegment = PathSegment::fixed("checkpoint");
/// Where the jail around runsc mounts memory that is restored.
const IMAGE: PathSegment = PathSegment::fixed("image");

/// Returns the upperdir of a container in its folder; `None` if the folder is that of another handler.
pub(super) fn changes(folder: &Path) -> Option<PathBuf> {
    BUNDLE.below(folder).is_dir().then(|| UPPER.below(&UPPER.below(folder)))
}

/// The gVisor handler.
pub(super) struct Gvisor {
    launcher: Arc<Launcher>,
}

impl Gvisor {
    pub(super) fn new(launcher: Arc<Launcher>) -> Gvisor {
        Gvisor { launcher }
    }
}

impl Runtime for Gvisor {
    fn create_sandbox(&self, plan: SandboxPlan) -> BoxFuture<'_, Result<NewSandbox, StartError>> {
        async move {
            let runsc = Runsc::find().ok_or("runsc is no longer on the PATH")?;
            let created = self.launcher.network(plan.network.clone()).await?;
            let (network, listeners) = (Arc::new(created.namespace), created.listeners);
            let launcher = self.launcher.clone();
            let sandbox = Arc::new(GvisorSandbox { launcher, runsc, plan, network });
            Ok(NewSandbox { sandbox, listeners })
        }
        .boxed()
    }
}

struct GvisorSandbox {
    launcher: Arc<Launcher>,
    runsc: Runsc,
    plan: SandboxPlan,
    network: Arc<OwnedFd>,
}

impl PodSandbox for GvisorSandbox {
    fn network(&self) -> &Arc<OwnedFd> {
        &self.network
    }

    fn create_container(&self, plan: ContainerPlan) -> BoxFuture<'_, Result<Arc<dyn Container>, StartError>> {
        async move {
            let ContainerPlan { id, folder, beginning, disk_bytes, freezable, blueprint } = plan;
            let blueprint = Arc::new(without_hidden_mounts(&blueprint));
            let (bundle, config) = (folder.clone(), config(&folder, &blueprint, &self.plan.hostname));
            let memory = match &beginning {
                Beginning::Restored(memory) => Some(memory.clone()),
                Beginning::Fresh | Beginning::Kept => None,
            };
            let prepared = spawn_blocking(move || {
                prepare_folder(&bundle, &beginning, disk_bytes)?;
                write_bundle(&bundle, &config)
            });
            prepared.await?.map_err(|error| format!("cannot write the bundle for runsc: {error}"))?;
            let restored = memory.is_some();
            let image = memory.map(|memory| Mount {
                source: MountSource::Bind(memory),
                target: IMAGE.below(&folder),
                read_only: true,
            });
            let spec = Spec {
                id: id.clone(),
                hostname: self.plan.hostname.clone(),
                profile: Profile::Runtime,
                root: Root { layers: blueprint.root.layers.clone(), upper: Upper::Dir(UPPER.below(&folder)) },
                runtime_root: Some(RuntimeRoot {
                    folder: ROOTFS.below(&folder),
                    shown: shown(&blueprint.mounts, &MOUNTS.below(&folder)),
                }),
                mounts: mounts_around(&blueprint.mounts, &MOUNTS.below(&folder))
                    .into_iter()
                    .chain(image)
                    .collect(),
                links: Vec::new(),
                files: blueprint.files.clone(),
                ids: Ids::Range { base: self.plan.ids.base() },
                network: Network::Join,
                // runsc has all capabilities, and its kernel gives what the bundle lists.
                capabilities: Capabilities::NONE,
                limits: Runsc::limits(blueprint.limits),
                deny_set_id_bits: false,
                freezable,
            };
            let jail = self.launcher.launch(spec, &self.network).await?;
            let runsc = RunscContainer { runsc: self.runsc.clone(), jail, folder, id };
            let container = GvisorContainer {
                runsc: Arc::new(runsc),
                blueprint,
                counter: AtomicU64::new(0),
                is_running: AtomicBool::new(false),
                restored,
                pausing: Arc::default(),
                held: Mutex::default(),
            };
            Ok(Arc::new(container) as Arc<dyn Container>)
        }
        .boxed()
    }
}

struct GvisorContainer {
    runsc: Arc<RunscContainer>,
    blueprint: Arc<Blueprint>,
    /// Numbers the files of further processes.
    counter: AtomicU64,
    /// `true` after runsc was seen to run the main process.
    is_running: AtomicBool,
    /// `true` if its main process is restored.
    restored: bool,
    /// Taken for writing while its processes are paused, and for reading while runsc starts a further one.
    pausing: Arc<RwLock<()>>,
    held: Mutex<Option<OwnedRwLockWriteGuard<()>>>,
}

impl Container for GvisorContainer {
    /// runsc takes a terminal of the machine and opens its own inside.
    fn terminal(&self) -> Result<(Terminal, Stdio), StartError> {
        Ok(Terminal::open()?)
    }

    fn start(&self, stdio: Stdio) -> BoxFuture<'_, Result<Spawned, StartError>> {
        async move {
            let bundle = BUNDLE.below(&self.runsc.folder).display().to_string();
            let image = IMAGE.below(&self.runsc.folder).display().to_string();
            let argv = match self.restored {
                true => vec!["restore", "--bundle", &bundle, "--image-path", &image, &self.runsc.id],
                false => vec!["run", "--bundle", &bundle, &self.runsc.id],
            };
            let argv = self.runsc.argv(&argv);
            let process = process(argv, self.blueprint.terminal);
            let mut spawned = self.runsc.jail.spawn(&process, stdio).await?;
            spawned.started().await.map_err(|failed| failed.of_program(&process))?;
            if self.restored {
                self.was_restored(&mut spawned).await?;
            }
            Ok(spawned)
        }
        .boxed()
    }

    fn exec(&self, further: Process, stdio: Stdio) -> BoxFuture<'_, Result<Exec, String>> {
        async move {
            self.running().await;
            let still = self.pausing.clone().read_owned().await;
            let number = self.counter.fetch_add(1, Ordering::Relaxed);
            let folder = EXEC.below(&self.runsc.folder);
            let file =
                |name: String| PathSegment::new(name).map(|name| name.below(&folder)).unwrap_or_default();
            let files = ExecFiles {
                process: file(format!("{number}.json")),
                pid: file(format!("{number}.pid")),
                exists: Arc::default(),
            };
            // By a file, because arguments show in the machine's process list and the environment may hold secrets.
            let Process { argv, env, terminal, .. } = &further;
            let usual = bundle(&self.blueprint, Path::new(""), "");
            let description = Bundle { argv, env, terminal: *terminal, ..usual }.process();
            let process_file = files.process.clone();
            let written = spawn_blocking(move || write_private(&process_file, &description)).await;
            written
                .map_err(io::Error::from)
                .flatten()
                .map_err(|error| format!("cannot start in runsc: {error}"))?;
            let (file, pid) = (files.process.display().to_string(), files.pid.display().to_string());
            let argv = ["exec", "--process", &file, "--internal-pid-file", &pid, &self.runsc.id];
            let process = process(self.runsc.argv(&argv), *terminal);
            let spawned = self.runsc.jail.spawn(&process, stdio).await.map_err(|error| error.to_string())?;
            tokio::spawn(until_inside(Arc::downgrade(&files.exists), files.pid.clone(), still));
            let (runsc, number) = (self.runsc.clone(), spawned.number);
            Ok(Exec::new(spawned, move || {
                runsc.jail.signal(number, Signal::KILL.as_raw());
                spawn_blocking(move || runsc.kill_inside(&files));
            }))
        }
        .boxed()
    }

    /// That of runsc itself.
    fn lost_code(&self) -> Option<i32> {
        Some(128)
    }

    fn stats(&self) -> Option<Usage> {
        self.runsc.jail.usage()
    }

    fn is_freezable(&self) -> bool {
        self.runsc.jail.is_freezable()
    }

    fn freeze(&self) -> Result<(), String> {
        self.runsc.jail.freeze()
    }

    /// Tried: the kernel writes a tenth of it to swap.
    fn without_page_out(&self) -> Option<&'static str> {
        Some("gVisor keeps memory in a file that several of its processes map")
    }

    fn page_out(&self, _going: &dyn Fn() -> bool) -> Result<PageOut, String> {
        Err(self.without_page_out().unwrap_or_default().into())
    }

    fn thaw(&self) -> Result<(), String> {
        self.runsc.jail.thaw()
    }

    fn without_checkpoint(&self) -> Option<&'static str> {
        None
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            self.running().await;
            let still = tokio::time::timeout(COMMAND_TIMEOUT, self.pausing.clone().write_owned()).await;
            let still = still.map_err(|_| "a process was being started for too long")?;
            // Before, so that `resume` resumes it also if it is paused after this was cut short.
            *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(still);
            let paused = self.runsc.command(&["pause", &self.runsc.id]).await;
            if matches!(paused, Err(CommandError::Failed(_))) {
                self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
            Ok(paused?)
        }
        .boxed()
    }

    fn checkpoint(&self) -> BoxFuture<'_, Result<PathBuf, String>> {
        async move {
            let folder = CHECKPOINT.below(&self.runsc.folder);
            let made = folder.clone();
            let fresh = move || {
                remove_tree(&made)?;
                std::fs::DirBuilder::new().mode(0o700).create(&made)
            };
            let made = spawn_blocking(fresh).await.map_err(io::Error::from).flatten();
            made.map_err(|error| format!("cannot make a folder for the memory: {error}"))?;
            let path = folder.display().to_string();
            let argv = ["checkpoint", "--leave-running", "--image-path", &path, &self.runsc.id];
            Ok(self.runsc.command(&argv).await.map(|()| folder)?)
        }
        .boxed()
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
            match held {
                Some(_still) => Ok(self.runsc.command(&["resume", &self.runsc.id]).await?),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn changes(&self) -> PathBuf {
        upper(Handler::Gvisor, &self.runsc.folder)
    }

    fn signal(&self, signal: StopSignal) {
        self.runsc.fire(self.runsc.argv(&["kill", &self.runsc.id, &signal.as_raw().to_string()]));
    }

    fn kill(&self) {
        // Processes that wait for its resume find that it has ended.
        drop(self.held.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.runsc.jail.kill();
    }
}

impl GvisorContainer {
    /// Waits until the main process was restored.
    async fn was_restored(&self, main: &mut Spawned) -> Result<(), StartError> {
        let restored = tokio::time::timeout(COMMAND_TIMEOUT, async {
            while self.runsc.status().await.as_deref() != Some("running") {
                tokio::time::sleep(RUNNING_INTERVAL).await;
            }
        });
        tokio::select! {
            exit = main.exited() => {
                Err(format!("runsc restore ended ({exit:?})").into())
            }
            restored = restored => match restored {
                Ok(()) => {
                    self.is_running.store(true, Ordering::Relaxed);
                    Ok(())
                }
                Err(_) => {
                    self.kill();
                    Err("runsc restore did not end in time".into())
                }
            },
        }
    }

    /// Waits until runsc runs the main process: before, it takes no further one. Returns also when the container has ended
    /// or the time is over; runsc then refuses with the reason.
    async fn running(&self) {
        let until = Instant::now() + RUNNING_TIMEOUT;
        while !self.is_running.load(Ordering::Relaxed) {
            if self.runsc.jail.is_over() || Instant::now() > until {
                return;
            }
            match self.runsc.status().await.as_deref() {
                Some("running" | "stopped") => self.is_running.store(true, Ordering::Relaxed),
                _ => tokio::time::sleep(RUNNING_INTERVAL).await,
            }
        }
    }
}

/// Keeps a container from being paused until runsc has started a further process, or has failed to: it starts none in a
/// container that is paused.
async fn until_inside(exists: Weak<()>, pid: PathBuf, still: OwnedRwLockReadGuard<()>) {
    let until = Instant::now() + RUNNING_TIMEOUT;
    while exists.strong_count() > 0 && Instant::now() < until {
        match tokio::fs::read(&pid).await {
            Ok(text) if !text.is_empty() => break,
            _ => tokio::time::sleep(RUNNING_INTERVAL).await,
        }
    }
    drop(still);
}

/// Returns a container without the mounts that its rules for files hide with the folder in which they are: runsc could make no
/// mount point there.
fn without_hidden_mounts(blueprint: &Blueprint) -> Blueprint {
    let rules = &blueprint.files.rules;
    let is_shown = |mount: &Mount| {
        let covering = rules.iter().filter(|rule| mount.target.starts_with(&rule.path));
        let nearest = covering.max_by_key(|rule| rule.path.components().count());
        let hidden = nearest.filter(|rule| rule.access == FileAccess::Hidden && rule.path != mount.target);
        let within =
            |rule: &FileRule| rule.access != FileAccess::Hidden && rule.path.starts_with(&mount.target);
        hidden.is_none() || rules.iter().any(within)
    };
    let mounts = blueprint.mounts.iter().filter(|mount| is_shown(mount)).cloned().collect();
    Blueprint { mounts, ..blueprint.clone() }
}

/// Returns the content of the bundle's `config.json`.
fn config(folder: &Path, blueprint: &Blueprint, hostname: &str) -> Value {
    let (rootfs, assembly) = (ROOTFS.below(folder), MOUNTS.below(folder));
    Bundle { assembly: &assembly, ..bundle(blueprint, &rootfs, hostname) }.config()
}

/// Creates the folders of a container and writes its bundle. Of an earlier container, only what it wrote stays. Blocks.
fn write_bundle(folder: &Path, config: &Value) -> io::Result<()> {
    for stale in [BUNDLE, STATE, EXEC, MOUNTS, CHECKPOINT, IMAGE] {
        remove_tree(&stale.below(folder))?;
    }
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

/// Writes a file that only its owner may read, in place of an older one.
fn write_private(path: &Path, content: &Value) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.to_string().as_bytes())
}

/// Returns the bundle of a container.
fn bundle<'a>(blueprint: &'a Blueprint, rootfs: &'a Path, hostname: &'a str) -> Bundle<'a> {
    Bundle {
        rootfs,
        read_only: matches!(blueprint.root.upper, Upper::ReadOnly),
        hostname,
        argv: &blueprint.argv,
        env: &blueprint.env,
        cwd: &blueprint.cwd,
        user: &blueprint.user,
        capabilities: blueprint.capabilities,
        terminal: blueprint.terminal,
        mounts: &blueprint.mounts,
        assembly: Path::new(""),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a folder of the test")]
mod tests {
    use super::*;

    #[test]
    fn mount_in_a_hidden_folder_is_left_out_unless_a_rule_opens_something_in_it() {
        let mount = |target: &str| Mount {
            source: hutch_jail::MountSource::Bind("/v".into()),
            target: target.into(),
            read_only: false,
        };
        let rule = |path: &str, access| FileRule { path: path.into(), access, name: String::new() };
        let blueprint = Blueprint {
            name: "c".into(),
            argv: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            user: hutch_jail::User::default(),
            terminal: false,
            stdin: false,
            stdin_once: false,
            mounts: ["/a", "/hidden/x", "/hidden/y", "/hidden/z/deep", "/own"].map(mount).into(),
            root: Root { layers: Vec::new(), upper: Upper::ReadOnly },
            files: hutch_jail::FileRules {
                rules: vec![
                    rule("/hidden", FileAccess::Hidden),
                    rule("/hidden/y/open", FileAccess::Read),
                    rule("/hidden/z", FileAccess::Read),
                    rule("/own", FileAccess::Hidden),
                ],
                shared: Vec::new(),
            },
            limits: hutch_jail::Limits::default(),
            stop_signal: StopSignal::default(),
            capabilities: Capabilities::NONE,
            message: None,
            late_env: None,
        };
        let left = without_hidden_mounts(&blueprint).mounts;
        let left: Vec<String> = left.iter().map(|mount| mount.target.display().to_string()).collect();
        assert_eq!(left, ["/a", "/hidden/y", "/hidden/z/deep", "/own"]);
    }

    #[test]
    fn kept_root_loses_what_belongs_to_an_earlier_run_of_runsc() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write_bundle(folder, &Value::Null).unwrap();
        let written = folder.join("upper/upper/written");
        for file in [&written, &folder.join("state/old.state"), &folder.join("exec/0.json")] {
            std::fs::write(file, "x").unwrap();
        }
        prepare_folder(folder, &Beginning::Kept, None).unwrap();
        write_bundle(folder, &Value::Null).unwrap();
        let left = |name: &str| std::fs::read_dir(folder.join(name)).unwrap().count();
        assert_eq!((left("state"), left("exec"), written.exists()), (0, 0, true));
    }
}
