//! PodSnapshot: shows the SandboxSnapshot of its name, and is deleted with it.

use std::sync::Arc;

use hutch_api::annotation::ORIGIN_POD;
use hutch_api::condition::{FALSE, READY};
use hutch_api::pod_snapshot::{FINALIZER, PodSnapshot, PodSnapshotSpec, PodSnapshotStatus, is_of_trigger};
use hutch_api::state::{SandboxSnapshot, reason};
use hutch_api::{label, name_hash};
use jiff::Timestamp;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::ready;
use crate::condition::{self, Verdict, whole_seconds};
use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::outcome::Outcome;

/// State on which a decision about one PodSnapshot rests.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    /// SandboxSnapshot of a trigger.
    pub(super) snapshot: Option<Arc<SandboxSnapshot>>,
    pub(super) view: Option<Arc<PodSnapshot>>,
    /// The Sandbox of the snapshot exists, and not only another of its name.
    pub(super) has_sandbox: bool,
}

/// Write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Create(Box<PodSnapshot>),
    /// Patches the metadata.
    Patch(Value),
    PatchStatus(Value),
    Delete,
    DeleteSnapshot,
}

/// Brings a PodSnapshot to the state of its SandboxSnapshot.
pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    match step(ctx, key).await {
        Ok(()) => Outcome::Settled,
        Err(error) => {
            tracing::warn!(snapshot = %key, %error, "a step of a PodSnapshot failed");
            Outcome::Failed
        }
    }
}

async fn step(ctx: &Context, key: &Key) -> Result<(), Error> {
    let observed = observe(ctx, key).await?;
    for action in plan(&observed, ctx.now()) {
        match action {
            Action::Create(view) => ctx.pod_snapshots.create(&key.namespace, view).await.map(drop)?,
            Action::Patch(patch) => drop(Error::unless_gone(ctx.pod_snapshots.patch(key, patch).await)?),
            Action::PatchStatus(patch) => {
                drop(Error::unless_gone(ctx.pod_snapshots.patch_status(key, patch).await)?)
            }
            Action::Delete => ctx.pod_snapshots.delete(key, None).await?,
            Action::DeleteSnapshot => ctx.snapshots.delete(key, None).await?,
        }
    }
    Ok(())
}

async fn observe(ctx: &Context, key: &Key) -> Result<Observed, Error> {
    let view = ctx.pod_snapshots.get(key);
    if view.is_some() && ctx.snapshots.get(key).is_none() {
        // The cache may be behind, and a PodSnapshot without one is deleted.
        ctx.snapshots.refresh(key).await?;
    }
    let snapshot = ctx.snapshots.get(key).filter(|snapshot| is_of_trigger(snapshot));
    let source = snapshot.as_deref().map(|snapshot| &snapshot.spec.source);
    let sandbox = source.and_then(|source| ctx.sandboxes.get(&key.beside(&source.sandbox)));
    let has_sandbox =
        sandbox.is_some_and(|sandbox| sandbox.uid() == source.and_then(|source| source.uid.clone()));
    Ok(Observed { snapshot, view, has_sandbox })
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Vec<Action> {
    match (&observed.snapshot, &observed.view) {
        (None, None) => Vec::new(),
        (None, Some(view)) => remove(view),
        (Some(snapshot), None) if snapshot.metadata.deletion_timestamp.is_some() => Vec::new(),
        (Some(snapshot), None) => vec![Action::Create(Box::new(new_view(snapshot, observed.has_sandbox)))],
        (Some(_), Some(view)) if view.metadata.deletion_timestamp.is_some() => vec![Action::DeleteSnapshot],
        (Some(snapshot), Some(view)) => show(snapshot, view, observed.has_sandbox, now),
    }
}

/// Deletes a PodSnapshot whose SandboxSnapshot is gone.
fn remove(view: &PodSnapshot) -> Vec<Action> {
    let mut actions = Vec::new();
    if view.metadata.deletion_timestamp.is_none() {
        actions.push(Action::Delete);
    }
    let others: Vec<&String> = view.finalizers().iter().filter(|one| *one != FINALIZER).collect();
    if others.len() < view.finalizers().len() {
        actions.push(Action::Patch(json!({"metadata": {"uid": view.uid(), "finalizers": others}})));
    }
    actions
}

/// Returns the label by which clients find the snapshots of a Sandbox. Those of an earlier Sandbox of its name are not its own.
fn sandbox_label(snapshot: &SandboxSnapshot, has_sandbox: bool) -> Option<String> {
    has_sandbox.then(|| name_hash(&snapshot.spec.source.sandbox))
}

fn new_view(snapshot: &SandboxSnapshot, has_sandbox: bool) -> PodSnapshot {
    let origin = snapshot.annotations().get(ORIGIN_POD).cloned().unwrap_or_default();
    let hash = sandbox_label(snapshot, has_sandbox);
    let metadata = ObjectMeta {
        name: snapshot.metadata.name.clone(),
        namespace: snapshot.namespace(),
        labels: hash.map(|hash| [(label::SANDBOX_NAME_HASH.to_owned(), hash)].into()),
        annotations: Some([(ORIGIN_POD.to_owned(), origin)].into()),
        finalizers: Some(vec![FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    PodSnapshot { metadata, spec: PodSnapshotSpec {}, status: None }
}

fn show(snapshot: &SandboxSnapshot, view: &PodSnapshot, has_sandbox: bool, now: Timestamp) -> Vec<Action> {
    let mut actions = Vec::new();
    let hash = sandbox_label(snapshot, has_sandbox);
    if view.labels().get(label::SANDBOX_NAME_HASH) != hash.as_ref() {
        let labels = json!({label::SANDBOX_NAME_HASH: hash});
        actions.push(Action::Patch(json!({"metadata": {"uid": view.meta().uid, "labels": labels}})));
    }
    let verdict = match ready(snapshot) {
        Some(ready) => Verdict::new(&ready.status, &ready.reason, ready.message.clone()),
        None => Verdict::new(FALSE, reason::PENDING, "not begun"),
    };
    let known = view.status.clone().unwrap_or_default();
    let mut conditions = known.conditions.clone().unwrap_or_default();
    condition::set(&mut conditions, READY, verdict, view.metadata.generation, whole_seconds(now));
    let status = PodSnapshotStatus { conditions: Some(conditions) };
    if status != known {
        actions.push(Action::PatchStatus(json!({"metadata": {"uid": view.meta().uid}, "status": status})));
    }
    actions
}
