//! Persistent volumes: a folder or a file system in memory for each claim, made when it appears and removed when it is gone.

mod in_memory;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use hutch_api::{Read, Unreadable};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde_json::json;

use crate::admission::Refusal;
use crate::folders::remove_limited;
use crate::persistent::{MEMORY_CLASS, STORAGE_CLASS, folder, is_in_memory, uid_of, volume_name};
use crate::shared::Shared;
pub(crate) use in_memory::provide;

/// Name of the provisioner of volumes on the disk, as the annotation on volumes has it.
const PROVISIONER: &str = "hutch.dev/local";
/// Wait before claims that could not be bound are tried again, also without news.
const RETRY: Duration = Duration::from_secs(15);
/// A claim that still waits is reported again after this time: events expire.
const REMIND: Duration = Duration::from_mins(15);
/// How often folders without a claim are looked for: only those are left that were in use when their claim went.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Claim that could not be bound.
struct Waiting {
    claim: PersistentVolumeClaim,
    /// Time of the event that says why.
    reported: Instant,
}

/// Binds claims as they appear, until the node stops.
pub(crate) async fn provision(node: Arc<Shared>) {
    let api: Api<Read<PersistentVolumeClaim>> = Api::all(node.client.clone());
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let stopped = node.shutdown.wait();
    let mut stopped = std::pin::pin!(stopped);
    // Claims that could not be bound, by uid.
    let mut waiting: HashMap<String, Waiting> = HashMap::new();
    // From before the attempts, so that what is given back meanwhile is not missed.
    let mut freed = std::pin::pin!(node.capacity.freed());
    loop {
        tokio::select! {
            () = &mut stopped => return,
            event = stream.next() => match event {
                Some(Ok(watcher::Event::Apply(claim) | watcher::Event::InitApply(claim))) => {
                    take(&node, claim, &mut waiting).await;
                }
                Some(Ok(watcher::Event::Delete(claim))) => {
                    waiting.remove(claim.meta().uid.as_deref().unwrap_or_default());
                    node.released.notify_one();
                }
                Some(Ok(watcher::Event::Init)) => waiting.clear(),
                Some(Ok(watcher::Event::InitDone)) => {}
                Some(Err(error)) => tracing::debug!(%error, "watching claims is retried"),
                None => return,
            },
            () = &mut freed => {
                freed.set(node.capacity.freed());
                retry(&node, &mut waiting).await;
            }
            () = tokio::time::sleep(RETRY), if !waiting.is_empty() => retry(&node, &mut waiting).await,
        }
    }
}

/// Takes volumes away as claims go, until the node stops. Apart from the binding: a large one takes long.
pub(crate) async fn take_away(node: Arc<Shared>) {
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let stopped = node.shutdown.wait();
    let mut stopped = std::pin::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => return,
            _ = sweep.tick() => reclaim(&node).await,
            () = node.released.notified() => reclaim(&node).await,
        }
    }
}

async fn take(
    node: &Arc<Shared>,
    claim: Read<PersistentVolumeClaim>,
    waiting: &mut HashMap<String, Waiting>,
) {
    match claim {
        Read::Object(claim) => try_bind(node, claim, None, waiting).await,
        Read::Unreadable(unreadable) => {
            let Unreadable { metadata, problem } = *unreadable;
            tracing::warn!(claim = metadata.name, problem, "a claim cannot be read and is left as it is");
        }
    }
}

/// Tries the claims again that could not be bound, the oldest first.
async fn retry(node: &Arc<Shared>, waiting: &mut HashMap<String, Waiting>) {
    let mut claims: Vec<Waiting> = std::mem::take(waiting).into_values().collect();
    claims.sort_by_key(|one| one.claim.metadata.creation_timestamp.clone());
    for Waiting { claim, reported } in claims {
        try_bind(node, claim, Some(reported), waiting).await;
    }
}

