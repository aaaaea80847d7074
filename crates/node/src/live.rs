//! State of a running Pod that other tasks than its own may read.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hutch_attach::PENDING;
use hutch_image::PathSegment;
use hutch_kubelet::PodId;
use hutch_serve::Shutdown;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use crate::config::{ContainerChange, Handler, Journal, Offer, ServiceKind};
use crate::container::{LogScreen, Running};
use crate::files::{Files, Unenforced};
use crate::gate::Gate;
use crate::persistent::ClaimInUse;
use crate::tokens::Tokens;
use crate::walks::Walks;

/// News of the API server about a Pod.
#[derive(Debug, Clone)]
pub(crate) enum Update {
    /// It is there, as this.
    Present(Arc<Pod>),
    /// It is gone.
    Gone,
}

/// Effect of a Pod's policies, as its condition reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Enforced {
    /// `false` if a policy cannot be enforced. Then nothing is reachable.
    pub(crate) holds: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Enforced {
    /// Returns true if a policy that is known cannot be enforced.
    fn fails(&self) -> bool {
        !self.holds && self.reason != PENDING
    }
}

/// A Pod that runs here, or ran.
pub(crate) struct Live {
    pub(crate) id: PodId,
    /// The uid, which names folders.
    pub(crate) uid: PathSegment,
    pub(crate) updates: watch::Sender<Update>,
    /// Message of an eviction that is due.
    eviction: watch::Sender<Option<String>>,
    /// Taken while a snapshot of it is made, and before it ends.
    pub(crate) snapshots: tokio::sync::Mutex<()>,
    /// Its handler, once it is chosen.
    pub(crate) handler: OnceLock<Handler>,
    /// Set while its processes are paused for a snapshot, and to the end of the last pause afterwards.
    pub(crate) paused: Mutex<Pause>,
    /// Number of the last restore of its containers.
    generation: AtomicU64,
    /// Set when a service of this process answers for it.
    pub(crate) service: OnceLock<ServiceKind>,
    /// Counts the callers that are inside.
    pub(crate) gate: Gate,
    /// `true` once the rules for files are known.
    files_known: watch::Sender<bool>,
    /// Scanners of its policies for its logs.
    pub(crate) log_screen: Arc<LogScreen>,
    /// Receives what happens to it.
    pub(crate) journal: OnceLock<Arc<dyn Journal>>,
    /// Tokens in its volumes.
    pub(crate) tokens: Tokens,
    /// Walks through its volumes.
    pub(crate) walks: Walks,
    inner: Mutex<Inner>,
}

/// Pause of the processes of a Pod for a snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Pause {
    /// They never were.
    #[default]
    Never,
    /// They are.
    Now,
    /// They were until then.
    Until(Instant),
}

/// Time after a pause in which a probe that has begun before its end may fail.
const PAUSED_PROBES: Duration = Duration::from_secs(10);

/// Rules for files of a Pod.
#[derive(Default)]
struct FileState {
    /// Those that its policies require.
    required: Arc<Files>,
    /// Those with which its containers run, from the first one on.
    taken: Option<Arc<Files>>,
    /// Reason why a container could not be started with its rules, by its name.
    problems: BTreeMap<String, String>,
}

#[derive(Default)]
struct Inner {
    pod: Arc<Pod>,
    address: Option<Ipv4Addr>,
    network: Option<Arc<OwnedFd>>,
    containers: BTreeMap<String, Arc<Running>>,
    /// Number of the latest life of each container, which names its log.
    lives: BTreeMap<String, u32>,
    /// Claims that it uses.
    claims: Vec<ClaimInUse>,
    /// Identities of the images of its containers, by name.
    images: BTreeMap<String, String>,
    /// Folders of the volumes that end with it.
    own_volumes: Vec<(PathSegment, PathBuf)>,
    /// Digests of the files that the node wrote into its volumes, by the name of the volume.
    given: BTreeMap<String, u64>,
    /// Digests of later files that it does not get, and that were reported.
    withheld: BTreeMap<String, u64>,
    /// The first of its ids on the machine.
    ids: Option<u32>,
    /// Effect of its policies; `None` without a proxy.
    enforced: Option<Enforced>,
    files: FileState,
    /// Credentials that its policies offer.
    offers: Arc<Vec<Offer>>,
    /// Name of the sandbox whose placeholders it has.
    placeholders: String,
}

