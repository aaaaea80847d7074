//! Carries out what is planned for a Sandbox, and writes its status.

use std::time::Duration;

use hutch_api::condition::{READY, SUSPENDED, TRUE, message, reason};
use hutch_api::{SandboxStatus, annotation};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use super::plan::{Action, Part, Plan, Stage, plan};
use super::status::{is_step, status};
use super::{Located, Observed, expiry, memory, sleep};
use crate::collection::{Collection, Object};
use crate::condition;
use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::record::Note;
use crate::scheduler::Write;
use crate::span::Span;

/// Time until the second pass of an expiry.
const NEXT_PASS: Duration = Duration::from_millis(1);

/// Result of the actions.
#[derive(Default)]
struct Applied {
    failures: Vec<(Part, Error)>,
    /// Time until a deferred action is due.
    again: Option<Duration>,
}

pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let sandbox = ctx.sandboxes.get(key).filter(|known| known.metadata.deletion_timestamp.is_none());
    let Some(sandbox) = sandbox else {
        for write in [Write::SandboxProgress, Write::PodMetadata, Write::PodName] {
            ctx.scheduler.clear(write, key);
        }
        return Outcome::Settled;
    };
    let span = ctx.spans.start("ReconcileSandbox", sandbox.as_ref());
    let observed = Observed::observe(ctx, sandbox);
    let Plan { stage, actions, mut problems } = plan(&observed, ctx.now());
    let conflict_only = matches!(observed.locate(), Located::Several(_)) && problems.len() == 1;
    let mut failed = !problems.is_empty() && !conflict_only;
    let Applied { failures, again } = apply(ctx, key, actions, &span).await;
    if failures.iter().any(|(_, error)| error.is_already_exists()) {
        // The cache was behind and is current now: its content decides, not this error.
        return Outcome::Failed;
    }
    for (part, error) in failures {
        tracing::debug!(sandbox = %key, %error, "an action of a sandbox failed");
        failed = true;
        problems.push((part, error.for_condition()));
    }
    problems.sort_by_key(|(part, _)| *part);
    if stage == Stage::Deleted || (stage == Stage::Retained && failed) {
        return if failed { Outcome::Failed } else { Outcome::Settled };
    }
    // The cache has the writes of this pass already.
    let Some(sandbox) = ctx.sandboxes.get(key) else { return Outcome::Settled };
    let after = Observed::observe(ctx, sandbox);
    tell_pod(&span, &observed, &after);
    let now = ctx.now();
    let stage =
        if stage == Stage::Live && expiry::is_over(&after.sandbox, now) { Stage::Expiring } else { stage };
    let wanted = status(&after, stage, &problems, &ctx.config.cluster_domain, now);
    note_multiple_pods(ctx, &after, &wanted);
    note_lost_memory(ctx, &after, &wanted);
    let late = match write(ctx, key, &after, &wanted).await {
        Ok(late) => late,
        Err(error) => {
            tracing::warn!(sandbox = %key, %error, "failed to write the status of a sandbox");
            return Outcome::Failed;
        }
    };
    let end = match stage {
        Stage::Expiring => Some(NEXT_PASS),
        Stage::Live => {
            let asleep = sleep::remaining(&after, now);
            expiry::remaining(&after.sandbox, now).into_iter().chain(asleep).min()
        }
        Stage::Retained | Stage::Deleted => None,
    };
    if failed {
        return Outcome::Failed;
    }
    [again, late, end].into_iter().flatten().min().map_or(Outcome::Settled, Outcome::Again)
}

/// Carries out the actions in order. A failure ends its own part only.
async fn apply(ctx: &Context, key: &Key, actions: Vec<Action>, span: &Span) -> Applied {
    let mut applied = Applied::default();
    for write in [Write::PodMetadata, Write::PodName] {
        if !actions.iter().any(|action| deferrable(action) == Some(write)) {
            ctx.scheduler.clear(write, key);
        }
    }
    for action in actions {
        let part = action.part();
        if applied.failures.iter().any(|(failed, _)| *failed == part) {
            continue;
        }
        let write = deferrable(&action);
        if let Some(left) = write.and_then(|write| ctx.scheduler.delay(write, key)) {
            applied.again = applied.again.into_iter().chain([left]).min();
            continue;
        }
        let _step = step(part).map(|name| span.step(name));
        match act(ctx, key, action).await {
            Ok(()) => write.into_iter().for_each(|write| ctx.scheduler.clear(write, key)),
            Err(error) => applied.failures.push((part, error)),
        }
    }
    applied
}

