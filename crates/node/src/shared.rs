//! State that the parts of a node share.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hutch_image::{PathSegment, Store, remove_tree};
use hutch_jail::IdRanges;
use hutch_serve::Shutdown;
use kube::Client;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::addresses::Addresses;
use crate::capacity::{Capacity, MemoryGauge};
use crate::config::Config;
use crate::events::Events;
use crate::folders::lift_limits;
use crate::host_paths::HostPaths;
use crate::live::Live;
use crate::memory;
use crate::memory_volumes::MemoryVolumes;
use crate::persistent::ClaimInUse;
use crate::places::Places;
use crate::runtime::Launcher;
use crate::saved::Snapshots;
use crate::trust;
use crate::walks::Permits;

/// The address that the node gives for itself: all of it is on this machine.
pub(crate) const HOST_IP: &str = "127.0.0.1";

/// News for the task of the policies.
pub(crate) enum PolicyNews {
    /// A Pod starts, or its rules for files could not be enforced, or could be.
    Starts(Arc<Live>),
    /// The labels of a Pod have changed.
    Changed(Arc<Live>),
    /// A Pod is served now.
    Served(Arc<Live>),
    /// A Pod is gone.
    Gone(String),
    /// All Pods of this node are known.
    Listed,
}

/// State that the parts of a node share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) images: Store,
    pub(crate) events: Events,
    pub(crate) shutdown: Shutdown,
    /// Folders on this machine.
    pub(crate) places: Places,
    /// Images of snapshots.
    pub(crate) snapshots: Snapshots,
    /// Persistent volumes in memory.
    pub(crate) memory_volumes: MemoryVolumes,
    /// Folders of this machine that Pods may mount.
    pub(crate) host_paths: Arc<HostPaths>,
    /// Woken when a Pod with claims is gone, whose folders may be free now.
    pub(crate) released: Notify,
    /// Launches jails.
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) addresses: Mutex<Addresses>,
    /// Requests of the Pods here.
    pub(crate) capacity: Capacity,
    /// Available memory of the machine.
    pub(crate) memory: MemoryGauge,
    pub(crate) id_ranges: IdRanges,
    /// Permits for walks through volumes.
    pub(crate) walks: Arc<Permits>,
    /// Permit to write the memory of a Pod to swap: one at a time, because all write to the same disks.
    pub(crate) page_out: Semaphore,
    pub(crate) live: Mutex<HashMap<String, Arc<Live>>>,
    pub(crate) disk_pressure: AtomicBool,
    /// To the task of the policies; `None` where the node has no policies.
    pub(crate) policies: Option<mpsc::UnboundedSender<PolicyNews>>,
    /// Reason why there is no proxy although there should be one.
    pub(crate) cannot_capture: Option<String>,
}

impl Shared {
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
        if let Some(journal) = &self.config.journal {
            let pod = live.pod();
            let sandbox = hutch_api::owner::sandbox(pod.as_ref());
            journal.begins(&live.id, sandbox.map(|owner| (owner.name.as_str(), owner.uid.as_str())));
            let _ = live.journal.set(journal.clone());
            live.log_screen.record(journal.clone(), &live.id.uid);
        }
        lock(&self.live).insert(live.id.uid.clone(), live);
    }

    pub(crate) fn remove(&self, uid: &str) {
        let removed = lock(&self.live).remove(uid);
        if let Some(live) = removed {
            live.clear();
            let pod = live.pod();
            if let (Some(egress), None) = (&self.config.egress, hutch_api::owner::sandbox(pod.as_ref())) {
                egress.forget(&trust::sandbox_of(&live.id, &pod));
            }
            if !live.claims().is_empty() {
                self.released.notify_one();
            }
        }
        self.addresses().release(uid);
        self.capacity.release(uid);
        if let Some(egress) = &self.config.egress {
            egress.end(uid);
        }
        if let Some(journal) = &self.config.journal {
            journal.ends(uid);
        }
        self.tell_policies(PolicyNews::Gone(uid.to_owned()));
    }

    /// Serves the network of a Pod. It reaches nothing before its policies are known.
    pub(crate) fn serve_network(&self, live: &Arc<Live>, listeners: Vec<OwnedFd>) {
        if let Some(egress) = &self.config.egress {
            egress.serve(&live.id.uid, &trust::sandbox_of(&live.id, &live.pod()), listeners);
        }
        self.tell_policies(PolicyNews::Served(live.clone()));
    }

    /// Sends news to the task of the policies.
    pub(crate) fn tell_policies(&self, news: PolicyNews) {
        if let Some(policies) = &self.policies {
            // The task ends only with the node.
            let _ = policies.send(news);
        }
    }

    /// Returns true if the disk has too little room for new Pods.
    pub(crate) fn disk_pressure(&self) -> bool {
        self.disk_pressure.load(Ordering::Relaxed)
    }

    /// Sets it, and returns what it was.
    pub(crate) fn set_disk_pressure(&self, pressure: bool) -> bool {
        self.disk_pressure.swap(pressure, Ordering::Relaxed)
    }

    /// Records claims that a Pod uses. The error is that another one has one of them for itself, or that this one wants to, or
    /// that a fill of its volume is neither complete nor undone.
    pub(crate) fn use_claims(&self, live: &Live, claims: Vec<ClaimInUse>) -> Result<(), String> {
        for claim in &claims {
            let settled = self.snapshots.unsettled.settle(&claim.uid);
            settled.map_err(|error| format!("persistentvolumeclaim {:?}: {error}", claim.name))?;
        }
        // Held meanwhile, so that two Pods never have the same claim each for itself.
        let pods = lock(&self.live);
        let others = pods.values().filter(|other| other.id.uid != live.id.uid && !other.has_ended());
        for other in others {
            for used in other.claims() {
                let same = claims.iter().find(|claim| claim.uid == used.uid);
                if same.is_some_and(|claim| claim.exclusive || used.exclusive) {
                    return Err(format!(
                        "persistentvolumeclaim {:?}: pod {:?} uses it, and its access mode ReadWriteOncePod allows one pod at a time",
                        used.name, other.id.name
                    ));
                }
            }
        }
        live.set_volumes(claims, BTreeMap::new());
        Ok(())
    }

    /// Uids of the claims that Pods here use.
    pub(crate) fn volumes_in_use(&self) -> Vec<String> {
        let claims = self.all().into_iter().flat_map(|live| live.claims());
        claims.map(|claim| claim.uid).collect()
    }

    /// Removes everything that a Pod has on this machine but its persistent volumes.
    pub(crate) async fn remove_folders(&self, uid: &PathSegment) {
        let pod = self.places.pod(uid);
        let removed = tokio::task::spawn_blocking(move || {
            let (given, written) = (pod.given_memory(), pod.all_written_memory());
            if let Err(error) = memory::remove(&pod.memory, &given, &written) {
                tracing::warn!(folder = %pod.memory.display(), %error, "failed to remove volumes in memory");
            }
            for limited in pod.limited() {
                lift_limits(&limited);
            }
            if let Err(error) = remove_tree(&pod.disk) {
                tracing::warn!(folder = %pod.disk.display(), %error, "failed to remove the folder of a pod");
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