/// Binds a claim, or lets it wait. That it waits was `reported` before.
async fn try_bind(
    node: &Arc<Shared>,
    claim: PersistentVolumeClaim,
    reported: Option<Instant>,
    waiting: &mut HashMap<String, Waiting>,
) {
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    waiting.remove(&uid);
    let bound = match is_in_memory(&claim) {
        _ if claim.metadata.deletion_timestamp.is_some() => return,
        true => in_memory::bind(node, &claim).await,
        false => bind(node, &claim).await,
    };
    let refusal = match bound {
        Ok(None) => return,
        Ok(Some(refusal)) => Some(refusal),
        // It is gone, and another one may have its name.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => return,
        Err(error) => {
            tracing::warn!(claim = claim.metadata.name, %error, "a claim could not be bound");
            None
        }
    };
    let mut at = reported.unwrap_or_else(Instant::now);
    if let Some(refusal) = refusal
        && (reported.is_none() || at.elapsed() >= REMIND)
    {
        at = Instant::now();
        node.events.of_claim(&claim, refusal.reason, refusal.message);
    }
    waiting.insert(uid, Waiting { claim, reported: at });
}

/// Binds a claim to a folder. Returns why it cannot be bound.
async fn bind(node: &Shared, claim: &PersistentVolumeClaim) -> Result<Option<Refusal>, kube::Error> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase == Some("Bound") {
        return Ok(None);
    }
    match folder(&node.places.volumes, claim) {
        Ok(path) => bind_to(node, claim, &path, PROVISIONER).await.map(|()| None),
        Err(message) => Ok(Some(Refusal { reason: "ProvisioningFailed", message })),
    }
}

/// Makes the volume of a claim, and writes that the claim is bound to it.
async fn bind_to(
    node: &Shared,
    claim: &PersistentVolumeClaim,
    path: &Path,
    provisioner: &str,
) -> Result<(), kube::Error> {
    let volume = volume(claim, path, provisioner);
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    match volumes.create(&PostParams::default(), &volume).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error),
    }
    let (name, spec) = (volume_name(claim), claim.spec.clone().unwrap_or_default());
    let status = json!({"metadata": {"uid": claim.metadata.uid}, "status": {"phase": "Bound",
        "accessModes": spec.access_modes, "capacity": spec.resources.and_then(|r| r.requests)}});
    let (namespace, claim_name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(node.client.clone(), namespace.unwrap_or("default"));
    // With its uid: another claim may have the name by now.
    let uid = &claim.metadata.uid;
    let bound = json!({"spec": {"volumeName": name}, "metadata": {"uid": uid, "annotations": {
        "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
        "volume.kubernetes.io/storage-provisioner": provisioner}}});
    let claim_name = claim_name.unwrap_or("");
    api.patch(claim_name, &PatchParams::default(), &Patch::Merge(bound)).await?;
    api.patch_status(claim_name, &PatchParams::default(), &Patch::Merge(status)).await?;
    let status = json!({"status": {"phase": "Bound"}});
    volumes.patch_status(&volume_name(claim), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

fn volume(claim: &PersistentVolumeClaim, path: &Path, provisioner: &str) -> PersistentVolume {
    let spec = claim.spec.clone().unwrap_or_default();
    let metadata = &claim.metadata;
    let value = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": volume_name(claim), "annotations": {"pv.kubernetes.io/provisioned-by": provisioner}},
        "spec": {
            "accessModes": spec.access_modes, "volumeMode": "Filesystem",
            "capacity": spec.resources.and_then(|r| r.requests),
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": metadata.name,
                         "namespace": metadata.namespace, "uid": metadata.uid},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec.storage_class_name.unwrap_or_else(|| STORAGE_CLASS.into()),
            "hostPath": {"path": path, "type": ""},
        },
    });
    // Every field above is one of the type's.
    serde_json::from_value(value).unwrap_or_default()
}

