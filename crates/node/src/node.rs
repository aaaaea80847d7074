//! Starting a node, and what its parts share.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hutch_image::Store;
use hutch_jail::{IdRanges, Warden};
use hutch_serve::Shutdown;
use kube::Client;
use tokio::io::Interest;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use crate::addresses::Addresses;
use crate::config::Config;
use crate::container::register as watch_descriptor;
use crate::events::Events;
use crate::live::Live;
use crate::{Error, claims, inventory, register};

/// The address that the node gives for itself: all of it is on this machine.
pub(crate) const HOST_IP: &str = "127.0.0.1";
/// How long a node that stops waits for its Pods' tasks.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Launches at once: the one that the warden is at, and one that it finds when it is done. With all of them waiting for it as
/// threads, some would wait three times as long as others.
const LAUNCHES: usize = 2;
/// Wait before a warden that died is replaced: one that dies at once must not make the machine busy.
const WARDEN_PAUSE: Duration = Duration::from_secs(1);

/// A running node. It implements [`hutch_remote::Kubelet`].
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
    inventory: Arc<tokio::sync::Mutex<Option<JoinHandle<()>>>>,
}

/// What the parts of a node share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) images: Store,
    pub(crate) events: Events,
    pub(crate) shutdown: Shutdown,
    /// Folder of all Pods.
    pub(crate) pods: PathBuf,
    /// Folder of what Pods keep in memory.
    pub(crate) memory: PathBuf,
    /// Folder of all persistent volumes.
    pub(crate) volumes: PathBuf,
    /// Woken when a Pod with claims is gone, whose folders may be free now.
    pub(crate) released: Notify,
    warden: Mutex<Arc<Warden>>,
    /// Turns to launch a jail, given in the order in which they were asked for.
    pub(crate) launching: Arc<Semaphore>,
    addresses: Mutex<Addresses>,
    pub(crate) id_ranges: IdRanges,
    live: Mutex<HashMap<String, Arc<Live>>>,
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
        let data = config.data_dir.clone();
        let memory = memory_folder(&data);
        for folder in [&data, &data.join("pods"), &data.join("volumes"), &data.join("run"), &memory] {
            make_private(folder)?;
        }
        let mut images = Store::open(&data.join("images"))?;
        if !config.substitute_images {
            images = images.without_substitutes();
        }
        let warden = start_warden(&config).await?;
        let events = Events::start(client.clone(), config.node_name.clone());
        let shared = Arc::new(Shared {
            client,
            images,
            events,
            shutdown,
            pods: data.join("pods"),
            volumes: data.join("volumes"),
            memory,
            config,
            released: Notify::new(),
            warden: Mutex::new(Arc::new(warden)),
            launching: Arc::new(Semaphore::new(LAUNCHES)),
            addresses: Mutex::new(addresses),
            id_ranges: IdRanges::open(seed)?,
            live: Mutex::default(),
        });
        // The first Pod should not wait for the built-in image to be written; why it cannot be is said when one asks.
        let images = shared.images.clone();
        tokio::task::spawn_blocking(move || drop(images.resolve("hutch/host")));
        register::node(&shared).await?;
        tokio::spawn(register::keep(shared.clone()));
        tokio::spawn(claims::provision(shared.clone()));
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
        let memory = self.shared.memory.clone();
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(memory)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "the folder of volumes in memory stays behind");
        }
    }
}

impl Shared {
    pub(crate) fn warden(&self) -> Arc<Warden> {
        lock(&self.warden).clone()
    }

    pub(crate) fn addresses(&self) -> MutexGuard<'_, Addresses> {
        lock(&self.addresses)
    }

    /// The Pod with that uid.
    pub(crate) fn find(&self, uid: &str) -> Option<Arc<Live>> {
        lock(&self.live).get(uid).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Live>> {
        lock(&self.live).values().cloned().collect()
    }

    pub(crate) fn add(&self, live: Arc<Live>) {
        lock(&self.live).insert(live.id.uid.clone(), live);
    }

    pub(crate) fn remove(&self, uid: &str) {
        let removed = lock(&self.live).remove(uid);
        if let Some(live) = removed {
            live.clear();
            if !live.claims().is_empty() {
                self.released.notify_one();
            }
        }
        self.addresses().release(uid);
    }

    /// Uids of the claims that Pods here use.
    pub(crate) fn volumes_in_use(&self) -> Vec<String> {
        self.all().iter().flat_map(|live| live.claims()).collect()
    }

    /// Removes everything that a Pod has on this machine but its persistent volumes.
    pub(crate) async fn remove_folders(&self, uid: &str) {
        let folders = [self.pods.join(uid), self.memory.join(uid)];
        let removed = tokio::task::spawn_blocking(move || {
            for folder in folders {
                match std::fs::remove_dir_all(&folder) {
                    Ok(()) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => {
                        tracing::warn!(folder = %folder.display(), %error, "a Pod's folder stays behind")
                    }
                }
            }
        });
        // Fails only when the runtime is shutting down; the next life sweeps.
        let _ = removed.await;
    }
}

/// A panic while the lock was held leaves whole values, so the lock stays usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder in memory that belongs to this data folder.
fn memory_folder(data: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    std::fs::canonicalize(data).unwrap_or_else(|_| data.into()).hash(&mut hasher);
    Path::new("/dev/shm").join(format!("hutch-{:016x}", hasher.finish()))
}

/// Makes a folder with mode 0700, or checks that the existing one is a folder of this user: `/dev/shm` is everybody's.
fn make_private(path: &Path) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(Error::folder("make", path))?;
    let found = std::fs::symlink_metadata(path).map_err(Error::folder("look at", path))?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != own {
        let source = std::io::Error::other("it belongs to somebody else");
        return Err(Error::Folder { action: "use", path: path.into(), source });
    }
    Ok(())
}

async fn start_warden(config: &Config) -> Result<Warden, Error> {
    let (program, state) = (config.warden_program.clone(), config.data_dir.join("run/jails"));
    make_private(&state)?;
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

/// Replaces a warden that died. Its jails died with it; their Pods' tasks start them again.
async fn mind_warden(node: Arc<Shared>) {
    loop {
        let warden = node.warden();
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
        match start_warden(&node.config).await {
            Ok(new) => *lock(&node.warden) = Arc::new(new),
            Err(error) => tracing::error!(%error, "the jail warden cannot be started again"),
        }
    }
}
