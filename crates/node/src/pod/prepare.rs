//! Preparations before the first container of a Pod: a handler, an address, its volumes.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, TryFutureExt};
use hutch_api::state::{self, RESTORE_FAILED};
use hutch_image::PathSegment;
use hutch_jail::{IdRange, NetworkPlan};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::beginning::report_anew;
use super::plan::RestartPolicy;
use super::state::{Life, Role, State};
use super::{HAPPENINGS, Outcome, Slot, Worker, outcome_of, restore};
use crate::admission::{self, Choice, Refusal};
use crate::claims;
use crate::config::{Bundle, Handler};
use crate::disk;
use crate::environment;
use crate::live::{Live, Update};
use crate::oci::Runsc;
use crate::places::{PodPlaces, make_private};
use crate::runtime::{self, NewSandbox, PodSandbox, SandboxPlan};
use crate::security;
use crate::shared::{PolicyNews, Shared};
use crate::snapshot::{Begin, Restoring};
use crate::trust;
use crate::volumes::{self, Prepared, Surroundings};
use crate::{capacity, cordon, snapshot};

/// First wait before what hindered a Pod is tried again.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Maximum time until the rules for files are known.
const POLICIES: Duration = Duration::from_secs(10);
/// Longest wait.
const LAST_RETRY: Duration = Duration::from_secs(15);
/// The same for a Pod that cannot begin with its snapshot. It may only wait until that is complete.
const LAST_RESTORE: Duration = Duration::from_secs(30);

/// Reason of a Pod for which the node has no room.
const FAILED_SCHEDULING: &str = "FailedScheduling";

/// The name server of a Pod is its proxy, which answers at any address. The Pod's own settings for DNS have no effect.
const RESOLV_CONF: &str = "nameserver 198.18.0.1\noptions timeout:1 attempts:1\n";

/// Prepares a Pod, as often as it takes. The error is why the work on it is over.
pub(super) async fn prepare(
    node: &Arc<Shared>,
    live: &Arc<Live>,
    updates: &mut watch::Receiver<Update>,
) -> Result<Worker, Outcome> {
    let mut retry = FIRST_RETRY;
    let mut worker = None;
    loop {
        if node.shutdown.is_triggered() {
            return Err(Outcome::Stopping);
        }
        if let Some(outcome) = outcome_of(updates) {
            return Err(outcome);
        }
        // Before the attempt, so that what is given back meanwhile is not missed. Room is not what a restore wants.
        let freed = node.capacity.freed();
        let pod = live.pod();
        let refusal = match attempt(node, live, &pod).await {
            Ok(worker) => return Ok(worker),
            Err(refusal) => refusal,
        };
        // An attempt that the end of the Pod cut short is no failure.
        if live.walks.are_over() && !live.is_evicted() {
            continue;
        }
        node.events.warning(&pod, refusal.event(), refusal.message.clone());
        // Each attempt may copy whole volumes.
        let restores = refusal.reason == RESTORE_FAILED;
        let last = if restores { LAST_RESTORE } else { LAST_RETRY };
        // The Pod shows that it is known here and waits.
        let waiting = worker.get_or_insert_with(|| Waiting::new(&pod));
        waiting.publish(node, live, &pod, &refusal).await;
        tokio::select! {
            () = node.shutdown.wait() => return Err(Outcome::Stopping),
            changed = updates.changed() => if changed.is_err() { return Err(Outcome::Gone) },
            message = live.eviction() => return Err(Outcome::Evicted(message)),
            () = freed, if !restores => {}
            () = tokio::time::sleep(retry) => retry = (retry * 2).min(last),
        }
    }
}

fn no_sandbox(message: impl ToString) -> Refusal {
    let message = format!("Failed to create pod sandbox: {}", message.to_string());
    Refusal { reason: admission::NO_SANDBOX, message }
}

