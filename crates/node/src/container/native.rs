//! Starts a container: a jail, its main process in it, and who collects what that prints.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use hutch_jail::{Ids, Network, Process, Profile, Root, Spec, Upper, Warden};
use hutch_remote::{ByteWriter, Exit};
use tokio::sync::{Mutex, OwnedSemaphorePermit, watch};
use tokio::task::JoinHandle;

use super::{
    Blueprint, Cell, Ends, GvisorContainer, MainExit, Output, Running, Spawned, Stream, Terminal, exit_of,
    pipes,
};
use crate::oci::Runsc;

/// How long output may still come after everything inside was killed. It is in pipes then, so this is ample.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// What starting a container needs beside its blueprint.
pub(crate) struct Launch {
    pub(crate) warden: Arc<Warden>,
    /// The turn to use it.
    pub(crate) turn: OwnedSemaphorePermit,
    pub(crate) blueprint: Blueprint,
    /// Name of the jail.
    pub(crate) jail: String,
    pub(crate) hostname: String,
    /// First of the Pod's ids outside.
    pub(crate) id_base: u32,
    /// The Pod's addresses, for its first jail.
    pub(crate) addresses: Vec<IpAddr>,
    /// The Pod's network namespace, for further ones.
    pub(crate) network: Option<OwnedFd>,
    pub(crate) log: PathBuf,
    /// Whether the container may be frozen.
    pub(crate) freezable: bool,
    /// Set when runsc isolates.
    pub(crate) gvisor: Option<GvisorContainer>,
}

/// Why a container did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartError {
    pub(crate) message: String,
}

impl<E: std::fmt::Display> From<E> for StartError {
    fn from(error: E) -> Self {
        StartError { message: error.to_string() }
    }
}

/// Starts a container and returns when its main process runs.
pub(crate) async fn start(launch: Launch) -> Result<Arc<Running>, StartError> {
    let spec = spec(&launch);
    let (warden, network, log) = (launch.warden, launch.network, launch.log);
    let started = tokio::task::spawn_blocking(move || {
        let output = Output::new(&log).map_err(StartError::from)?;
        let jail = warden.launch(&spec, network.as_ref().map(AsFd::as_fd)).map_err(StartError::from)?;
        Ok::<_, StartError>((Arc::new(output), jail))
    });
    let started = started.await;
    drop(launch.turn);
    let (output, jail) = started.map_err(StartError::from)??;
    let cell = Cell::adopt(jail)?;
    let blueprint = launch.blueprint;
    let (process, gvisor) = match launch.gvisor {
        None => (main_process(&blueprint), None),
        Some(gvisor) => {
            gvisor.prepare(&cell, &blueprint, &launch.hostname).await?;
            (gvisor.run_process(blueprint.terminal), Some(gvisor))
        }
    };
    let (stdio, mut ends, terminal) = if blueprint.terminal {
        let (terminal, stdio) = open_terminal(&cell, &blueprint, gvisor.is_some())?;
        (stdio, Ends::default(), Some(terminal))
    } else {
        let (ends, stdio) = pipes(blueprint.stdin, true, true)?;
        (stdio, ends, None)
    };
    let mut spawned = if process.argv == hutch_image::PAUSE && gvisor.is_none() {
        cell.hold().await?
    } else {
        cell.spawn(&process, stdio).await?
    };
    let program = process.argv.first().cloned().unwrap_or_default();
    let failed =
        |why: super::cell::NotStarted| StartError { message: format!("exec: {program:?}: {}", why.reason) };
    spawned.started().await.map_err(failed)?;
    let mut pumps = Vec::new();
    for (stream, pipe) in [(Stream::Stdout, ends.stdout.take()), (Stream::Stderr, ends.stderr.take())] {
        pumps.extend(pipe.map(|pipe| tokio::spawn(output.clone().pump(stream, pipe))));
    }
    pumps.extend(terminal.clone().map(|terminal| tokio::spawn(output.clone().pump_terminal(terminal))));
    let stdin: Option<ByteWriter> = match (&terminal, ends.stdin) {
        (Some(terminal), _) if blueprint.stdin => Some(Box::pin(terminal.clone())),
        (_, stdin) => stdin.map(|pipe| Box::pin(pipe) as ByteWriter),
    };
    let (ended_tx, ended) = watch::channel(None);
    let main = spawned.number;
    tokio::spawn(follow(spawned, cell.clone(), output.clone(), pumps, ended_tx));
    let (stdin, env) = (Mutex::new(stdin), RwLock::new(blueprint.env.clone()));
    Ok(Arc::new(Running { blueprint, env, cell, gvisor, output, main, stdin, terminal, ended }))
}

fn spec(launch: &Launch) -> Spec {
    let blueprint = &launch.blueprint;
    let network = match launch.network {
        Some(_) => Network::Join,
        None => Network::New { addresses: launch.addresses.clone() },
    };
    let ids = Ids::Range { base: launch.id_base };
    let (id, hostname) = (launch.jail.clone(), launch.hostname.clone());
    match &launch.gvisor {
        None => Spec {
            id,
            hostname,
            profile: Profile::Native,
            root: blueprint.root.clone(),
            mounts: blueprint.mounts.clone(),
            ids,
            network,
            limits: blueprint.limits,
            deny_set_id_bits: false,
            freezable: launch.freezable,
        },
        Some(gvisor) => Spec {
            id,
            hostname,
            profile: Profile::Runtime,
            root: Root { layers: Vec::new(), upper: Upper::ReadOnly },
            mounts: gvisor.mounts_around(blueprint),
            ids,
            network,
            limits: Runsc::limits(blueprint.limits),
            deny_set_id_bits: false,
            freezable: launch.freezable,
        },
    }
}

fn main_process(blueprint: &Blueprint) -> Process {
    Process {
        argv: blueprint.argv.clone(),
        env: blueprint.env.clone(),
        cwd: blueprint.cwd.clone(),
        terminal: blueprint.terminal,
        user: blueprint.user.clone(),
    }
}

/// A terminal for a process: runsc takes one of the machine and makes its own inside.
pub(super) fn open_terminal(
    cell: &Cell,
    blueprint: &Blueprint,
    gvisor: bool,
) -> Result<(Terminal, hutch_jail::Stdio), StartError> {
    if gvisor {
        return Ok(Terminal::open()?);
    }
    let (ours, theirs) = cell.terminal(&blueprint.user)?;
    Ok(Terminal::adopt(ours, theirs)?)
}

/// Waits for the end of the main process, ends what it left behind, and tells when all output is there.
async fn follow(
    main: Spawned,
    cell: Arc<Cell>,
    output: Arc<Output>,
    pumps: Vec<JoinHandle<()>>,
    ended: watch::Sender<Option<MainExit>>,
) {
    let exit: Exit = exit_of(main.exited().await);
    let out_of_memory = exit != Exit::Code(0) && {
        let cell = cell.clone();
        let usage = tokio::task::spawn_blocking(move || cell.usage()).await;
        usage.ok().flatten().is_some_and(|usage| usage.oom_kills > 0)
    };
    cell.kill();
    for mut pump in pumps {
        if tokio::time::timeout(OUTPUT_GRACE, &mut pump).await.is_err() {
            pump.abort();
        }
    }
    // Fails only when the runtime is shutting down.
    let _ = tokio::task::spawn_blocking(move || output.finish()).await;
    // Nobody is left to tell when the Pod's own task is gone.
    let _ = ended.send(Some(MainExit { exit, out_of_memory }));
}