impl Live {
    /// `uid` is that of `id`. The Pod ends with the node.
    pub(crate) fn new(id: PodId, uid: PathSegment, pod: Arc<Pod>, node: &Shutdown) -> Live {
        let inner = Inner { pod: pod.clone(), ..Inner::default() };
        Live {
            id,
            uid,
            updates: watch::channel(Update::Present(pod)).0,
            eviction: watch::channel(None).0,
            snapshots: tokio::sync::Mutex::default(),
            handler: OnceLock::new(),
            paused: Mutex::default(),
            generation: AtomicU64::new(0),
            service: OnceLock::new(),
            gate: Gate::default(),
            files_known: watch::channel(false).0,
            log_screen: Arc::default(),
            journal: OnceLock::new(),
            tokens: Tokens::default(),
            walks: Walks::new(node.child()),
            inner: Mutex::new(inner),
        }
    }

    /// A panic while the lock was held leaves whole values, so the lock stays usable.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the audit log has the record of a change of these containers, if changes wait for it.
    ///
    /// # Errors
    /// It cannot be written, so the change must not be made.
    pub(crate) async fn permitted(
        &self,
        containers: &[String],
        what: ContainerChange<'_>,
    ) -> Result<(), String> {
        match self.journal.get().and_then(|journal| journal.before(&self.id.uid, containers, what)) {
            Some(recorded) => recorded.await,
            None => Ok(()),
        }
    }

    /// Waits as [`Live::permitted`] does, for a change of all containers that run.
    ///
    /// # Errors
    /// As [`Live::permitted`].
    pub(crate) async fn permitted_all(&self, what: ContainerChange<'_>) -> Result<(), String> {
        let containers = self.containers();
        let names: Vec<_> = containers.iter().map(|running| running.blueprint.name.clone()).collect();
        self.permitted(&names, what).await
    }

    /// Takes what the API server says.
    pub(crate) fn update(&self, update: Update) {
        let ends = match &update {
            Update::Present(pod) => {
                self.inner().pod = pod.clone();
                pod.metadata.deletion_timestamp.is_some()
            }
            Update::Gone => true,
        };
        self.updates.send_replace(update);
        if ends {
            self.walks.cancel();
        }
    }

    /// Has its task end the containers and remove the folders.
    pub(crate) fn evict(&self, message: String) {
        self.eviction.send_replace(Some(message));
        self.walks.cancel();
    }

    /// Returns true while a snapshot of it is made: what it has is copied, and its processes may be paused.
    pub(crate) fn is_saving(&self) -> bool {
        self.snapshots.try_lock().is_err()
    }

    /// Returns true if its containers are to end for good.
    pub(crate) fn is_ending(&self) -> bool {
        let is_deleted = match &*self.updates.borrow() {
            Update::Present(pod) => pod.metadata.deletion_timestamp.is_some(),
            Update::Gone => true,
        };
        is_deleted || self.is_evicted()
    }

    /// Returns true if an eviction is due or in progress.
    pub(crate) fn is_evicted(&self) -> bool {
        self.eviction.borrow().is_some()
    }

    /// Resolves with the message when an eviction is due.
    pub(crate) async fn eviction(&self) -> String {
        let mut eviction = self.eviction.subscribe();
        match eviction.wait_for(Option::is_some).await.map(|message| message.clone()) {
            Ok(Some(message)) => message,
            _ => std::future::pending().await,
        }
    }

    /// The folders are removed.
    pub(crate) fn eviction_done(&self) {
        self.eviction.send_replace(None);
    }

    pub(crate) fn pod(&self) -> Arc<Pod> {
        self.inner().pod.clone()
    }

    pub(crate) fn set_address(&self, address: Ipv4Addr) {
        self.inner().address = Some(address);
    }

    pub(crate) fn address(&self) -> Option<Ipv4Addr> {
        self.inner().address
    }

    pub(crate) fn set_network(&self, network: Arc<OwnedFd>) {
        self.inner().network = Some(network);
    }

    /// The network namespace and the address, once there is a jail.
    pub(crate) fn network(&self) -> Option<(Arc<OwnedFd>, Ipv4Addr)> {
        let inner = self.inner();
        Some((inner.network.clone()?, inner.address?))
    }

    pub(crate) fn set_ids(&self, base: u32) {
        self.inner().ids = Some(base);
    }

    pub(crate) fn ids(&self) -> Option<u32> {
        self.inner().ids
    }

    /// Records the effect of its policies, which its task then writes into the status.
    /// Returns true if its policies are no longer enforced, or cannot be, as far as they are known.
    pub(crate) fn set_enforced(&self, enforced: Enforced) -> bool {
        let mut inner = self.inner();
        if inner.enforced.as_ref() == Some(&enforced) {
            return false;
        }
        let fails = enforced.fails() && !inner.enforced.as_ref().is_some_and(Enforced::fails);
        inner.enforced = Some(enforced);
        drop(inner);
        self.updates.send_modify(|_| ());
        fails
    }