/// Takes the room of a Pod on the node, as a scheduler would.
fn schedule(node: &Shared, live: &Live, pod: &Pod, spec: &PodSpec) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal { reason: FAILED_SCHEDULING, message });
    if node.disk_pressure() && !disk::is_known(&node.places.pod(&live.uid)) {
        let taint = "{node.kubernetes.io/disk-pressure: }";
        return refuse(capacity::unschedulable(&format!("1 node(s) had untolerated taint {taint}")));
    }
    let ran_before = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
    if node.capacity.is_cordoned() && !ran_before && !cordon::is_tolerated(spec) {
        return refuse(capacity::unschedulable(cordon::WHY));
    }
    if !ran_before {
        capacity::check_kinds(spec).or_else(refuse)?;
    }
    node.capacity.take(&live.id.uid, capacity::requests(spec), ran_before).or_else(refuse)
}

async fn attempt(node: &Arc<Shared>, live: &Arc<Live>, pod: &Arc<Pod>) -> Result<Worker, Refusal> {
    let spec = pod.spec.clone().unwrap_or_default();
    let choice = choose(node, &spec).await?;
    if let Choice::Embedded(kind) = choice {
        // A second preparation finds the same.
        let _ = live.service.set(kind);
    } else {
        admission::check(&spec)?;
        schedule(node, live, pod, &spec)?;
    }
    let begin = begin(node, live, pod, choice).await?;
    let before = pod.status.as_ref().and_then(|s| s.pod_ip.as_deref()).and_then(|ip| ip.parse().ok());
    // A Sandbox's next Pod, after a suspend, has the same address. The uid alone may be claimed in any namespace.
    let sandbox = hutch_api::owner::sandbox(pod.as_ref());
    let sandbox = sandbox.map(|owner| format!("{}/{}", live.id.namespace, owner.uid));
    let lease = node.addresses().lease_of(&live.id.uid, before, sandbox.as_deref());
    let lease = lease.ok_or_else(|| no_sandbox("no free Pod address is left on this node"))?;
    live.set_address(lease);
    let ids = node.id_ranges.take().map_err(no_sandbox)?;
    live.set_ids(ids.base());
    let files = async {
        match choice {
            Choice::Jail(_) => prepare_files(node, live, pod, &spec, lease).await,
            Choice::Embedded(_) => Ok(BTreeMap::new()),
        }
    };
    // At the same time: the launcher makes the network namespace while files are written.
    let sandbox = create_sandbox(node, live, pod, choice, lease, ids).map_err(no_sandbox);
    let (volumes, sandbox, ()) = tokio::try_join!(files, sandbox, policies(node, live, choice))?;
    let policy = RestartPolicy::parse(spec.restart_policy.as_deref());
    let (containers, mut states) = states(&spec);
    if matches!(choice, Choice::Jail(_)) {
        restore::restore(&mut states, pod, policy, Timestamp::now());
    }
    let (restoring, anew) = fill(node, live, pod, begin).await?;
    if restoring.as_ref().is_some_and(|restoring| restoring.has_memory()) {
        restore::skip_init(&mut states, Timestamp::now());
    }
    let (report, happenings) = mpsc::channel(HAPPENINGS);
    let start_time = pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|time| time.0);
    Ok(Worker {
        node: node.clone(),
        live: live.clone(),
        pod: pod.clone(),
        spec,
        policy,
        choice,
        address: lease,
        volumes,
        sandbox,
        restored: restored_from(pod),
        restoring,
        anew,
        slots: states.iter().map(|_| Slot::default()).collect(),
        containers,
        states,
        start_time: start_time.unwrap_or_else(Timestamp::now),
        written: None,
        eager_until: None,
        rewrite_at: None,
        late_env_at: None,
        happenings,
        report,
        updates: live.updates.subscribe(),
        phases: live.gate.phases(),
        frozen: None,
        sleeper: JoinSet::new(),
    })
}

