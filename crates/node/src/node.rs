//! Starting a node, and what its parts share.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hutch_image::{Store, remove_tree};
use hutch_jail::{IdRanges, Warden};
use hutch_serve::Shutdown;
use hutch_snapshot::Images;
use kube::Client;
use tokio::io::Interest;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::addresses::Addresses;
use crate::capacity::{Amount, Capacity, MemoryGauge};
use crate::config::{Config, Egress};
use crate::events::Events;
use crate::host_paths::HostPaths;
use crate::memory_volumes::MemoryVolumes;
use crate::oci::Runsc;
use crate::places::{Places, older_memory};
use crate::policies::NoProxy;
use crate::runtime::Launcher;
use crate::saved::Snapshots;
use crate::saved::fill::Unsettled;
use crate::saved::generation::Generations;
use crate::shared::Shared;
use crate::stdio::register as watch_descriptor;
use crate::{Error, claims, cordon, disk, inventory, memory, policies, register, sleep, snapshot, volumes};

/// How long a node that stops waits for its Pods' tasks.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait before a warden that died is replaced: one that dies at once must not make the machine busy.
const WARDEN_PAUSE: Duration = Duration::from_secs(1);

/// A running node. It implements [`hutch_kubelet::Kubelet`].
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
    inventory: Arc<tokio::sync::Mutex<Option<JoinHandle<()>>>>,
}

impl Node {
    /// Makes the folders, starts the warden, registers the Node object, and begins to run the Pods that are bound to
    /// it. Returns when Pods can be started.
    ///
    /// # Errors
    /// When the configuration, a folder, the warden or the API server does not allow it.
    pub async fn start(client: Client, config: Config, shutdown: Shutdown) -> Result<Node, Error> {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
        let addresses = Addresses::new(&config.pod_cidr, seed)?;
        let opening = config.clone();
        let opened = tokio::task::spawn_blocking(move || open(&opening)).await;
        let (places, host_paths, mut images, snapshots) =
            opened.map_err(|e| Error::folder("open", &*config.data_dir)(std::io::Error::other(e)))??;
        if let Some(unpacker) = &config.unpacker {
            images = images.with_unpacker(unpacker.clone());
        }
        if !config.substitute_images {
            images = images.without_substitutes();
        }
        let warden = start_warden(&config, &places).await?;
        let events = Events::start(client.clone(), config.node_name.clone());
        let launcher = Arc::new(Launcher::new(warden));
        let mut config = config;
        let cannot_capture = try_capture(&launcher, &mut config).await;
        let (sender, receiver) = mpsc::unbounded_channel();
        let without: Option<Arc<dyn Egress>> = cannot_capture.as_ref().map(|_| Arc::new(NoProxy) as _);
        let egress = config.egress.clone().or(without);
        let shared = Arc::new(Shared {
            client,
            images,
            snapshots,
            events,
            shutdown,
            memory_volumes: MemoryVolumes::new(places.memory_volumes.clone()),
            places,
            host_paths: Arc::new(host_paths),
            memory: MemoryGauge::new(config.meminfo.clone()),
            capacity: Capacity::new(Amount::of_machine(&config.meminfo, &config.data_dir)),
            config,
            released: Notify::new(),
            launcher,
            addresses: Mutex::new(addresses),
            id_ranges: IdRanges::open(seed)?,
            walks: Arc::default(),
            page_out: Semaphore::new(1),
            live: Mutex::default(),
            disk_pressure: AtomicBool::new(false),
            policies: egress.is_some().then_some(sender),
            cannot_capture,
        });
        if let Some(egress) = egress {
            tokio::spawn(policies::run(shared.clone(), egress, receiver));
        }
        // The first Pod should not wait until the built-in image is written. A Pod that needs it reports a failure.
        let images = shared.images.clone();
        tokio::task::spawn_blocking(move || drop(images.resolve("hutch/host")));
        tokio::task::spawn_blocking(|| {
            if let Some(problem) = Runsc::find().and_then(|runsc| runsc.problem()) {
                tracing::warn!(problem, "gVisor cannot be used");
            }
        });
        // Before Pods are accepted, which may name the classes.
        let (registered, ()) = tokio::join!(register::node(&shared), register::runtime_classes(&shared));
        registered?;
        tokio::spawn(register::keep(shared.clone()));
        tokio::spawn(cordon::follow(shared.clone()));
        tokio::spawn(claims::provision(shared.clone()));
        tokio::spawn(claims::take_away(shared.clone()));
        tokio::spawn(snapshot::run(shared.clone()));
        tokio::spawn(disk::watch(shared.clone()));
        tokio::spawn(sleep::relieve(shared.clone()));
        tokio::spawn(volumes::refresh(shared.clone()));
        tokio::spawn(mind_warden(shared.clone()));
        let inventory = tokio::spawn(inventory::run(shared.clone()));
        Ok(Node { shared, inventory: Arc::new(tokio::sync::Mutex::new(Some(inventory))) })
    }

