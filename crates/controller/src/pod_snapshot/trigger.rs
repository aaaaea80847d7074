//! PodSnapshotManualTrigger: makes one SandboxSnapshot and reports what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::annotation::ORIGIN_POD;
use hutch_api::condition::{FALSE, TRUE};
use hutch_api::pod_snapshot::{
    PodSnapshot, PodSnapshotManualTrigger, PodSnapshotManualTriggerStatus, SnapshotCreated, TRIGGERED,
    is_of_trigger, reason,
};
use hutch_api::state::{
    self, Afterwards, Content, SandboxSnapshot, SandboxSnapshotSpec, SnapshotSource, SnapshotVolumes,
    reason as of_snapshot,
};
use hutch_api::{Sandbox, owner};
use jiff::Timestamp;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::ready;
use crate::condition::{self, Verdict, whole_seconds};
use crate::context::{Context, origin_term};
use crate::error::Error;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::view::PodView;

/// Wait for a time of creation that no other snapshot of the Sandbox has.
const NEXT_SECOND: Duration = Duration::from_millis(500);

/// State on which a decision about one trigger rests.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    pub(super) trigger: Arc<PodSnapshotManualTrigger>,
    /// Pod that it names.
    pub(super) pod: Option<Arc<PodView>>,
    /// Sandbox that controls the Pod.
    pub(super) sandbox: Option<Arc<Sandbox>>,
    /// SandboxSnapshot whose name is the uid of the trigger.
    pub(super) snapshot: Option<Arc<SandboxSnapshot>>,
    /// PodSnapshot of that name.
    pub(super) view: Option<Arc<PodSnapshot>>,
    /// PodSnapshots of the other snapshots of the Sandbox that triggers have made; `None` is not created yet.
    pub(super) others: Vec<Option<Arc<PodSnapshot>>>,
}

/// Write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Nothing,
    Create(Box<SandboxSnapshot>),
    /// Deletes the snapshot, which failed. Its trigger has the cause.
    Delete,
    /// Waits until the next second: clients order snapshots by the second of their creation.
    Wait,
}

/// Next step of a trigger.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) action: Action,
    pub(super) status: PodSnapshotManualTriggerStatus,
}

impl Observed {
    async fn observe(ctx: &Context, trigger: Arc<PodSnapshotManualTrigger>) -> Result<Observed, Error> {
        let key = Key::of(trigger.as_ref());
        let name = trigger.uid().unwrap_or_default();
        let pod = ctx.pods.fetch(&key.beside(&trigger.spec.target_pod)).await?;
        let snapshot = ctx.snapshots.fetch(&key.beside(&name)).await?;
        let sandbox = match pod.as_deref().and_then(owner::sandbox) {
            // A refusal is final: what was written to the Sandbox before the trigger must count.
            Some(owner) if snapshot.is_none() => ctx.sandboxes.read(&key.beside(&owner.name)).await?,
            Some(owner) => ctx.sandboxes.fetch(&key.beside(&owner.name)).await?,
            None => None,
        };
        let view = ctx.pod_snapshots.get(&key.beside(&name));
        let uid = sandbox.as_ref().and_then(|sandbox| sandbox.uid()).unwrap_or_default();
        let others = ctx.snapshots.find(&origin_term(&uid)).into_iter();
        let others =
            others.filter(|other| other.name_any() != name && other.meta().deletion_timestamp.is_none());
        let others = others.map(|other| ctx.pod_snapshots.get(&Key::of(other.as_ref()))).collect();
        Ok(Observed { trigger, pod, sandbox, snapshot, view, others })
    }
}

/// Takes the next step of a trigger.
pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let Some(trigger) = ctx.triggers.get(key) else { return Outcome::Settled };
    if trigger.metadata.deletion_timestamp.is_some() || is_over(&trigger) {
        return Outcome::Settled;
    }
    match step(ctx, key, trigger).await {
        Ok(outcome) => outcome,
        Err(error) => {
            tracing::warn!(trigger = %key, %error, "a step of a trigger failed");
            Outcome::Failed
        }
    }
}

async fn step(ctx: &Context, key: &Key, trigger: Arc<PodSnapshotManualTrigger>) -> Result<Outcome, Error> {
    let observed = Observed::observe(ctx, trigger).await?;
    let Plan { action, mut status } = plan(&observed, ctx.now());
    let of_snapshot = key.beside(&observed.trigger.uid().unwrap_or_default());
    let mut outcome = Outcome::Settled;
    let acted = match action {
        Action::Nothing => Ok(()),
        Action::Wait => {
            outcome = Outcome::Again(NEXT_SECOND);
            Ok(())
        }
        Action::Create(snapshot) => ctx.snapshots.create(&key.namespace, snapshot).await.map(drop),
        Action::Delete => {
            // Before the status, after which the trigger is over.
            ctx.snapshots.delete(&of_snapshot, None).await?;
            Ok(())
        }
    };
    if let Err(error) = &acted {
        explain(&mut status, &error.for_condition());
    }
    write_status(ctx, key, &observed.trigger, &status).await?;
    acted.map(|()| outcome)
}

async fn write_status(
    ctx: &Context,
    key: &Key,
    trigger: &PodSnapshotManualTrigger,
    status: &PodSnapshotManualTriggerStatus,
) -> Result<(), Error> {
    if trigger.status.as_ref() == Some(status) {
        return Ok(());
    }
    let patch = json!({"metadata": {"uid": trigger.uid()}, "status": {
        "conditions": status.conditions, "snapshotCreated": status.snapshot_created}});
    Error::unless_gone(ctx.triggers.patch_status(key, patch).await).map(drop)
}