/// Writes what the snapshot of a Pod has of its volumes. Returns the snapshot, or why the Pod begins without it.
async fn fill(
    node: &Shared,
    live: &Live,
    pod: &Pod,
    begin: Begin,
) -> Result<(Option<Arc<Restoring>>, Option<String>), Refusal> {
    let refuse = |message: String| Refusal { reason: RESTORE_FAILED, message };
    let why = match begin {
        Begin::Plain => return Ok((None, None)),
        Begin::Restored(restoring) => match restoring.volumes(live).await {
            Ok(()) => {
                if let Some(egress) = &node.config.egress {
                    egress.set_names(&live.id.uid, restoring.names().to_vec());
                }
                return Ok((Some(restoring), None));
            }
            Err(problem) if !(problem.lasts && snapshot::is_optional(pod)) => {
                return Err(refuse(problem.why));
            }
            Err(problem) => problem.why,
        },
        Begin::Anew(why) => why,
    };
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    if state::started_anew(conditions.unwrap_or_default()).is_none() {
        // An attempt in an earlier life of the node may have written a part.
        snapshot::empty_volumes(live).await.map_err(refuse)?;
        report_anew(node, pod, &why);
    }
    Ok((None, Some(why)))
}

/// Begins the work on a Pod; returns the snapshot with which it starts, if it names one.
async fn begin(node: &Arc<Shared>, live: &Arc<Live>, pod: &Pod, choice: Choice) -> Result<Begin, Refusal> {
    let Choice::Jail(handler) = choice else { return Ok(Begin::Plain) };
    if node.snapshots.has_ended(&live.id.uid) {
        return Err(no_sandbox("the memory of its processes is on disk, and it is about to be deleted"));
    }
    // A second preparation finds the same.
    let _ = live.handler.set(handler);
    let begin = snapshot::find(node, live, pod, handler).await?;
    node.tell_policies(PolicyNews::Starts(live.clone()));
    if let Begin::Restored(restoring) = &begin {
        // Not beside other steps, whose failure would leave it without this task.
        restoring.fill_claims(node, live, pod).await?;
    }
    Ok(begin)
}

/// Returns the snapshot from which the containers of the Pod have begun in an earlier life of the node, as its condition shows
/// it.
pub(super) fn restored_from(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    state::begun_with(conditions).map(str::to_owned)
}

/// Chooses the handler of a Pod.
async fn choose(node: &Shared, spec: &PodSpec) -> Result<Choice, Refusal> {
    if spec.runtime_class_name.is_none() {
        return admission::choose(spec, &node.config.runtime_classes, Runsc::usable);
    }
    let mut classes = node.config.runtime_classes.clone();
    if let Some(name) = spec.runtime_class_name.as_ref().filter(|name| !classes.contains_key(*name)) {
        let class = Api::<RuntimeClass>::all(node.client.clone()).get_opt(name).await.map_err(no_sandbox)?;
        let handler = class.and_then(|class| handler_of(&class.handler, &classes));
        classes.extend(handler.map(|handler| (name.clone(), handler)));
    }
    // The program is started to learn its features.
    let spec = spec.clone();
    let chosen = move || admission::choose(&spec, &classes, Runsc::usable);
    tokio::task::spawn_blocking(chosen).await.map_err(no_sandbox)?
}

/// Returns what this node runs for the handler of a class that a user has made: the same as for the class of that name.
fn handler_of(handler: &str, classes: &BTreeMap<String, Handler>) -> Option<Handler> {
    let name = if handler == "runsc" { Handler::Gvisor.name() } else { handler };
    classes.get(name).copied()
}

/// Waits until the rules for files of a Pod are known.
async fn policies(node: &Shared, live: &Live, choice: Choice) -> Result<(), Refusal> {
    if node.policies.is_none() || matches!(choice, Choice::Embedded(_)) {
        return Ok(());
    }
    let known = tokio::time::timeout(POLICIES, live.files_known()).await;
    known.map_err(|_| no_sandbox("its policies are not known yet"))
}

