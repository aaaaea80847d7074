//! Follows the SandboxSnapshots of all namespaces.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hutch_api::Read;
use hutch_api::sleep::Input;
use hutch_api::state::{
    Afterwards, SandboxSnapshot, SandboxSnapshotStatus, SnapshotSizes, is_suspend, reason,
};
use hutch_image::PathSegment;
use hutch_snapshot::Sizes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::task::{JoinSet, spawn_blocking};

use super::retention;
use super::take::{self, Life, STARTED_ANEW, Taken, take, wait_for_source};
use crate::live::Live;
use crate::saved::facts::Facts;
use crate::shared::Shared;

/// Wait before a write that failed is tried again. A full disk may refuse writes for long.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum wait.
const MAX_PAUSE: Duration = Duration::from_secs(8);

/// Maximum time between two looks at the clock.
const CLOCK: Duration = Duration::from_secs(60);

/// Takes snapshots as they are requested, and removes the images of those that are deleted, until the node stops.
pub(crate) async fn run(node: Arc<Shared>) {
    let api: Api<Read<SandboxSnapshot>> = Api::all(node.client.clone());
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let stopped = node.shutdown.wait();
    let mut stopped = std::pin::pin!(stopped);
    let mut tasks = JoinSet::new();
    let mut listed = HashSet::new();
    loop {
        let event = tokio::select! {
            () = &mut stopped => return,
            Some(_) = tasks.join_next() => continue,
            event = stream.next() => event,
        };
        match event {
            Some(Ok(watcher::Event::Init)) => listed = HashSet::new(),
            Some(Ok(watcher::Event::InitApply(snapshot))) => {
                if let Some(uid) = uid_of(&snapshot) {
                    listed.insert(uid.clone());
                    see(&node, snapshot, uid, &mut tasks);
                }
            }
            Some(Ok(watcher::Event::InitDone)) => {
                *node.snapshots.wanted() = std::mem::take(&mut listed);
                // Before a later event begins a snapshot, whose image would be taken for one without an object.
                let stale = without_object(&node).await;
                let node = node.clone();
                tasks.spawn(async move {
                    for id in stale {
                        remove(&node, id.as_str()).await;
                    }
                });
            }
            Some(Ok(watcher::Event::Apply(snapshot))) => {
                if let Some(uid) = uid_of(&snapshot) {
                    see(&node, snapshot, uid, &mut tasks);
                }
            }
            Some(Ok(watcher::Event::Delete(snapshot))) => {
                if let Some(uid) = uid_of(&snapshot) {
                    node.snapshots.wanted().remove(&uid);
                    let node = node.clone();
                    tasks.spawn(async move { remove(&node, &uid).await });
                }
            }
            Some(Err(error)) => tracing::debug!(%error, "watching snapshots is retried"),
            None => return,
        }
    }
}

fn uid_of(snapshot: &Read<SandboxSnapshot>) -> Option<String> {
    match snapshot {
        Read::Object(snapshot) => snapshot.uid(),
        Read::Unreadable(unreadable) => unreadable.metadata.uid.clone(),
    }
}

/// Begins the work on a snapshot that was not seen before.
fn see(node: &Arc<Shared>, snapshot: Read<SandboxSnapshot>, uid: String, tasks: &mut JoinSet<()>) {
    // Also one that cannot be read keeps its image.
    let is_new = node.snapshots.wanted().insert(uid.clone());
    let Read::Object(snapshot) = snapshot else { return };
    if !is_new {
        return;
    }
    let Some(id) = PathSegment::label(&uid) else { return };
    let node = node.clone();
    tasks.spawn(async move {
        match outcome(&snapshot) {
            None => {
                if let Some((at, sandbox)) = work(&node, &snapshot, &id).await {
                    delete_at(&node, &snapshot, at, Some(sandbox)).await;
                }
            }
            Some(reason::COMPLETED) => {
                check(&node, &snapshot, &id).await;
                let since = ready(&snapshot).map(|ready| ready.last_transition_time.0);
                let sandbox = snapshot.status.as_ref().and_then(|status| status.sandbox_uid.clone());
                delete_at(&node, &snapshot, since.unwrap_or_else(Timestamp::now), sandbox).await;
            }
            // Its image may be back.
            Some(reason::LOST) if is_whole(&node, &id).await => {
                let sandbox = resume(&node, &snapshot, &id).await;
                delete_at(&node, &snapshot, Timestamp::now(), sandbox).await;
            }
            Some(_) => {}
        }
    });
}

/// Returns true if an image can be read.
async fn is_whole(node: &Arc<Shared>, id: &PathSegment) -> bool {
    let (shared, id) = (node.clone(), id.clone());
    let found = spawn_blocking(move || matches!(shared.snapshots.images.find(&id), Ok(Some(_))));
    found.await.unwrap_or(false)
}

pub(super) fn ready(snapshot: &SandboxSnapshot) -> Option<&Condition> {
    let conditions = snapshot.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().find(|condition| condition.type_ == "Ready")
}

