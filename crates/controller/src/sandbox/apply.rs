//! Looks at one Sandbox, does what is planned, and writes down what came of it.

use std::time::Duration;

use hutch_api::condition::{READY, message, reason};
use hutch_api::{SandboxStatus, annotation};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::plan::{Action, Part, Plan, Stage, plan};
use super::status::status;
use super::{Located, Seen, expiry};
use crate::collection::{Collection, Object};
use crate::condition;
use crate::error::Error;
use crate::key::Key;
use crate::queue::Outcome;
use crate::record::Note;
use crate::world::World;

/// Pause before the second pass of an expiry.
const NEXT_PASS: Duration = Duration::from_millis(1);

pub(crate) async fn reconcile(world: &World, key: &Key) -> Outcome {
    let Some(sandbox) = world.sandboxes.get(key) else { return Outcome::Settled };
    if sandbox.metadata.deletion_timestamp.is_some() {
        return Outcome::Settled;
    }
    let seen = Seen::observe(world, sandbox);
    let Plan { stage, actions, mut problems } = plan(&seen, Timestamp::now());
    let conflict_only = matches!(seen.locate(), Located::Several(_)) && problems.len() == 1;
    let mut failed = !problems.is_empty() && !conflict_only;
    let failures = apply(world, key, actions).await;
    if failures.iter().any(|(_, error)| error.is_already_exists()) {
        // The view was behind and has caught up by now: what is there decides, not this error.
        return Outcome::Failed;
    }
    for (part, error) in failures {
        tracing::debug!(sandbox = %key, %error, "a step of a sandbox failed");
        failed = true;
        problems.push((part, error.to_string()));
    }
    problems.sort_by_key(|(part, _)| *part);
    if stage == Stage::Deleted || (stage == Stage::Retained && failed) {
        return if failed { Outcome::Failed } else { Outcome::Settled };
    }
    // What was just written is in the cache already.
    let Some(sandbox) = world.sandboxes.get(key) else { return Outcome::Settled };
    let after = Seen::observe(world, sandbox);
    let now = Timestamp::now();
    let stage =
        if stage == Stage::Live && expiry::is_over(&after.sandbox, now) { Stage::Expiring } else { stage };
    let wanted = status(&after, stage, &problems, &world.config.cluster_domain, now);
    note_multiple_pods(world, &after, &wanted);
    if let Err(error) = write(world, key, &after, &wanted).await {
        tracing::warn!(sandbox = %key, %error, "status of a sandbox could not be written");
        return Outcome::Failed;
    }
    match (stage, expiry::remaining(&after.sandbox, now)) {
        _ if failed => Outcome::Failed,
        (Stage::Expiring, _) => Outcome::Again(NEXT_PASS),
        (Stage::Live, Some(remaining)) => Outcome::Again(remaining),
        _ => Outcome::Settled,
    }
}

/// Does the actions in order. One that fails ends its own part only.
async fn apply(world: &World, key: &Key, actions: Vec<Action>) -> Vec<(Part, Error)> {
    let mut failures: Vec<(Part, Error)> = Vec::new();
    for action in actions {
        let part = action.part();
        if failures.iter().any(|(failed, _)| *failed == part) {
            continue;
        }
        if let Err(error) = act(world, key, action).await {
            failures.push((part, error));
        }
    }
    failures
}

async fn act(world: &World, key: &Key, action: Action) -> Result<(), Error> {
    match action {
        Action::CreateVolume(claim) => create(&world.volumes, claim.as_ref()).await,
        Action::PatchVolume(name, patch) => world.volumes.patch(&key.beside(&name), &patch).await.map(drop),
        Action::CreatePod(pod) => create(&world.pods, pod.as_ref()).await,
        Action::PatchPod(name, patch) => world.pods.patch(&key.beside(&name), &patch).await.map(drop),
        Action::DeletePod(name) => world.pods.delete(&key.beside(&name), None).await,
        Action::CreateService(service) => create(&world.services, service.as_ref()).await,
        Action::PatchService(patch) => world.services.patch(key, &patch).await.map(drop),
        Action::DeleteService => world.services.delete(key, None).await,
        Action::NotePodName(name) => {
            let patch = json!({"metadata": {"annotations": {annotation::POD_NAME: name}}});
            world.sandboxes.patch(key, &patch).await.map(drop)
        }
        Action::DeleteSandbox => world.sandboxes.delete(key, None).await,
    }
}

/// Creates the object; when one of that name is there already, takes a look at it.
async fn create<K: Object>(collection: &Collection<K>, object: &K) -> Result<(), Error> {
    let key = Key::of(object);
    let result = collection.create(&key.namespace, object).await.map(drop);
    if result.as_ref().is_err_and(Error::is_already_exists) {
        collection.refresh(&key).await?;
    }
    result
}

async fn write(world: &World, key: &Key, seen: &Seen, wanted: &SandboxStatus) -> Result<(), Error> {
    let current = seen.sandbox.status.clone().unwrap_or_default();
    if current == *wanted || only_node_changed(&current, wanted) {
        return Ok(());
    }
    match world.sandboxes.patch_status(key, &json!({"status": complete(wanted)})).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// A node alone is no news: it is written with the next change. Pools that wait for many Pods save a write for each.
fn only_node_changed(current: &SandboxStatus, wanted: &SandboxStatus) -> bool {
    let same = SandboxStatus { node_name: current.node_name.clone(), ..wanted.clone() } == *current;
    same && !condition::is_ready(wanted.conditions.as_ref())
}

/// Every field, null where there is nothing: a merge patch keeps what it does not name.
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

/// One event when it begins, none while it lasts.
fn note_multiple_pods(world: &World, seen: &Seen, wanted: &SandboxStatus) {
    let reason_of = |status: &SandboxStatus| {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        condition::find(conditions, READY).map(|ready| ready.reason.clone())
    };
    let before = seen.sandbox.status.as_ref().and_then(reason_of);
    let is = |found: &Option<String>| found.as_deref() == Some(reason::MULTIPLE_PODS);
    if let Located::Several(count) = seen.locate()
        && is(&reason_of(wanted))
        && !is(&before)
    {
        let note = message::multiple_pods(count);
        tracing::warn!(sandbox = %seen.sandbox.name_any(), pods = count, "several Pods have the same Sandbox");
        world.record(
            seen.sandbox.as_ref(),
            Note { warning: true, reason: reason::MULTIPLE_PODS, action: "Reconciling", text: note },
        );
    }
}