/// Returns the write that the action is for the scheduler, unless it is sent at once.
fn deferrable(action: &Action) -> Option<Write> {
    match action {
        Action::SyncPod(..) => Some(Write::PodMetadata),
        Action::NoteOwnName => Some(Write::PodName),
        _ => None,
    }
}

/// Returns the name of the span around an action.
fn step(part: Part) -> Option<&'static str> {
    match part {
        Part::Pod => Some("reconcilePod"),
        Part::Volumes => Some("reconcilePVCs"),
        Part::Service | Part::Sandbox => None,
    }
}

fn tell_pod(span: &Span, before: &Observed, after: &Observed) {
    if let Located::Owned(pod) = after.locate() {
        let new = matches!(before.locate(), Located::Missing);
        let event = if new { "NewPodStatusObserved" } else { "ExistingPodStatusObserved" };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        span.pod(event, &pod.name_any(), phase);
    }
}

async fn act(ctx: &Context, key: &Key, action: Action) -> Result<(), Error> {
    match action {
        Action::CreateVolume(claim) => create(&ctx.volumes, claim).await,
        Action::PatchVolume(name, patch) => ctx.volumes.patch(&key.beside(&name), patch).await.map(drop),
        Action::CreatePolicy(policy) => create(&ctx.policies, policy).await,
        Action::PatchPolicy(name, patch) => ctx.policies.patch(&key.beside(&name), patch).await.map(drop),
        Action::DeletePolicy(name) => ctx.policies.delete(&key.beside(&name), None).await,
        Action::CreatePod(pod) => create_pod(ctx, key, pod).await,
        Action::PatchPod(name, patch) | Action::SyncPod(name, patch) => {
            ctx.pods.patch(&key.beside(&name), patch).await.map(drop)
        }
        Action::DeletePod(name) => ctx.pods.delete(&key.beside(&name), None).await,
        Action::CreateSnapshot(snapshot) => create(&ctx.snapshots, snapshot).await,
        Action::DeleteSnapshot(name) => ctx.snapshots.delete(&key.beside(&name), None).await,
        Action::DropMemory(name) => drop_memory(ctx, key, &name).await,
        Action::CreateService(service) => create(&ctx.services, service).await,
        Action::PatchService(patch) => patch_service(ctx, key, patch).await,
        Action::DeleteService => ctx.services.delete(key, None).await,
        Action::NotePodName(name) => note_pod_name(ctx, key, name.as_deref()).await,
        Action::NoteOwnName => note_pod_name(ctx, key, Some(&key.name)).await,
        Action::DeleteSandbox => ctx.sandboxes.delete(key, None).await,
        Action::Sleep(patch) => match ctx.sandboxes.patch(key, patch).await {
            // Another client wrote first, perhaps that the Sandbox is in use. The next reconcile sees that.
            Err(error) if error.is_conflict() || error.is_not_found() => ctx.sandboxes.refresh(key).await,
            other => other.map(drop),
        },
    }
}

/// Deletes the memory of a suspended Sandbox, with an event.
async fn drop_memory(ctx: &Context, key: &Key, name: &str) -> Result<(), Error> {
    ctx.snapshots.delete(&key.beside(name), None).await?;
    if let Some(sandbox) = ctx.sandboxes.get(key) {
        let text = format!(
            "Removed the memory of its processes, as annotation {} has it. It will begin anew",
            annotation::DROP_MEMORY_AFTER
        );
        let (reason, action) = ("MemoryDropped", "Reconciling");
        ctx.record(sandbox.as_ref(), Note { warning: false, reason, action, text });
    }
    Ok(())
}

async fn create_pod(ctx: &Context, key: &Key, mut pod: Box<Pod>) -> Result<(), Error> {
    if let (Some(gateway), Some(sandbox)) = (&ctx.config.gateway, ctx.sandboxes.get(key)) {
        let template = sandbox.annotations().get(annotation::TEMPLATE_REF);
        let template = template.and_then(|name| ctx.templates.get(&key.beside(name)));
        gateway.prepare(&ctx.bundles, (&sandbox, template.as_deref()), &mut pod, ctx.now()).await?;
    }
    create(&ctx.pods, pod).await
}

async fn note_pod_name(ctx: &Context, key: &Key, name: Option<&str>) -> Result<(), Error> {
    let patch = json!({"metadata": {"annotations": {annotation::POD_NAME: name}}});
    ctx.sandboxes.patch(key, patch).await.map(drop)
}