/// Returns the reason of a snapshot on which nothing is left to do.
fn outcome(snapshot: &SandboxSnapshot) -> Option<&str> {
    let ready = ready(snapshot)?;
    let open = [reason::PENDING, reason::IN_PROGRESS];
    (!open.contains(&ready.reason.as_str())).then_some(ready.reason.as_str())
}

/// Deletes a snapshot whose time is over, after waiting for that. `since` is the time of its completion, and `sandbox` the uid of
/// its Sandbox.
async fn delete_at(node: &Shared, snapshot: &SandboxSnapshot, since: Timestamp, sandbox: Option<String>) {
    let Some(text) = &snapshot.spec.ttl else { return };
    let Some(Ok(ttl)) = hutch_api::go_duration(text).map(SignedDuration::try_from) else { return };
    // One that ends later than time itself never does.
    let Ok(at) = since.checked_add(ttl) else { return };
    while let Ok(left) = Duration::try_from(at.duration_since(Timestamp::now())) {
        tokio::select! {
            () = node.shutdown.wait() => return,
            // Clocks are set, so the time is read again.
            () = tokio::time::sleep(left.min(CLOCK)) => {}
        }
        let uid = snapshot.metadata.uid.as_deref().unwrap_or_default();
        if left.is_zero() || !node.snapshots.is_wanted(uid) {
            break;
        }
    }
    let api: Api<SandboxSnapshot> =
        Api::namespaced(node.client.clone(), &snapshot.namespace().unwrap_or_default());
    let preconditions = Preconditions { uid: snapshot.uid(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let mut pause = PAUSE;
    loop {
        match api.delete(&snapshot.name_any(), &parameters).await {
            Ok(_) => {
                let message = format!("Deleted {:?}: its spec.ttl of {text} is over", snapshot.name_any());
                return node.events.of_deleted(snapshot, sandbox.unwrap_or_default(), message);
            }
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => return,
            Err(error) => tracing::warn!(snapshot = snapshot.name_any(), %error, "a deletion is tried again"),
        }
        if !rest(node, &mut pause).await {
            return;
        }
    }
}

/// Waits before another attempt. Returns false if the node stops.
async fn rest(node: &Shared, pause: &mut Duration) -> bool {
    tokio::select! {
        () = node.shutdown.wait() => return false,
        () = tokio::time::sleep(*pause) => {}
    }
    *pause = (*pause * 2).min(MAX_PAUSE);
    true
}

/// Returns the time of completion and the uid of the Sandbox, if it is complete.
async fn work(
    node: &Arc<Shared>,
    snapshot: &SandboxSnapshot,
    id: &PathSegment,
) -> Option<(Timestamp, String)> {
    let requested = Life::of(node, snapshot);
    let complete = is_whole(node, id).await;
    report(node, snapshot, status(false, reason::IN_PROGRESS, "The node takes the snapshot")).await;
    // Complete, and the node was killed before it wrote that.
    if complete {
        let sandbox = resume(node, snapshot, id).await?;
        retention::prune(node, snapshot, &sandbox).await;
        return Some((Timestamp::now(), sandbox));
    }
    if is_of_earlier_life(node, snapshot) {
        tracing::warn!(snapshot = snapshot.name_any(), problem = STARTED_ANEW, "a snapshot failed");
        report(node, snapshot, status(false, reason::FAILED, STARTED_ANEW)).await;
        return None;
    }
    if snapshot.spec.afterwards == Afterwards::Stop {
        wait_for_source(node, snapshot).await;
    }
    match take(node, snapshot, id, requested).await {
        Ok(Taken { image, facts, paused }) => {
            let sandbox = facts.sandbox_uid.clone();
            let new = SandboxSnapshotStatus {
                paused_millis: u64::try_from(paused.as_millis()).ok(),
                ..complete_status(node, facts, &image.sizes())
            };
            if !report(node, snapshot, new).await {
                // It was deleted before there was an image to remove.
                remove(node, id.as_str()).await;
                return None;
            }
            retention::prune(node, snapshot, &sandbox).await;
            Some((Timestamp::now(), sandbox))
        }
        Err(failure) => {
            tracing::warn!(snapshot = snapshot.name_any(), failure.message, "a snapshot failed");
            report(node, snapshot, status(false, failure.reason, &failure.message)).await;
            None
        }
    }
}

/// Returns true if a snapshot was requested in an earlier life of the node, with which the processes of its source have ended. A
/// suspend writes the memory of those that run.
fn is_of_earlier_life(node: &Shared, snapshot: &SandboxSnapshot) -> bool {
    let was_begun = ready(snapshot).is_some_and(|ready| ready.reason == reason::IN_PROGRESS);
    let created = snapshot.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
    let is_earlier = created.is_some_and(|created| created < node.snapshots.since.as_second());
    (was_begun || is_earlier) && !is_suspend(&snapshot.name_any())
}

/// Reports an image that an earlier life of the node completed and did not report. Returns the uid of its Sandbox.
async fn resume(node: &Arc<Shared>, snapshot: &SandboxSnapshot, id: &PathSegment) -> Option<String> {
    let (shared, id) = (node.clone(), id.clone());
    let read = spawn_blocking(move || {
        let image = shared.snapshots.images.find(&id).ok()??;
        let facts = Facts::of(&image).ok()?;
        Some((image.sizes(), facts))
    });
    let Ok(Some((sizes, facts))) = read.await else {
        report(node, snapshot, status(false, reason::LOST, "Its image cannot be read")).await;
        return None;
    };
    let sandbox = facts.sandbox_uid.clone();
    report(node, snapshot, complete_status(node, facts, &sizes)).await;
    Some(sandbox)
}

/// Reports a complete snapshot whose image is gone.
async fn check(node: &Arc<Shared>, snapshot: &SandboxSnapshot, id: &PathSegment) {
    let (shared, image) = (node.clone(), id.clone());
    let found =
        spawn_blocking(move || shared.snapshots.images.find(&image).map(|found| found.is_some())).await;
    let problem = match found {
        Ok(Ok(true)) | Err(_) => return,
        Ok(Ok(false)) => "its image is not on this node".to_owned(),
        Ok(Err(error)) => error.to_string(),
    };
    tracing::warn!(snapshot = snapshot.name_any(), problem, "a snapshot is lost");
    report(node, snapshot, status(false, reason::LOST, &problem)).await;
}

/// Returns the images without an object.
async fn without_object(node: &Arc<Shared>) -> Vec<PathSegment> {
    let images = node.clone();
    let found = spawn_blocking(move || images.snapshots.images.list().unwrap_or_default()).await;
    let mut found = found.unwrap_or_default();
    found.retain(|id| !node.snapshots.is_wanted(id.as_str()));
    found
}

/// Removes an image. A Pod that is paused for it is resumed.
async fn remove(node: &Arc<Shared>, uid: &str) {
    let Some(id) = PathSegment::label(uid) else { return };
    let (shared, image) = (node.clone(), id.clone());
    let removed = spawn_blocking(move || shared.snapshots.images.remove(&image));
    let problem = match removed.await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(error) = problem {
        tracing::warn!(snapshot = uid, error, "failed to remove the image of a snapshot");
    }
    // In any case: no Pod stays paused for a snapshot that does not exist.
    let ended = node.snapshots.unset_ended(&id);
    if let Some(live) = ended.and_then(|pod| node.find(&pod)) {
        reopen(&live).await;
    }
}

/// Resumes a Pod whose suspend is not wanted any more.
async fn reopen(live: &Arc<Live>) {
    let _turn = live.snapshots.lock().await;
    take::resume(live).await;
    live.gate.step(Input::Dropped);
}

fn status(ready: bool, why: &str, message: &str) -> SandboxSnapshotStatus {
    let condition = Condition {
        type_: "Ready".into(),
        status: if ready { "True".into() } else { "False".into() },
        reason: why.to_owned(),
        message: message.chars().take(1024).collect(),
        last_transition_time: Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default()),
        observed_generation: None,
    };
    SandboxSnapshotStatus { conditions: Some(vec![condition]), ..SandboxSnapshotStatus::default() }
}

fn complete_status(node: &Shared, facts: Facts, sizes: &Sizes) -> SandboxSnapshotStatus {
    let what = if facts.machine.is_some() { "Memory and files are on disk" } else { "Files are on disk" };
    SandboxSnapshotStatus {
        // Images of files that do not have it have it in their status, and a merge keeps it.
        handler: facts.handler.or_else(|| facts.machine.as_ref().map(|_| "gvisor".to_owned())),
        runtime: facts.machine.map(|machine| machine.runtime),
        node_name: Some(node.config.node_name.clone()),
        sandbox_uid: Some(facts.sandbox_uid),
        pod_uid: Some(facts.pod_uid),
        volumes: facts.claims,
        sizes: Some(SnapshotSizes { memory: sizes.memory, files: sizes.files }),
        ..status(true, reason::COMPLETED, what)
    }
}

/// Writes the status of a snapshot. Returns false if it does not exist any more.
async fn report(node: &Shared, snapshot: &SandboxSnapshot, status: SandboxSnapshotStatus) -> bool {
    let namespace = snapshot.namespace().unwrap_or_default();
    let api: Api<SandboxSnapshot> = Api::namespaced(node.client.clone(), &namespace);
    // The uid makes the write fail for a namesake.
    let change = json!({"metadata": {"uid": snapshot.uid()}, "status": status});
    let mut pause = PAUSE;
    loop {
        match api.patch_status(&snapshot.name_any(), &PatchParams::default(), &Patch::Merge(&change)).await {
            Ok(_) => return true,
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => return false,
            Err(error) => tracing::warn!(snapshot = snapshot.name_any(), %error, "a status is written again"),
        }
        if !rest(node, &mut pause).await {
            return true;
        }
    }
}
