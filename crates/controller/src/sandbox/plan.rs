//! Decides what to do about a Sandbox. Pure.

use hutch_api::state::SandboxSnapshot;
use hutch_api::{ShutdownPolicy, annotation, condition::message};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use serde_json::Value;

use super::{Located, Observed, expiry, memory, network, pod, service, sleep, volume};

/// Write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    CreateVolume(Box<PersistentVolumeClaim>),
    PatchVolume(String, Value),
    CreatePolicy(Box<NetworkPolicy>),
    PatchPolicy(String, Value),
    DeletePolicy(String),
    CreatePod(Box<Pod>),
    PatchPod(String, Value),
    /// Patches labels and annotations of a Pod that the Sandbox owns already: may wait for further changes.
    SyncPod(String, Value),
    DeletePod(String),
    CreateSnapshot(Box<SandboxSnapshot>),
    DeleteSnapshot(String),
    /// Deletes the memory of a suspended Sandbox, which was kept for long enough.
    DropMemory(String),
    CreateService(Box<Service>),
    PatchService(Value),
    DeleteService,
    /// Sets the annotation that names the Pod, or removes it.
    NotePodName(Option<String>),
    /// Sets that annotation to the Sandbox's own name, which is also the default: may wait.
    NoteOwnName,
    DeleteSandbox,
    /// Suspends the Sandbox, or wakes it.
    Sleep(Value),
}

/// Part of a Sandbox that an action or a problem concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Volumes,
    Pod,
    Service,
    Sandbox,
}

impl Action {
    pub(super) fn part(&self) -> Part {
        match self {
            Action::CreateVolume(_) | Action::PatchVolume(..) => Part::Volumes,
            // A Pod does not start before its network is closed.
            Action::CreatePolicy(_)
            | Action::PatchPolicy(..)
            | Action::DeletePolicy(_)
            | Action::CreatePod(_)
            | Action::PatchPod(..)
            | Action::SyncPod(..)
            | Action::DeletePod(_)
            | Action::CreateSnapshot(_)
            | Action::DeleteSnapshot(_)
            | Action::DropMemory(_)
            | Action::NotePodName(_)
            | Action::NoteOwnName => Part::Pod,
            Action::CreateService(_) | Action::PatchService(_) | Action::DeleteService => Part::Service,
            Action::DeleteSandbox | Action::Sleep(_) => Part::Sandbox,
        }
    }
}

/// Stage in the life of a Sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Has not expired.
    Live,
    /// Has expired, and its status does not report it yet.
    Expiring,
    /// Has expired: its Pod and Service are deleted, and the Sandbox is retained.
    Retained,
    /// Has expired, and is deleted.
    Deleted,
}

/// Actions for a Sandbox, and the problems that prevent others.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) stage: Stage,
    pub(super) actions: Vec<Action>,
    pub(super) problems: Vec<(Part, String)>,
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan { stage: Stage::Live, actions: Vec::new(), problems: Vec::new() };
    if !expiry::is_over(&observed.sandbox, now) {
        live(observed, &mut plan, now);
        sleep::plan(observed, &mut plan, now);
    } else if !expiry::is_announced(&observed.sandbox) {
        plan.stage = Stage::Expiring;
    } else {
        clear_away(observed, &mut plan);
    }
    plan
}

fn live(observed: &Observed, plan: &mut Plan, now: Timestamp) {
    volume::plan(observed, plan);
    if let Located::Several(count) = observed.locate() {
        plan.problems.push((Part::Pod, message::multiple_pods(count)));
        return;
    }
    let closed = network::plan(observed, plan);
    let noted = match observed.is_suspended() {
        true => suspend(observed, plan, now),
        false if closed && memory::resume(observed, plan) => pod::plan(observed, plan),
        false => None,
    };
    let current = observed.sandbox.annotations().get(annotation::POD_NAME);
    if let Some(noted) = noted
        && noted.as_ref() != current
    {
        let own = current.is_none() && noted == observed.sandbox.metadata.name;
        plan.actions.push(if own { Action::NoteOwnName } else { Action::NotePodName(noted) });
    }
    service::plan(observed, plan);
}

/// Plans the deletion of the Pod. Returns the value of the annotation, if known: the name stays until the Pod is gone.
fn suspend(observed: &Observed, plan: &mut Plan, now: Timestamp) -> Option<Option<String>> {
    let Located::Owned(pod) = observed.locate() else {
        memory::remove_when_due(observed, plan, now);
        return Some(None);
    };
    if pod.metadata.deletion_timestamp.is_none() {
        memory::suspend(observed, &pod, plan, now);
    }
    None
}

fn clear_away(observed: &Observed, plan: &mut Plan) {
    let pods = observed.owned_pods().into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    plan.actions.extend(pods.map(|pod| Action::DeletePod(pod.name_any())));
    if let Some(service) = observed.owned_service()
        && service.metadata.deletion_timestamp.is_none()
    {
        plan.actions.push(Action::DeleteService);
    }
    plan.stage = Stage::Retained;
    if observed.sandbox.spec.shutdown_policy == Some(ShutdownPolicy::Delete) {
        plan.stage = Stage::Deleted;
        plan.actions.push(Action::DeleteSandbox);
    }
}
