//! Decides the next step of a fork.

use hutch_api::condition::{FALSE, READY, TRUE, reason as of_sandbox};
use hutch_api::state::{
    self, Content, CredentialsOfFork, ForkChild, SandboxFork, SandboxForkStatus, SandboxSnapshot,
    SandboxSnapshotSpec, SnapshotSource, reason,
};
use hutch_api::{Sandbox, annotation, label, owner};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::ObjectMeta;

use super::Observed;
use crate::condition::{self, Verdict, whole_seconds};
use crate::owner::reference;

/// Phases of a Sandbox of a fork.
const PENDING: &str = "Pending";
const READY_PHASE: &str = "Ready";
const FAILED: &str = "Failed";
/// Reasons of a Sandbox that will not be ready without a change.
const ENDED: [&str; 4] =
    [of_sandbox::POD_FAILED, of_sandbox::POD_SUCCEEDED, of_sandbox::SANDBOX_EXPIRED, state::RESTORE_FAILED];

/// Next step of a fork.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) action: Action,
    /// Status, as it is before the step.
    pub(super) status: SandboxForkStatus,
}

/// Write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Nothing,
    Snapshot(Box<SandboxSnapshot>),
    Children(Vec<Sandbox>),
}

/// Returns true for a fork that has succeeded or failed: its Sandboxes live on their own.
pub(super) fn is_over(fork: &SandboxFork) -> bool {
    let conditions = fork.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    condition::find(conditions, READY).is_some_and(is_final)
}

fn is_final(ready: &Condition) -> bool {
    ready.status == TRUE || reason::is_final(&ready.reason)
}

/// Returns the name of the snapshot from which the forks start.
pub(super) fn snapshot_name(fork: &SandboxFork) -> String {
    fork.spec.source.snapshot.clone().unwrap_or_else(|| fork.name_any())
}

/// Returns the name of the Sandbox of which the forks are.
pub(super) fn source_name(fork: &SandboxFork, snapshot: Option<&SandboxSnapshot>) -> Option<String> {
    let of_snapshot = || snapshot.map(|snapshot| snapshot.spec.source.sandbox.clone());
    fork.spec.source.sandbox.clone().or_else(of_snapshot)
}

/// Adds the error of a step to the condition.
pub(super) fn explain(status: &mut SandboxForkStatus, error: &str) {
    let ready = status.conditions.iter_mut().flatten().find(|condition| condition.type_ == READY);
    if let Some(ready) = ready {
        ready.message = format!("{}; {error}", ready.message);
    }
}

/// Result of a check: the condition if the fork cannot go further.
type Checked<T> = Result<T, Verdict>;

fn never(reason: &str, message: impl Into<String>) -> Verdict {
    Verdict::new(FALSE, reason, message)
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let known = observed.fork.status.clone().unwrap_or_default();
    let (action, mut children, verdict) = match decide(observed, &known) {
        Ok((action, children, verdict)) => (action, children, verdict),
        Err(verdict) => (Action::Nothing, known.children.clone(), verdict),
    };
    if children.is_empty() {
        let pending = |name| ForkChild { name, phase: PENDING.to_owned(), ..ForkChild::default() };
        children = observed.fork.child_names().into_iter().map(pending).collect();
    }
    let mut conditions = known.conditions.unwrap_or_default();
    condition::set(&mut conditions, READY, verdict, observed.fork.metadata.generation, whole_seconds(now));
    let snapshot = Some(snapshot_name(&observed.fork));
    Plan { action, status: SandboxForkStatus { conditions: Some(conditions), snapshot, children } }
}