/// Patches the Service. A headless Service without a selector is created for both address families on any cluster. With a
/// selector, a cluster with one family rejects that, and accepts the Service for its first family alone.
async fn patch_service(ctx: &Context, key: &Key, mut patch: Value) -> Result<(), Error> {
    let refused = match ctx.services.patch(key, patch.clone()).await {
        Err(error) if error.is_invalid() => error,
        result => return result.map(drop),
    };
    let service = ctx.services.get(key);
    let spec = service.as_ref().and_then(|service| service.spec.as_ref());
    let both = spec.is_some_and(|spec| spec.ip_family_policy.as_deref() == Some("RequireDualStack"));
    if !both || patch["spec"]["selector"].is_null() {
        return Err(refused);
    }
    patch["spec"]["ipFamilyPolicy"] = "SingleStack".into();
    ctx.services.patch(key, patch).await.map(drop)
}

/// Creates the object; reads it from the server when one of that name already exists.
async fn create<K, B>(collection: &Collection<K>, object: Box<B>) -> Result<(), Error>
where
    K: Object,
    B: Resource<DynamicType = ()> + Serialize,
{
    let key = Key::of(object.as_ref());
    let result = collection.create(&key.namespace, object).await.map(drop);
    if result.as_ref().is_err_and(Error::is_already_exists) {
        collection.refresh(&key).await?;
    }
    result
}

/// Writes the status if it differs. Returns the time of the next reconcile when the write is deferred.
async fn write(
    ctx: &Context,
    key: &Key,
    observed: &Observed,
    wanted: &SandboxStatus,
) -> Result<Option<Duration>, Error> {
    let current = observed.sandbox.status.clone().unwrap_or_default();
    if current == *wanted || only_node_changed(&current, wanted) {
        ctx.scheduler.clear(Write::SandboxProgress, key);
        return Ok(None);
    }
    if is_step(&current, wanted)
        && let Some(left) = ctx.scheduler.delay(Write::SandboxProgress, key)
    {
        return Ok(Some(left));
    }
    match ctx.sandboxes.patch_status(key, json!({"status": complete(wanted)})).await {
        Err(error) if !error.is_not_found() => return Err(error),
        _ => ctx.scheduler.clear(Write::SandboxProgress, key),
    }
    Ok(None)
}

/// Returns whether only the node changed, which is written with the next change. This saves a write for each Pod.
fn only_node_changed(current: &SandboxStatus, wanted: &SandboxStatus) -> bool {
    let same = SandboxStatus { node_name: current.node_name.clone(), ..wanted.clone() } == *current;
    same && !condition::is_ready(wanted.conditions.as_ref())
}

/// Returns every field, null where it is absent: a merge patch keeps fields that it does not name.
fn complete(status: &SandboxStatus) -> Value {
    json!({
        "conditions": status.conditions,
        "nodeName": status.node_name,
        "podIPs": status.pod_ips,
        "selector": status.selector,
        "service": status.service,
        "serviceFQDN": status.service_fqdn,
    })
}

/// Records one event when a suspend has ended without the memory that it was to keep.
fn note_lost_memory(ctx: &Context, observed: &Observed, wanted: &SandboxStatus) {
    if is_lost(observed.sandbox.status.as_ref(), wanted) {
        let text = memory::NOT_KEPT_MESSAGE.to_owned();
        let (reason, action) = (reason::MEMORY_NOT_KEPT, "Reconciling");
        ctx.record(observed.sandbox.as_ref(), Note { warning: true, reason, action, text });
    }
}

/// Returns true if the Sandbox has become suspended without its memory.
pub(super) fn is_lost(before: Option<&SandboxStatus>, wanted: &SandboxStatus) -> bool {
    let of = |status: &SandboxStatus| {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        condition::find(conditions, SUSPENDED).map(|found| (found.status == TRUE, found.reason.clone()))
    };
    let was_running = before.and_then(of).is_some_and(|(was_suspended, _)| !was_suspended);
    was_running && of(wanted).is_some_and(|(_, reason)| reason == reason::MEMORY_NOT_KEPT)
}

/// Records one event when several Pods are found, and none while that lasts.
fn note_multiple_pods(ctx: &Context, observed: &Observed, wanted: &SandboxStatus) {
    let reason_of = |status: &SandboxStatus| {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        condition::find(conditions, READY).map(|ready| ready.reason.clone())
    };
    let before = observed.sandbox.status.as_ref().and_then(reason_of);
    let is = |found: &Option<String>| found.as_deref() == Some(reason::MULTIPLE_PODS);
    if let Located::Several(count) = observed.locate()
        && is(&reason_of(wanted))
        && !is(&before)
    {
        let note = message::multiple_pods(count);
        tracing::warn!(sandbox = %observed.sandbox.name_any(), pods = count, "several Pods have the same Sandbox");
        ctx.record(
            observed.sandbox.as_ref(),
            Note { warning: true, reason: reason::MULTIPLE_PODS, action: "Reconciling", text: note },
        );
    }
}
