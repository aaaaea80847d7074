//! Memory of a Sandbox that is suspended with it: a snapshot that the node makes before the Pod ends, and from which the next
//! Pod starts, again until it was Ready.

use hutch_api::state::{
    Afterwards, Content, KEEPS_FILES, KEEPS_MEMORY, MEMORY_NOT_KEPT, SandboxSnapshot, SandboxSnapshotSpec,
    SnapshotSource, is_suspend, reason, restored_from, started_anew, suspend_name,
};
use hutch_api::{Sandbox, annotation};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};

use super::plan::{Action, Part, Plan};
use super::{Located, Observed, sleep};
use crate::owner;
use crate::view::PodView;

/// Time after which a suspend whose snapshot failed is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(60);
/// Message of the condition `Suspended`, and of an event, with the reason `MemoryNotKept`.
pub(super) const NOT_KEPT_MESSAGE: &str =
    "Sandbox is suspended without the memory of its processes. It will begin anew";

/// State of the snapshot.
enum State<'a> {
    /// The node works on it.
    Working,
    /// It holds the memory of the Pod of this uid. Whether the image is still there shows when it is restored.
    Complete { pod: &'a str },
    /// It failed: the Pod runs as before.
    Failed { why: &'a str, since: Timestamp },
}

fn state(snapshot: &SandboxSnapshot) -> State<'_> {
    let status = snapshot.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let Some(ready) = ready else { return State::Working };
    match ready.reason.as_str() {
        reason::PENDING | reason::IN_PROGRESS => State::Working,
        reason::COMPLETED | reason::LOST => {
            State::Complete { pod: status.and_then(|status| status.pod_uid.as_deref()).unwrap_or_default() }
        }
        _ => State::Failed { why: &ready.message, since: ready.last_transition_time.0 },
    }
}

/// Plans the end of the Pod of a suspended Sandbox.
pub(super) fn suspend(observed: &Observed, pod: &PodView, plan: &mut Plan, now: Timestamp) {
    let keeps = observed.sandbox.setting(annotation::SUSPEND_KEEPS);
    let (wanted, runs) = (keeps == Some(KEEPS_MEMORY), phase(pod) == "Running");
    if wanted && runs && !observed.snapshots {
        let text = format!(
            "annotation {}: memory is kept by `hutch up` alone ({}); the Sandbox is not suspended",
            annotation::SUSPEND_KEEPS,
            reason::NOT_SUPPORTED_HERE
        );
        plan.problems.push((Part::Pod, text));
        return;
    }
    let delete = Action::DeletePod(pod.name_any());
    let uid = pod.uid().unwrap_or_default();
    let Some(snapshot) = &observed.snapshot else {
        let action = if wanted && runs { make(&observed.sandbox) } else { delete };
        plan.actions.push(action);
        return;
    };
    match state(snapshot) {
        State::Working => {}
        State::Complete { pod: saved } if saved == uid => plan.actions.push(delete),
        // It is used up: the Pod has begun with it, or without it, and lives on.
        State::Complete { .. } if is_used_up(pod, snapshot) => plan.actions.push(drop_it(snapshot)),
        // The Pod could not begin with it, and it is given up.
        State::Complete { .. } if keeps == Some(KEEPS_FILES) => {
            plan.actions.extend([drop_it(snapshot), delete])
        }
        // It may be repaired.
        State::Complete { .. } => plan.actions.push(delete),
        State::Failed { .. } if !wanted => plan.actions.extend([drop_it(snapshot), delete]),
        State::Failed { why, since } => {
            let again = since.checked_add(RETRY).is_ok_and(|again| again <= now);
            plan.actions.extend(again.then(|| drop_it(snapshot)));
            plan.problems.push((Part::Pod, format!("{MEMORY_NOT_KEPT}: {why}")));
        }
    }
}

/// Returns when the memory of a Sandbox that stays suspended is removed.
pub(super) fn removal(observed: &Observed) -> Option<Timestamp> {
    let snapshot = observed.snapshot.as_ref().filter(|one| matches!(state(one), State::Complete { .. }))?;
    if !observed.is_suspended() || !matches!(observed.locate(), Located::Missing) {
        return None;
    }
    let after = sleep::drop_memory_after(&observed.sandbox).ok()??;
    let conditions = snapshot.status.as_ref().and_then(|status| status.conditions.as_deref())?;
    let since = conditions.iter().find(|condition| condition.type_ == "Ready")?.last_transition_time.0;
    since.checked_add(SignedDuration::try_from(after).ok()?).ok()
}

/// Plans the removal of memory that was kept for long enough.
pub(super) fn remove_when_due(observed: &Observed, plan: &mut Plan, now: Timestamp) {
    if let Some(snapshot) =
        observed.snapshot.as_ref().filter(|_| removal(observed).is_some_and(|at| at <= now))
    {
        plan.actions.push(Action::DropMemory(snapshot.name_any()));
    }
}