fn decide(observed: &Observed, known: &SandboxForkStatus) -> Checked<(Action, Vec<ForkChild>, Verdict)> {
    let fork = &observed.fork;
    let of_sandbox = fork.spec.source.sandbox.is_some();
    let Some(snapshot) = observed.snapshot.as_deref() else {
        let name = snapshot_name(fork);
        if !of_sandbox {
            return Err(never(reason::FAILED, format!("there is no SandboxSnapshot {name}")));
        }
        if known.snapshot.is_some() && known.conditions.as_deref().is_some_and(has_begun) {
            return Err(never(reason::FAILED, format!("its SandboxSnapshot {name} was deleted")));
        }
        let source = source(observed)?;
        let content = fork.spec.content.unwrap_or(Content::Full);
        check_generators(source, content)?;
        let verdict = Verdict::new(FALSE, reason::PENDING, format!("SandboxSnapshot {name} is created"));
        return Ok((Action::Snapshot(Box::new(new_snapshot(fork, source, content))), Vec::new(), verdict));
    };
    if of_sandbox && !owner::is_controlled_by(snapshot, fork.as_ref()) {
        let name = snapshot.name_any();
        return Err(never(
            reason::FAILED,
            format!("a SandboxSnapshot {name} exists that is not of this fork"),
        ));
    }
    if let Some(verdict) = unready(snapshot)? {
        return Ok((Action::Nothing, Vec::new(), verdict));
    }
    let (found, missing) = children(observed, known);
    let action = match missing.is_empty() {
        true => Action::Nothing,
        false => Action::Children(new_children(observed, snapshot, &missing)?),
    };
    let verdict = summary(&found);
    Ok((action, found, verdict))
}

/// Returns true once the snapshot was seen.
fn has_begun(conditions: &[Condition]) -> bool {
    condition::find(conditions, READY).is_some_and(|ready| ready.reason == reason::IN_PROGRESS)
}

/// Returns the source, unless it is gone, or another Sandbox than the one of the snapshot.
fn source(observed: &Observed) -> Checked<&Sandbox> {
    let snapshot = observed.snapshot.as_deref();
    let name = source_name(&observed.fork, snapshot).unwrap_or_default();
    let Some(source) = observed.source.as_deref() else {
        return Err(never(reason::FAILED, format!("there is no Sandbox {name}")));
    };
    let status = snapshot.and_then(|snapshot| snapshot.status.as_ref());
    let uid = status.and_then(|status| status.sandbox_uid.clone());
    let uid = uid.or_else(|| snapshot.and_then(|snapshot| snapshot.spec.source.uid.clone()));
    if uid.is_some() && source.uid() != uid {
        let why = format!("Sandbox {name} is not the one of the snapshot");
        return Err(never(reason::SOURCE_REPLACED, why));
    }
    Ok(source)
}

/// Refuses copies of memory whose programs would all have the same random numbers.
fn check_generators(source: &Sandbox, content: Content) -> Checked<()> {
    if content == Content::Filesystem {
        return Ok(());
    }
    state::renewal(source).map(drop).map_err(|why| never(reason::NEEDS_AFTER_RESTORE, why))
}

fn new_snapshot(fork: &SandboxFork, source: &Sandbox, content: Content) -> SandboxSnapshot {
    let of = SnapshotSource { sandbox: source.name_any(), uid: source.uid() };
    let afterwards = state::Afterwards::Run;
    let spec = SandboxSnapshotSpec { source: of, content, afterwards, volumes: None, ttl: None };
    let metadata = ObjectMeta {
        name: Some(snapshot_name(fork)),
        namespace: fork.namespace(),
        owner_references: Some(vec![reference(fork)]),
        ..ObjectMeta::default()
    };
    SandboxSnapshot { metadata, spec, status: None }
}

/// Returns the condition of a fork whose snapshot is not complete.
fn unready(snapshot: &SandboxSnapshot) -> Checked<Option<Verdict>> {
    let name = snapshot.name_any();
    let conditions = snapshot.status.as_ref().and_then(|status| status.conditions.as_deref());
    let ready = condition::find(conditions.unwrap_or_default(), READY);
    match ready {
        Some(ready) if ready.status == TRUE => Ok(None),
        Some(ready) if is_final(ready) => {
            Err(never(&ready.reason, format!("SandboxSnapshot {name}: {}", ready.message)))
        }
        Some(ready) if !ready.message.is_empty() => {
            let text = format!("SandboxSnapshot {name} is not complete: {}", ready.message);
            Ok(Some(Verdict::new(FALSE, reason::IN_PROGRESS, text)))
        }
        _ => {
            let text = format!("SandboxSnapshot {name} is not complete");
            Ok(Some(Verdict::new(FALSE, reason::IN_PROGRESS, text)))
        }
    }
}