/// Removes volumes and folders whose claims are gone and that no Pod uses.
async fn reclaim(node: &Arc<Shared>) {
    // Folders and volumes are read before the claims are: they are made after their claim, so one that is seen here
    // and has no claim afterwards lost it.
    let root = node.places.volumes.clone();
    let Ok(folders) = tokio::task::spawn_blocking(move || folders(&root)).await else { return };
    let in_memory = node.memory_volumes.uids();
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    let existing = volumes.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::all(node.client.clone());
    let listed = claims.list_metadata(&ListParams::default()).await;
    let Ok(listed) = listed.inspect_err(|error| tracing::debug!(%error, "claims could not be listed")) else {
        return;
    };
    let mut live: HashSet<String> = listed.items.into_iter().filter_map(|claim| claim.metadata.uid).collect();
    live.extend(node.volumes_in_use());
    // What they hold may lie beside them.
    live.extend(node.snapshots.unsettled.claims());
    for volume in existing {
        let name = volume.metadata.name.as_deref().unwrap_or("");
        let annotations = volume.metadata.annotations.as_ref();
        let ours = annotations
            .and_then(|all| all.get("pv.kubernetes.io/provisioned-by"))
            .is_some_and(|by| by == PROVISIONER || by == in_memory::PROVISIONER);
        let uid = name.strip_prefix("pvc-").unwrap_or("");
        if ours && !live.contains(uid) {
            // One that is gone already is what was wanted; another failure is tried again by the next sweep.
            let _ = volumes.delete(name, &DeleteParams::default()).await;
        }
    }
    // Fails only when the runtime is shutting down; the next life sweeps.
    let node = node.clone();
    let _ = tokio::task::spawn_blocking(move || {
        sweep(&folders, &live);
        for uid in in_memory.iter().filter(|uid| !live.contains(*uid)) {
            node.memory_volumes.remove(&node.capacity, uid, || node.volumes_in_use().contains(uid));
        }
    })
    .await;
}

/// The folders of all claims.
fn folders(root: &Path) -> Vec<PathBuf> {
    let namespaces = std::fs::read_dir(root).into_iter().flatten().flatten();
    let inside =
        namespaces.flat_map(|namespace| std::fs::read_dir(namespace.path()).into_iter().flatten().flatten());
    inside.map(|folder| folder.path()).collect()
}

/// Removes the folders of claims that are gone. One that cannot be removed keeps no other.
fn sweep(folders: &[PathBuf], live: &HashSet<String>) {
    for folder in folders {
        let uid = folder.file_name().map(|name| name.to_string_lossy());
        if uid.is_some_and(|uid| live.contains(uid_of(&uid))) {
            continue;
        }
        if let Err(error) = remove_limited(folder) {
            tracing::warn!(folder = %folder.display(), %error, "failed to remove the volume of a deleted claim");
        }
        // Fails when the namespace has other volumes, as it should.
        let _ = folder.parent().map(std::fs::remove_dir);
    }
}

/// The storage class objects, so that clients see where their claims go. Best effort: nothing depends on them.
pub(crate) async fn announce(client: &Client) {
    let is_default = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    let description = json!({"kubernetes.io/description": "A file system in memory that Pods of one namespace share. \
        Its content ends with the claim and with `hutch up`."});
    for (name, provisioner, annotations) in
        [(STORAGE_CLASS, PROVISIONER, is_default), (MEMORY_CLASS, in_memory::PROVISIONER, description)]
    {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name, "annotations": annotations}, "provisioner": provisioner,
            "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true});
        // Every field above is one of the type's.
        let class: StorageClass = serde_json::from_value(class).unwrap_or_default();
        let api: Api<StorageClass> = Api::all(client.clone());
        if let Err(error) = api.create(&PostParams::default(), &class).await {
            tracing::debug!(%error, name, "the storage class was not announced");
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn only_folders_without_a_claim_go() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["a/1", "a/1.filling", "a/2", "a/2.filling", "b/3"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        sweep(&folders(root.path()), &HashSet::from(["1".to_owned()]));
        assert!(root.path().join("a/1").is_dir() && root.path().join("a/1.filling").is_dir());
        assert!(!root.path().join("a/2").exists() && !root.path().join("a/2.filling").exists());
        assert!(!root.path().join("b").exists());
    }
}