/// Writes the volumes of a Pod, and the files by which names are resolved.
async fn prepare_files(
    node: &Arc<Shared>,
    live: &Arc<Live>,
    pod: &Arc<Pod>,
    spec: &PodSpec,
    address: Ipv4Addr,
) -> Result<BTreeMap<String, Prepared>, Refusal> {
    let address = address.to_string();
    let trust = async {
        let Some(egress) = &node.config.egress else { return Ok(None) };
        let bundle = egress.trust(&live.id.uid, &trust::sandbox_of(&live.id, pod)).await;
        bundle.map(Some).map_err(no_sandbox)
    };
    let volumes = prepare_volumes(node, live, pod, spec, &address);
    let (volumes, bundle) = tokio::try_join!(volumes, trust)?;
    let (place, text) = (node.places.pod(&live.uid), hosts(pod, &address));
    let written = tokio::task::spawn_blocking(move || write_files(&place, &text, bundle.as_ref())).await;
    written.map_err(no_sandbox)?.map_err(no_sandbox)?;
    Ok(volumes)
}

/// Creates the sandbox of a Pod, unless a service of this process answers for it.
async fn create_sandbox(
    node: &Shared,
    live: &Arc<Live>,
    pod: &Pod,
    choice: Choice,
    address: Ipv4Addr,
    ids: IdRange,
) -> Result<Option<Arc<dyn PodSandbox>>, String> {
    let Choice::Jail(handler) = choice else { return Ok(None) };
    let hostname = environment::hostname(pod);
    let address = IpAddr::V4(address);
    let network = match &node.config.egress {
        Some(egress) => egress.plan(address),
        None => NetworkPlan::closed(vec![address]),
    };
    let runtime = runtime::of(handler, &node.launcher);
    let created = runtime.create_sandbox(SandboxPlan { hostname, ids, network }).await;
    let NewSandbox { sandbox, listeners } = created.map_err(|error| error.message)?;
    node.serve_network(live, listeners);
    Ok(Some(sandbox))
}

/// Containers and their fresh states, init containers first.
pub(super) fn states(spec: &PodSpec) -> (Vec<Container>, Vec<State>) {
    let init = spec.init_containers.iter().flatten().map(|container| {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        (container.clone(), if sidecar { Role::Sidecar } else { Role::Init })
    });
    let main = spec.containers.iter().map(|container| (container.clone(), Role::Main));
    let all = init.chain(main).map(|(container, role)| {
        let mut state = State::new(&container.name, role, container.image.as_deref().unwrap_or(""));
        state.has_startup_probe = container.startup_probe.is_some();
        state.has_readiness_probe = container.readiness_probe.is_some();
        (container, state)
    });
    all.unzip()
}

async fn prepare_volumes(
    node: &Arc<Shared>,
    live: &Live,
    pod: &Pod,
    spec: &PodSpec,
    pod_ip: &str,
) -> Result<BTreeMap<String, Prepared>, Refusal> {
    let failed = |message: String| Refusal { reason: "FailedMount", message };
    let owner = security::volume_owner(spec).map_err(failed)?;
    let used = Mutex::new(Vec::new());
    // From then on the folder of the claim stays.
    let reserve = |claim| {
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        used.push(claim);
        node.use_claims(live, used.clone())
    };
    let in_memory =
        |claim| async move { claims::provide(node, &claim).await.map(|provided| provided.folder) }.boxed();
    let allocatable = node.capacity.total().memory_bytes;
    let memory_bytes = volumes::memory_bytes(spec, &node.config.defaults, allocatable).map_err(failed)?;
    let surroundings = Surroundings {
        pod: node.places.pod(&live.uid),
        persistent: &node.places.volumes,
        memory_bytes,
        owner,
        reserve: &reserve,
        in_memory: &in_memory,
        tokens: &live.tokens,
        host_paths: &node.host_paths,
        walks: (&live.walks, &node.walks),
    };
    let facts = volumes::facts(node, pod, pod_ip);
    let (mut prepared, mut given) = (BTreeMap::new(), BTreeMap::new());
    for volume in spec.volumes.iter().flatten() {
        let made = volumes::prepare(&node.client, &live.id.namespace, volume, &surroundings, &facts).await;
        let made = made.map_err(failed)?;
        given.extend(made.digest.map(|digest| (volume.name.clone(), digest)));
        prepared.insert(volume.name.clone(), made.prepared);
    }
    let own = spec.volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some());
    let own = own.filter_map(|volume| match prepared.get(&volume.name) {
        Some(Prepared::Folder { path, .. }) => Some((PathSegment::label(&volume.name)?, path.clone())),
        _ => None,
    });
    live.set_own_volumes(own.collect());
    live.set_volumes(used.into_inner().unwrap_or_else(PoisonError::into_inner), given);
    Ok(prepared)
}