/// Returns the state of each Sandbox, and the names of those to create.
fn children(observed: &Observed, known: &SandboxForkStatus) -> (Vec<ForkChild>, Vec<String>) {
    let mut missing = Vec::new();
    let uid = observed.fork.uid().unwrap_or_default();
    let child = |(name, found): (String, &Option<_>)| {
        let earlier =
            known.children.iter().find(|child| child.name == name).and_then(|child| child.uid.clone());
        let child =
            |phase: &str, uid, reason| ForkChild { name: name.clone(), uid, phase: phase.to_owned(), reason };
        let Some(sandbox): &Option<std::sync::Arc<Sandbox>> = found else {
            if earlier.is_some() {
                return child(FAILED, earlier, Some("it was deleted".to_owned()));
            }
            missing.push(name.clone());
            return child(PENDING, None, None);
        };
        if sandbox.annotations().get(annotation::FORK_UID) != Some(&uid) {
            let why = "a Sandbox of that name exists that is not of this fork".to_owned();
            return child(FAILED, None, Some(why));
        }
        if earlier.is_some() && earlier != sandbox.uid() {
            return child(FAILED, earlier, Some("it was deleted".to_owned()));
        }
        let (phase, reason) = phase(sandbox);
        child(phase, sandbox.uid(), reason)
    };
    let found = observed.fork.child_names().into_iter().zip(&observed.children).map(child).collect();
    (found, missing)
}

fn phase(sandbox: &Sandbox) -> (&'static str, Option<String>) {
    let conditions = sandbox.status.as_ref().and_then(|status| status.conditions.as_deref());
    match condition::find(conditions.unwrap_or_default(), READY) {
        Some(ready) if ready.status == TRUE => (READY_PHASE, None),
        Some(ready) if ENDED.contains(&ready.reason.as_str()) => (FAILED, Some(ready.message.clone())),
        Some(ready) if !ready.message.is_empty() => (PENDING, Some(ready.message.clone())),
        _ => (PENDING, None),
    }
}

fn new_children(observed: &Observed, snapshot: &SandboxSnapshot, names: &[String]) -> Checked<Vec<Sandbox>> {
    let (fork, source) = (&observed.fork, source(observed)?);
    check_generators(source, snapshot.spec.content)?;
    let child = |name: &String| {
        let mut child = state::restored(source, name, &snapshot.name_any());
        let labels = child.metadata.labels.get_or_insert_default();
        labels.insert(label::FORK.to_owned(), fork.name_any());
        let annotations = child.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::FORK_UID.to_owned(), fork.uid().unwrap_or_default());
        let credentials = CredentialsOfFork::new(source, fork.spec.credentials);
        annotations.insert(annotation::FORK_CREDENTIALS.to_owned(), credentials.text());
        // Who forks is who uses the Sandbox, not who made the source.
        match fork.annotations().get(annotation::USER) {
            Some(user) => annotations.insert(annotation::USER.to_owned(), user.clone()),
            None => annotations.remove(annotation::USER),
        };
        child
    };
    Ok(names.iter().map(child).collect())
}

fn summary(children: &[ForkChild]) -> Verdict {
    let of = |phase: &str| children.iter().filter(|child| child.phase == phase).count();
    let (ready, failed, all) = (of(READY_PHASE), of(FAILED), children.len());
    if ready == all {
        return Verdict::new(TRUE, reason::COMPLETED, format!("{all} of {all} Sandboxes are ready"));
    }
    let first = children.iter().find(|child| child.phase == FAILED);
    let why = first.map(|child| format!(": {}: {}", child.name, child.reason.as_deref().unwrap_or_default()));
    match failed {
        0 => Verdict::new(FALSE, reason::IN_PROGRESS, format!("{ready} of {all} Sandboxes are ready")),
        _ if ready + failed == all => never(
            reason::FAILED,
            format!("{failed} of {all} Sandboxes have failed{}", why.unwrap_or_default()),
        ),
        _ => {
            let text = format!("{ready} of {all} Sandboxes are ready, {failed} have failed");
            Verdict::new(FALSE, reason::IN_PROGRESS, text)
        }
    }
}