    /// Sets the credentials that its policies offer, and the name of the sandbox whose placeholders it has. Its task then gives
    /// its containers their placeholders.
    pub(crate) fn set_offers(&self, offers: Vec<Offer>, placeholders: String) {
        let mut inner = self.inner();
        inner.placeholders = placeholders;
        if *inner.offers != offers {
            inner.offers = Arc::new(offers);
            drop(inner);
            self.updates.send_modify(|_| ());
        }
    }

    /// Name of the sandbox whose placeholders it has.
    pub(crate) fn placeholders(&self) -> String {
        self.inner().placeholders.clone()
    }

    /// Returns the credentials that its policies offer: the same object as long as they do not change.
    pub(crate) fn offers(&self) -> Arc<Vec<Offer>> {
        self.inner().offers.clone()
    }

    pub(crate) fn enforced(&self) -> Option<Enforced> {
        self.inner().enforced.clone()
    }

    /// Sets the rules for files that its policies require. Returns what is not enforced of them.
    pub(crate) fn require_files(&self, files: Arc<Files>) -> Option<Unenforced> {
        let mut inner = self.inner();
        let problem = inner.files.problems.values().next().cloned().map(Unenforced::Refused);
        let taken = inner.files.taken.as_ref().filter(|taken| !Arc::ptr_eq(taken, &files));
        let problem = problem.or_else(|| taken?.unenforced(&files));
        inner.files.required = files;
        drop(inner);
        self.files_known.send_replace(true);
        problem
    }

    /// Waits until the rules for files are known.
    pub(crate) async fn files_known(&self) {
        // The sender is in this object.
        let _ = self.files_known.subscribe().wait_for(|known| *known).await;
    }

    /// Returns the rules for files of a container that starts: those of the first one, or those that are required now.
    pub(crate) fn files(&self) -> Arc<Files> {
        let inner = self.inner();
        inner.files.taken.as_ref().unwrap_or(&inner.files.required).clone()
    }

    /// Records the rules with which a container runs.
    pub(crate) fn set_files(&self, files: Arc<Files>) {
        self.inner().files.taken.get_or_insert(files);
    }

    /// Returns a description of the files that are closed, if any are.
    pub(crate) fn closed_files(&self) -> Option<String> {
        self.files().summary()
    }

    /// Sets why a container cannot be started with its rules for files.
    pub(crate) fn set_file_problem(&self, container: &str, problem: Option<String>) {
        let problems = &mut self.inner().files.problems;
        match problem {
            Some(problem) => problems.insert(container.to_owned(), problem),
            None => problems.remove(container),
        };
    }

    /// Records what its volumes are made of.
    pub(crate) fn set_volumes(&self, claims: Vec<ClaimInUse>, given: BTreeMap<String, u64>) {
        let mut inner = self.inner();
        (inner.claims, inner.given) = (claims, given);
    }

    /// Records the folders of the volumes that end with it.
    pub(crate) fn set_own_volumes(&self, volumes: Vec<(PathSegment, PathBuf)>) {
        self.inner().own_volumes = volumes;
    }

    pub(crate) fn own_volumes(&self) -> Vec<(PathSegment, PathBuf)> {
        self.inner().own_volumes.clone()
    }

    /// Records the identity of the image of a container.
    pub(crate) fn set_image(&self, container: &str, id: &str) {
        self.inner().images.insert(container.to_owned(), id.to_owned());
    }

    pub(crate) fn image_id(&self, container: &str) -> Option<String> {
        self.inner().images.get(container).cloned()
    }

    /// Records that its processes are paused, or are not any more.
    pub(crate) fn set_paused(&self, paused: bool) {
        let new = if paused { Pause::Now } else { Pause::Until(Instant::now()) };
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// Returns true if a probe may have failed because its processes were paused.
    pub(crate) fn was_paused(&self) -> bool {
        match *self.paused.lock().unwrap_or_else(PoisonError::into_inner) {
            Pause::Never => false,
            Pause::Now => true,
            Pause::Until(end) => end.elapsed() < PAUSED_PROBES,
        }
    }

    /// Number of the last restore of its containers; 0 if there was none in this life of the node.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Records the number of a restore.
    pub(crate) fn set_generation(&self, number: u64) {
        self.generation.fetch_max(number, Ordering::Relaxed);
    }

    /// Name of its handler, as a RuntimeClass has it.
    pub(crate) fn handler_name(&self) -> &'static str {
        match self.handler.get() {
            Some(Handler::Gvisor) => "gvisor",
            Some(Handler::Native) | None => "hutch",
        }
    }

