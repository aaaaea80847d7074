//! Persistent volumes: a folder for each claim, made when it appears and removed when it is gone.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hutch_api::{Read, Unreadable};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;

use crate::folders::remove_limited;
use crate::persistent::{STORAGE_CLASS, folder, volume_name};
use crate::shared::Shared;

/// Name of the provisioner, as the annotation on volumes has it.
const PROVISIONER: &str = "hutch.dev/local";
/// How often folders without a claim are looked for: only those are left that were in use when their claim went.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Binds claims as they appear, until the node stops.
pub(crate) async fn provision(node: Arc<Shared>) {
    let api: Api<Read<PersistentVolumeClaim>> = Api::all(node.client.clone());
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let stopped = node.shutdown.wait();
    let mut stopped = std::pin::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => return,
            event = stream.next() => match event {
                Some(Ok(watcher::Event::Apply(claim) | watcher::Event::InitApply(claim))) => {
                    take(&node, claim).await;
                }
                Some(Ok(watcher::Event::Delete(_))) => node.released.notify_one(),
                Some(Ok(_)) => {}
                Some(Err(error)) => tracing::debug!(%error, "watching claims is retried"),
                None => return,
            },
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

async fn take(node: &Shared, claim: Read<PersistentVolumeClaim>) {
    match claim {
        Read::Object(claim) => {
            if let Err(error) = bind(node, &claim).await {
                tracing::warn!(claim = claim.metadata.name, %error, "a claim could not be bound");
            }
        }
        Read::Unreadable(unreadable) => {
            let Unreadable { metadata, problem } = *unreadable;
            tracing::warn!(claim = metadata.name, problem, "a claim cannot be read and is left as it is");
        }
    }
}

async fn bind(node: &Shared, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase == Some("Bound") || claim.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let Ok(path) = folder(&node.places.volumes, claim) else {
        // The Pod that uses it says why in its own events.
        return Ok(());
    };
    let volume = volume(claim, &path);
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    match volumes.create(&PostParams::default(), &volume).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error),
    }
    let (name, spec) = (volume_name(claim), claim.spec.clone().unwrap_or_default());
    let status = json!({"status": {"phase": "Bound", "accessModes": spec.access_modes,
                                   "capacity": spec.resources.and_then(|r| r.requests)}});
    let (namespace, claim_name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(node.client.clone(), namespace.unwrap_or("default"));
    let bound = json!({"spec": {"volumeName": name}, "metadata": {"annotations": {
        "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
        "volume.kubernetes.io/storage-provisioner": PROVISIONER}}});
    let claim_name = claim_name.unwrap_or("");
    api.patch(claim_name, &PatchParams::default(), &Patch::Merge(bound)).await?;
    api.patch_status(claim_name, &PatchParams::default(), &Patch::Merge(status)).await?;
    let status = json!({"status": {"phase": "Bound"}});
    volumes.patch_status(&volume_name(claim), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

fn volume(claim: &PersistentVolumeClaim, path: &Path) -> PersistentVolume {
    let spec = claim.spec.clone().unwrap_or_default();
    let metadata = &claim.metadata;
    let value = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": volume_name(claim), "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
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
async fn reclaim(node: &Shared) {
    // Folders and volumes are read before the claims are: they are made after their claim, so one that is seen here
    // and has no claim afterwards lost it.
    let root = node.places.volumes.clone();
    let Ok(folders) = tokio::task::spawn_blocking(move || folders(&root)).await else { return };
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    let existing = volumes.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::all(node.client.clone());
    let listed = claims.list_metadata(&ListParams::default()).await;
    let Ok(listed) = listed.inspect_err(|error| tracing::debug!(%error, "claims could not be listed")) else {
        return;
    };
    let mut live: HashSet<String> = listed.items.into_iter().filter_map(|claim| claim.metadata.uid).collect();
    live.extend(node.volumes_in_use());
    for volume in existing {
        let name = volume.metadata.name.as_deref().unwrap_or("");
        let annotations = volume.metadata.annotations.as_ref();
        let ours = annotations
            .is_some_and(|a| a.get("pv.kubernetes.io/provisioned-by").is_some_and(|by| by == PROVISIONER));
        let uid = name.strip_prefix("pvc-").unwrap_or("");
        if ours && !live.contains(uid) {
            // One that is gone already is what was wanted; another failure is tried again by the next sweep.
            let _ = volumes.delete(name, &DeleteParams::default()).await;
        }
    }
    // Fails only when the runtime is shutting down; the next life sweeps.
    let _ = tokio::task::spawn_blocking(move || sweep(&folders, &live)).await;
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
        if uid.is_some_and(|uid| live.contains(&*uid)) {
            continue;
        }
        if let Err(error) = remove_limited(folder) {
            tracing::warn!(folder = %folder.display(), %error, "failed to remove the volume of a deleted claim");
        }
        // Fails when the namespace has other volumes, as it should.
        let _ = folder.parent().map(std::fs::remove_dir);
    }
}

/// The storage class object, so that clients see where their claims go. Best effort: nothing depends on it.
pub(crate) async fn announce(client: &Client) {
    use k8s_openapi::api::storage::v1::StorageClass;
    let mut class = StorageClass { provisioner: PROVISIONER.into(), ..StorageClass::default() };
    class.metadata.name = Some(STORAGE_CLASS.into());
    let default = "storageclass.kubernetes.io/is-default-class".to_owned();
    class.metadata.annotations = Some([(default, "true".to_owned())].into());
    class.reclaim_policy = Some("Delete".into());
    class.volume_binding_mode = Some("Immediate".into());
    let api: Api<StorageClass> = Api::all(client.clone());
    if let Err(error) = api.create(&PostParams::default(), &class).await {
        tracing::debug!(%error, "the storage class was not announced");
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn only_folders_without_a_claim_go() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["a/1", "a/2", "b/3"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        sweep(&folders(root.path()), &HashSet::from(["1".to_owned()]));
        assert!(root.path().join("a/1").is_dir());
        assert!(!root.path().join("a/2").exists() && !root.path().join("b").exists());
    }
}