    /// Resolves when the node has stopped after the shutdown was triggered: all of its containers have ended then.
    pub async fn stopped(&self) {
        self.shared.shutdown.wait().await;
        let Some(inventory) = self.inventory.lock().await.take() else { return };
        if tokio::time::timeout(STOP_TIMEOUT, inventory).await.is_err() {
            tracing::warn!("some Pods' tasks did not end in time; their containers are killed");
        }
        for live in self.shared.all() {
            live.clear();
        }
        // Nothing uses it any more, and it may hold secrets. The next life writes what its Pods need.
        let node = self.shared.clone();
        let end = move || memory::end(&node.places.memory).and(node.memory_volumes.end());
        let ended = tokio::task::spawn_blocking(end).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "failed to unmount the volumes in memory");
        }
    }
}

/// Makes the folders, unmounts what a killed process left, and opens the images and what Pods may mount. Blocks.
fn open(config: &Config) -> Result<(Places, HostPaths, Store, Snapshots), Error> {
    let data: &Path = &config.data_dir;
    let places = Places::make(data)?;
    memory::end(&places.memory).map_err(Error::folder("unmount", &*places.memory))?;
    let volumes = &*places.memory_volumes;
    memory::end_emptied(volumes).map_err(Error::folder("unmount", volumes))?;
    if let Some(older) = older_memory(data)
        && let Err(error) = remove_tree(&older)
    {
        tracing::warn!(folder = %older.display(), %error, "failed to remove volumes of an earlier version");
    }
    let private = config.private_paths.iter().map(PathBuf::as_path);
    let own: Vec<&Path> = private.chain([data]).collect();
    let unsettled = Unsettled::open(&places.volumes);
    let host_paths = HostPaths::open(&config.host_paths, &own)?;
    let images = Store::open(&places.images)?.with_layouts_below(config.image_dir.clone());
    let snapshots = Images::open(&places.snapshots)
        .map_err(|error| Error::folder("open", &*places.snapshots)(std::io::Error::other(error)))?;
    let generations = Generations::new(places.generation.clone());
    Ok((places, host_paths, images, Snapshots::new(snapshots, generations, unsettled)))
}

async fn start_warden(config: &Config, places: &Places) -> Result<Warden, Error> {
    let (program, state) = (config.warden_program.clone(), places.jails.clone());
    let started = tokio::task::spawn_blocking(move || Warden::start(&program, &state)).await;
    match started {
        Ok(result) => Ok(result?),
        Err(error) => Err(Error::Folder {
            action: "start the warden with",
            path: config.warden_program.clone(),
            source: std::io::Error::other(error),
        }),
    }
}

/// Creates the network namespace of a Pod with a proxy. If the kernel cannot, Pods have no proxy: the reason.
async fn try_capture(launcher: &Launcher, config: &mut Config) -> Option<String> {
    let plan = config.egress.as_ref()?.plan(Ipv4Addr::new(198, 18, 0, 2).into());
    let failed = launcher.network(plan).await.err()?;
    tracing::warn!(error = failed.message, "this kernel cannot capture connections; Pods have no network");
    config.egress = None;
    Some(format!("this kernel cannot capture connections: no egress ({})", failed.message))
}

/// Replaces a warden that died. Its jails died with it; their Pods' tasks start them again.
async fn mind_warden(node: Arc<Shared>) {
    loop {
        let warden = node.launcher.warden();
        let ended =
            warden.ended().try_clone_to_owned().and_then(|fd| watch_descriptor(fd, Interest::READABLE));
        let Ok(ended) = ended.inspect_err(|error| tracing::warn!(%error, "the warden is not minded")) else {
            return;
        };
        tokio::select! {
            () = node.shutdown.wait() => return,
            ready = ended.readable() => drop(ready.map(|mut ready| ready.retain_ready())),
        }
        tracing::error!("the jail warden died; all sandboxes ended with it and are started again");
        tokio::time::sleep(WARDEN_PAUSE).await;
        match start_warden(&node.config, &node.places).await {
            Ok(new) => node.launcher.replace(new),
            Err(error) => tracing::error!(%error, "the jail warden cannot be started again"),
        }
    }
}