    /// Returns true if its containers have ended for good.
    pub(crate) fn has_ended(&self) -> bool {
        let pod = self.pod();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// Digests of the files that the node wrote into its volumes.
    pub(crate) fn given(&self) -> BTreeMap<String, u64> {
        self.inner().given.clone()
    }

    pub(crate) fn set_given(&self, volume: &str, digest: u64) {
        self.inner().given.insert(volume.to_owned(), digest);
    }

    /// Records the digest of files that a volume does not get. Returns true the first time.
    pub(crate) fn withhold(&self, volume: &str, digest: u64) -> bool {
        self.inner().withheld.insert(volume.to_owned(), digest) != Some(digest)
    }

    pub(crate) fn claims(&self) -> Vec<ClaimInUse> {
        self.inner().claims.clone()
    }

    /// Records that a container runs.
    pub(crate) fn began(&self, name: &str, running: Arc<Running>) {
        self.inner().containers.insert(name.to_owned(), running);
    }

    /// The latest life of a container, whose log is of interest even when it did not start.
    pub(crate) fn set_life(&self, name: &str, life: u32) {
        self.inner().lives.insert(name.to_owned(), life);
    }

    pub(crate) fn life(&self, name: &str) -> Option<u32> {
        self.inner().lives.get(name).copied()
    }

    pub(crate) fn ended(&self, name: &str) {
        self.inner().containers.remove(name);
    }

    pub(crate) fn container(&self, name: &str) -> Option<Arc<Running>> {
        self.inner().containers.get(name).cloned()
    }

    /// All containers that run.
    pub(crate) fn containers(&self) -> Vec<Arc<Running>> {
        self.inner().containers.values().cloned().collect()
    }

    /// Kills all containers; how that went shows in their ends.
    pub(crate) fn kill_all(&self) {
        self.containers().iter().for_each(|running| running.container.kill());
    }

    /// Releases everything that runs.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner();
        let containers = std::mem::take(&mut inner.containers);
        inner.network = None;
        drop(inner);
        for running in containers.values() {
            running.container.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_are_no_longer_enforced_are_reported_once() {
        let id = PodId { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let live = Live::new(id, PathSegment::label("u").unwrap(), Arc::default(), &Shutdown::new());
        let set = |holds, reason, message: &str| {
            live.set_enforced(Enforced { holds, reason, message: message.to_owned() })
        };
        for (holds, reason, message, reported) in [
            (false, PENDING, "a", false),
            (true, "Enforced", "a", false),
            (false, "PolicyNotFound", "a", true),
            (false, "PolicyNotFound", "b", false),
            (false, PENDING, "b", false),
            (false, "PolicyNotEnforceable", "b", true),
            (true, "Enforced", "b", false),
        ] {
            assert_eq!(set(holds, reason, message), reported, "{reason} {message}");
        }
    }

    #[test]
    fn each_change_of_a_volume_is_withheld_once() {
        let id = PodId { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let live = Live::new(id, PathSegment::label("u").unwrap(), Arc::default(), &Shutdown::new());
        let first = [("v", 1), ("v", 1), ("w", 1), ("v", 2), ("v", 2)]
            .map(|(name, digest)| live.withhold(name, digest));
        assert_eq!(first, [true, false, true, true, false]);
    }

    #[test]
    fn pod_that_ends_is_not_saved_and_one_that_is_saved_is_known() {
        let id = PodId { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let live = Live::new(id, PathSegment::label("u").unwrap(), Arc::default(), &Shutdown::new());
        assert!(!live.is_saving() && !live.is_ending());
        let saving = live.snapshots.try_lock().unwrap();
        assert!(live.is_saving());
        drop(saving);
        assert!(!live.is_saving());
        live.evict(String::new());
        assert!(live.is_ending());
        live.eviction_done();
        assert!(!live.is_ending());
        live.update(Update::Gone);
        assert!(live.is_ending());
    }

    #[test]
    fn walks_end_when_the_pod_is_to_end() {
        let deleted = |pod: &mut Pod| {
            pod.metadata.deletion_timestamp = serde_json::from_str("\"2026-01-01T00:00:00Z\"").ok()
        };
        let end: [fn(&Live, Pod, &Shutdown); 4] = [
            |live, pod, _| live.update(Update::Present(Arc::new(pod))),
            |live, _, _| live.update(Update::Gone),
            |live, _, _| live.evict(String::new()),
            |_, _, node| node.trigger(),
        ];
        for end in end {
            let (node, mut pod) = (Shutdown::new(), Pod::default());
            let id = PodId { namespace: "n".into(), name: "p".into(), uid: "u".into() };
            let live = Live::new(id, PathSegment::label("u").unwrap(), Arc::new(pod.clone()), &node);
            live.update(Update::Present(Arc::new(pod.clone())));
            assert!(!live.walks.are_over());
            deleted(&mut pod);
            end(&live, pod, &node);
            assert!(live.walks.are_over());
        }
    }
}