/// Adds the error of a step to the condition.
fn explain(status: &mut PodSnapshotManualTriggerStatus, error: &str) {
    for condition in status.conditions.iter_mut().flatten().filter(|condition| condition.type_ == TRIGGERED) {
        condition.message = format!("{}; {error}", condition.message);
    }
}

/// Returns true for a trigger whose snapshot is complete or has failed.
fn is_over(trigger: &PodSnapshotManualTrigger) -> bool {
    let conditions = trigger.status.as_ref().and_then(|status| status.conditions.as_deref());
    condition::find(conditions.unwrap_or_default(), TRIGGERED)
        .is_some_and(|triggered| triggered.status == TRUE || triggered.reason == reason::FAILED)
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let trigger = observed.trigger.as_ref();
    let (action, verdict) = decide(observed, now)
        .unwrap_or_else(|(action, why)| (action, Verdict::new(FALSE, reason::FAILED, why)));
    let begun = observed.snapshot.is_some() && verdict.reason != reason::FAILED;
    let name = trigger.uid().unwrap_or_default();
    let known = trigger.status.clone().unwrap_or_default();
    let mut conditions = known.conditions.unwrap_or_default();
    condition::set(&mut conditions, TRIGGERED, verdict, trigger.metadata.generation, whole_seconds(now));
    let snapshot_created = begun.then_some(SnapshotCreated { name });
    Plan { action, status: PodSnapshotManualTriggerStatus { conditions: Some(conditions), snapshot_created } }
}

/// Returns the next step; as an error, what is left to do and why the trigger has failed.
fn decide(observed: &Observed, now: Timestamp) -> Result<(Action, Verdict), (Action, String)> {
    let Some(snapshot) = observed.snapshot.as_deref() else { return begin(observed, now) };
    let never = |why: String| Err((Action::Nothing, why));
    if !is_of_trigger(snapshot) {
        return never(format!(
            "a SandboxSnapshot {} exists that is not of this trigger",
            snapshot.name_any()
        ));
    }
    let progress = |why: String| Ok((Action::Nothing, Verdict::new(FALSE, reason::IN_PROGRESS, why)));
    let Some(ready) = ready(snapshot) else { return progress("the snapshot is not begun".into()) };
    match ready.reason.as_str() {
        of_snapshot::PENDING | of_snapshot::IN_PROGRESS => progress(ready.message.clone()),
        of_snapshot::COMPLETED if ready.status == TRUE => {
            let view = observed.view.as_ref().and_then(|view| view.status.as_ref());
            match condition::is_ready(view.and_then(|status| status.conditions.as_ref())) {
                true => {
                    Ok((Action::Nothing, Verdict::new(TRUE, reason::COMPLETE, "the snapshot is complete")))
                }
                false => progress("the snapshot is complete, and its PodSnapshot is not Ready yet".into()),
            }
        }
        // The image may be back.
        of_snapshot::LOST => never(format!("{}: {}", ready.reason, ready.message)),
        _ => Err((Action::Delete, format!("{}: {}", ready.reason, ready.message))),
    }
}

fn begin(observed: &Observed, now: Timestamp) -> Result<(Action, Verdict), (Action, String)> {
    let trigger = observed.trigger.as_ref();
    let refused = |why: String| (Action::Nothing, why);
    if trigger.status.as_ref().is_some_and(|status| status.snapshot_created.is_some()) {
        return Err(refused("its snapshot was deleted".into()));
    }
    let target = &trigger.spec.target_pod;
    let Some(pod) = &observed.pod else {
        return Err(refused(format!(
            "spec.targetPod: there is no Pod {target:?} in the namespace of the trigger"
        )));
    };
    let is_own = |sandbox: &&Arc<Sandbox>| owner::is_controlled_by(pod.as_ref(), sandbox.as_ref());
    let Some(sandbox) = observed.sandbox.as_ref().filter(is_own) else {
        return Err(refused(format!("spec.targetPod: Pod {target:?} is not of a Sandbox")));
    };
    state::renewal(sandbox).map_err(refused)?;
    let pending = |why: &str| Verdict::new(FALSE, reason::PENDING, why);
    let second = Timestamp::as_second;
    let is_now = |view: &PodSnapshot| {
        view.meta().creation_timestamp.as_ref().is_some_and(|time| second(time.0) == second(now))
    };
    if observed.others.iter().any(|other| other.as_deref().is_none_or(is_now)) {
        let why = "another snapshot of the Sandbox began in the same second, or has no PodSnapshot yet";
        return Ok((Action::Wait, pending(why)));
    }
    let snapshot = Box::new(new_snapshot(trigger, sandbox));
    Ok((Action::Create(snapshot), pending("the SandboxSnapshot is created")))
}

fn new_snapshot(trigger: &PodSnapshotManualTrigger, sandbox: &Sandbox) -> SandboxSnapshot {
    let source = SnapshotSource { sandbox: sandbox.name_any(), uid: sandbox.uid() };
    // Each new Pod of the Sandbox begins with its newest snapshot: what a volume has got since then must not be lost.
    let volumes = Some(SnapshotVolumes { include: None, none: true });
    let (content, afterwards) = (Content::Full, Afterwards::Run);
    let spec = SandboxSnapshotSpec { source, content, volumes, afterwards, ttl: None };
    let origin = (ORIGIN_POD.to_owned(), trigger.spec.target_pod.clone());
    let metadata = ObjectMeta {
        name: trigger.uid(),
        namespace: trigger.namespace(),
        annotations: Some([origin].into()),
        ..ObjectMeta::default()
    };
    SandboxSnapshot { metadata, spec, status: None }
}