/// `/etc/hosts` of the Pod, the same for all of its containers.
fn hosts(pod: &Pod, pod_ip: &str) -> String {
    let host = crate::environment::hostname(pod);
    let mut text =
        format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{pod_ip}\t{host}\n");
    for alias in pod.spec.iter().flat_map(|s| s.host_aliases.iter().flatten()) {
        let names = alias.hostnames.as_deref().unwrap_or(&[]).join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    text
}

fn write_files(place: &PodPlaces, hosts: &str, bundle: Option<&Bundle>) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    make_private(&place.disk)?;
    make_private(&place.files())?;
    for (path, text) in [(place.hosts(), hosts), (place.resolv_conf(), RESOLV_CONF)] {
        std::fs::write(&path, text)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))?;
    }
    if let Some(Bundle { public, own }) = bundle {
        let mut file = std::fs::File::create(place.bundle())?;
        file.write_all(public)?;
        file.write_all(own.as_bytes())?;
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

/// The status of a Pod that cannot be prepared yet.
struct Waiting {
    states: Vec<State>,
    written: Option<String>,
    start_time: Timestamp,
}

impl Waiting {
    fn new(pod: &Pod) -> Waiting {
        let states = states(&pod.spec.clone().unwrap_or_default()).1;
        Waiting { states, written: None, start_time: Timestamp::now() }
    }

    async fn publish(&mut self, node: &Shared, live: &Live, pod: &Pod, refusal: &Refusal) {
        use kube::api::{Patch, PatchParams};
        if self.written.as_deref() == Some(refusal.message.as_str()) {
            return;
        }
        for state in &mut self.states {
            let reason = refusal.of_containers();
            let message = (reason != "ContainerCreating").then(|| refusal.message.clone());
            state.life = Life::Waiting { reason, message };
        }
        let now = Timestamp::now();
        let plan = super::plan::plan(&self.states, RestartPolicy::Always, now);
        let start_time = self.start_time;
        // It stays: the Pod would begin with its snapshot a second time.
        let restored = restored_from(pod);
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone());
        let facts = super::status::Facts {
            previous: conditions.as_deref().unwrap_or_default(),
            restored: restored.as_deref(),
            anew: state::started_anew(conditions.as_deref().unwrap_or_default()),
            ..super::status::Facts::of(pod, start_time, now)
        };
        let status = match refusal.reason {
            FAILED_SCHEDULING => super::status::unscheduled(&refusal.message, &facts),
            _ => super::status::status(&self.states, &plan, &facts),
        };
        let change = serde_json::json!({"metadata": {"uid": live.id.uid}, "status": status});
        let api: kube::Api<Pod> = kube::Api::namespaced(node.client.clone(), &live.id.namespace);
        match api.patch_status(&live.id.name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => self.written = Some(refusal.message.clone()),
            Err(error) => {
                tracing::debug!(pod = live.id.name, %error, "a waiting Pod's status was not written")
            }
        }
    }
}