/// Plans what becomes of the snapshot when the Sandbox runs. Returns false while the Pod is not planned.
pub(super) fn resume(observed: &Observed, plan: &mut Plan) -> bool {
    let Some(snapshot) = &observed.snapshot else { return without(observed, plan) };
    let pod = match observed.locate() {
        Located::Owned(pod) => pod,
        Located::Missing => match state(snapshot) {
            State::Complete { .. } => return true,
            // The node reports that there is no Pod, or that the snapshot is complete after all.
            State::Working => return false,
            State::Failed { .. } => {
                plan.actions.push(drop_it(snapshot));
                return true;
            }
        },
        Located::Foreign(_) | Located::Several(_) => return true,
    };
    match state(snapshot) {
        State::Working => false,
        // Its processes stay paused: it ends as a suspend would end it, and the next Pod begins with its memory.
        State::Complete { pod: saved } if pod.uid().as_deref() == Some(saved) => {
            if pod.metadata.deletion_timestamp.is_none() {
                plan.actions.push(Action::DeletePod(pod.name_any()));
            }
            false
        }
        State::Complete { .. } => {
            if is_used_up(&pod, snapshot) {
                plan.actions.push(drop_it(snapshot));
            }
            true
        }
        State::Failed { .. } => {
            plan.actions.push(drop_it(snapshot));
            true
        }
    }
}

/// Ends a Pod that waits for memory which was given up: it would wait forever. Returns false if it ends.
fn without(observed: &Observed, plan: &mut Plan) -> bool {
    let Located::Owned(pod) = observed.locate() else { return true };
    let waits = pod.annotations().get(annotation::RESTORE_FROM).is_some_and(|name| is_suspend(name))
        && restored(&pod).is_none()
        && started_anew(pod.conditions()).is_none();
    if waits && pod.metadata.deletion_timestamp.is_none() {
        plan.actions.push(Action::DeletePod(pod.name_any()));
    }
    !waits
}

/// Returns the uid of the snapshot with which the Pod has begun and was Ready.
fn restored(pod: &PodView) -> Option<&str> {
    restored_from(pod.conditions())
}

/// Returns true while the processes of a Sandbox that runs again are paused for a suspend before.
pub(super) fn is_saving(observed: &Observed) -> bool {
    let (Located::Owned(pod), Some(snapshot)) = (observed.locate(), &observed.snapshot) else { return false };
    match state(snapshot) {
        State::Working => true,
        State::Complete { pod: saved } => pod.uid().as_deref() == Some(saved),
        State::Failed { .. } => false,
    }
}

/// Memory of a suspended Sandbox without a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// It is on the disk, or was not to be kept.
    AsWanted,
    /// The node may still write it: that the Pod has no object any more does not end its processes.
    Writing,
    /// It was to be kept, and is not there.
    Missing,
}

/// Returns the state of the memory of a suspended Sandbox without a Pod.
pub(super) fn of_suspended(observed: &Observed) -> Memory {
    match observed.snapshot.as_deref().map(state) {
        Some(State::Working) => Memory::Writing,
        Some(State::Complete { .. }) => Memory::AsWanted,
        Some(State::Failed { .. }) | None => {
            let wanted = observed.sandbox.setting(annotation::SUSPEND_KEEPS) == Some(KEEPS_MEMORY);
            if wanted && observed.snapshots { Memory::Missing } else { Memory::AsWanted }
        }
    }
}

/// Has a new Pod begin with the memory of a suspend, or else with the snapshot that is named for the Sandbox.
pub(super) fn begin(observed: &Observed, pod: &mut Pod) {
    let kept = observed.snapshot.as_ref().filter(|one| matches!(state(one), State::Complete { .. }));
    let named = || named(observed);
    if let Some(name) = kept.map(|one| one.name_any()).or_else(named).filter(|name| !name.is_empty()) {
        pod.metadata.annotations.get_or_insert_default().insert(annotation::RESTORE_FROM.into(), name);
    }
}

/// Returns the snapshot with which a new Pod begins without the memory of a suspend: the nearest to the Sandbox counts. An
/// empty name restores nothing.
fn named(observed: &Observed) -> Option<String> {
    let sandbox = observed.sandbox.as_ref();
    let own = sandbox.annotations().get(annotation::RESTORE_FROM).map(String::as_str);
    // On a cluster it is read by GKE.
    let of_gke = || sandbox.setting(annotation::POD_SNAPSHOT).filter(|_| observed.snapshots);
    let newest = || observed.newest.as_ref().and_then(|newest| newest.metadata.name.as_deref());
    let of_template = || sandbox.setting(annotation::RESTORE_FROM);
    own.or_else(of_gke).or_else(newest).or_else(of_template).map(str::to_owned)
}

/// Returns true if the Pod has begun with the snapshot and was Ready, or has begun anew because it could not be restored.
fn is_used_up(pod: &PodView, snapshot: &SandboxSnapshot) -> bool {
    let restored = restored(pod);
    let named = pod.annotations().get(annotation::RESTORE_FROM) == snapshot.metadata.name.as_ref();
    (restored.is_some() && restored == snapshot.metadata.uid.as_deref())
        || (named && started_anew(pod.conditions()).is_some())
}

fn phase(pod: &PodView) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn make(sandbox: &Sandbox) -> Action {
    let uid = sandbox.uid().unwrap_or_default();
    let source = SnapshotSource { sandbox: sandbox.name_any(), uid: Some(uid.clone()) };
    let (content, afterwards) = (Content::Full, Afterwards::Stop);
    let spec = SandboxSnapshotSpec { source, content, afterwards, volumes: None, ttl: None };
    let mut snapshot = SandboxSnapshot::new(&suspend_name(&uid), spec);
    let metadata = snapshot.meta_mut();
    metadata.namespace = sandbox.namespace();
    metadata.owner_references = Some(vec![owner::reference(sandbox)]);
    Action::CreateSnapshot(Box::new(snapshot))
}

fn drop_it(snapshot: &SandboxSnapshot) -> Action {
    Action::DeleteSnapshot(snapshot.name_any())
}
