//! The native handler: each container is a jail, and its processes are children of the jail's init.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_image::StopSignal;
use hutch_jail::{Ids, Network, PageOut, Process, Profile, Spec, Stdio, Usage};
use rustix::process::Signal;
use tokio::task::spawn_blocking;

use super::jail::JailHandle;
use super::{
    Beginning, Container, ContainerPlan, Exec, Launcher, NewSandbox, PodSandbox, Runtime, SandboxPlan,
    Spawned, StartError, prepare_folder, upper,
};
use crate::blueprint::Blueprint;
use crate::config::Handler;
use crate::stdio::Terminal;

/// Why memory of native jails is not written to disk.
const WITHOUT_CHECKPOINT: &str = "the native handler keeps no memory on disk; use `runtimeClassName: gvisor`, or the content \
                                  `Filesystem`";

/// The native handler.
pub(super) struct Native {
    launcher: Arc<Launcher>,
}

impl Native {
    pub(super) fn new(launcher: Arc<Launcher>) -> Native {
        Native { launcher }
    }
}

impl Runtime for Native {
    fn create_sandbox(&self, plan: SandboxPlan) -> BoxFuture<'_, Result<NewSandbox, StartError>> {
        async move {
            let created = self.launcher.network(plan.network.clone()).await?;
            let (network, listeners) = (Arc::new(created.namespace), created.listeners);
            let sandbox = Arc::new(NativeSandbox { launcher: self.launcher.clone(), plan, network });
            Ok(NewSandbox { sandbox, listeners })
        }
        .boxed()
    }
}

struct NativeSandbox {
    launcher: Arc<Launcher>,
    plan: SandboxPlan,
    network: Arc<OwnedFd>,
}

impl PodSandbox for NativeSandbox {
    fn network(&self) -> &Arc<OwnedFd> {
        &self.network
    }

    fn create_container(&self, plan: ContainerPlan) -> BoxFuture<'_, Result<Arc<dyn Container>, StartError>> {
        async move {
            let ContainerPlan { id, folder, beginning, disk_bytes, freezable, blueprint } = plan;
            if let Beginning::Restored(_) = beginning {
                return Err(WITHOUT_CHECKPOINT.into());
            }
            let root = folder.clone();
            spawn_blocking(move || prepare_folder(&root, &beginning, disk_bytes)).await??;
            let spec = Spec {
                id,
                hostname: self.plan.hostname.clone(),
                profile: Profile::Native,
                root: blueprint.root.clone(),
                mounts: blueprint.mounts.clone(),
                links: Vec::new(),
                files: blueprint.files.clone(),
                runtime_root: None,
                ids: Ids::Range { base: self.plan.ids.base() },
                network: Network::Join,
                capabilities: blueprint.capabilities,
                limits: blueprint.limits,
                deny_set_id_bits: false,
                freezable,
            };
            let jail = self.launcher.launch(spec, &self.network).await?;
            let container = NativeContainer { jail, blueprint, folder, main: OnceLock::new() };
            Ok(Arc::new(container) as Arc<dyn Container>)
        }
        .boxed()
    }
}

struct NativeContainer {
    jail: Arc<JailHandle>,
    blueprint: Arc<Blueprint>,
    /// Folder for its writes.
    folder: PathBuf,
    /// Number of the main process in the jail.
    main: OnceLock<u64>,
}

impl Container for NativeContainer {
    fn terminal(&self) -> Result<(Terminal, Stdio), StartError> {
        let (ours, theirs) = self.jail.terminal(&self.blueprint.user)?;
        Ok(Terminal::adopt(ours, theirs)?)
    }

    fn start(&self, stdio: Stdio) -> BoxFuture<'_, Result<Spawned, StartError>> {
        async move {
            let process = self.blueprint.main_process();
            let mut spawned = if process.argv == hutch_image::PAUSE {
                self.jail.hold().await?
            } else {
                self.jail.spawn(&process, stdio).await?
            };
            spawned.started().await.map_err(|failed| failed.of_program(&process))?;
            // Set once, since a container is started once.
            let _ = self.main.set(spawned.number);
            Ok(spawned)
        }
        .boxed()
    }

    fn exec(&self, process: Process, stdio: Stdio) -> BoxFuture<'_, Result<Exec, String>> {
        async move {
            let spawned = self.jail.spawn(&process, stdio).await.map_err(|error| error.to_string())?;
            let (jail, number) = (self.jail.clone(), spawned.number);
            Ok(Exec::new(spawned, move || jail.signal(number, Signal::KILL.as_raw())))
        }
        .boxed()
    }

    fn stats(&self) -> Option<Usage> {
        self.jail.usage()
    }

    fn is_freezable(&self) -> bool {
        self.jail.is_freezable()
    }

    fn freeze(&self) -> Result<(), String> {
        self.jail.freeze()
    }

    fn without_page_out(&self) -> Option<&'static str> {
        None
    }

    fn page_out(&self, going: &dyn Fn() -> bool) -> Result<PageOut, String> {
        self.jail.page_out(going)
    }

    fn thaw(&self) -> Result<(), String> {
        self.jail.thaw()
    }

    fn without_checkpoint(&self) -> Option<&'static str> {
        Some(WITHOUT_CHECKPOINT)
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), String>> {
        let jail = self.jail.clone();
        async move { spawn_blocking(move || jail.freeze()).await.map_err(|error| error.to_string())? }.boxed()
    }

    fn checkpoint(&self) -> BoxFuture<'_, Result<PathBuf, String>> {
        async { Err(WITHOUT_CHECKPOINT.into()) }.boxed()
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), String>> {
        let jail = self.jail.clone();
        async move { spawn_blocking(move || jail.thaw()).await.map_err(|error| error.to_string())? }.boxed()
    }

    fn changes(&self) -> PathBuf {
        upper(Handler::Native, &self.folder)
    }

    fn signal(&self, signal: StopSignal) {
        if let Some(main) = self.main.get() {
            self.jail.signal(*main, signal.as_raw());
        }
    }

    fn kill(&self) {
        self.jail.kill();
    }
}
