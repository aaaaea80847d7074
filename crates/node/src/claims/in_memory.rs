//! Claims of volumes in memory.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::admission::Refusal;
use crate::memory_volumes::{Provided, Wanted};
use crate::persistent::{capacity, granted, volume_name};
use crate::shared::Shared;

/// Name of the provisioner of volumes in memory.
pub(super) const PROVISIONER: &str = "hutch.dev/memory";

/// Mounts the volume of a claim, if it is not. The error is for the author of the claim.
pub(crate) async fn provide(node: &Arc<Shared>, claim: &PersistentVolumeClaim) -> Result<Provided, String> {
    let wanted = Wanted::of(claim)?;
    let (shared, was_bound) = (node.clone(), wanted.was_bound());
    let work = move || shared.memory_volumes.provide(&shared.capacity, &wanted);
    let provided = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())??;
    if provided.is_new && was_bound {
        node.events.of_claim(
            claim,
            "MemoryLost",
            "the volume is empty: it was in memory, and its content ended with the earlier run of `hutch up`",
        );
    }
    Ok(provided)
}

/// Binds a claim, or follows its size. Returns why that was refused.
pub(super) async fn bind(
    node: &Arc<Shared>,
    claim: &PersistentVolumeClaim,
) -> Result<Option<Refusal>, kube::Error> {
    let refused = |reason, message| Some(Refusal { reason, message });
    let provided = match provide(node, claim).await {
        Ok(provided) => provided,
        Err(message) => return Ok(refused("ProvisioningFailed", message)),
    };
    if granted(claim).is_none() {
        super::bind_to(node, claim, &provided.folder, PROVISIONER).await?;
    }
    if let Some(message) = provided.lacks {
        return Ok(refused("VolumeResizeFailed", message));
    }
    resized(node, claim, provided.bytes).await.map(|()| None)
}

/// Writes the size of a bound claim in bytes, if it has changed: as the claim requests it, if it is that.
async fn resized(node: &Shared, claim: &PersistentVolumeClaim, bytes: u64) -> Result<(), kube::Error> {
    let Some(before) = granted(claim) else { return Ok(()) };
    if before == bytes {
        return Ok(());
    }
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let requests = match capacity(claim) == Some(bytes) {
        true => json!(requests),
        false => json!({"storage": bytes.to_string()}),
    };
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    let change = Patch::Merge(json!({"spec": {"capacity": requests}}));
    match volumes.patch(&volume_name(claim), &PatchParams::default(), &change).await {
        Ok(_) => {}
        // A user has deleted it. Nothing reads it.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
    }
    let (namespace, name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(node.client.clone(), namespace.unwrap_or("default"));
    let change = json!({"metadata": {"uid": claim.metadata.uid}, "status": {"capacity": requests}});
    api.patch_status(name.unwrap_or(""), &PatchParams::default(), &Patch::Merge(change)).await?;
    Ok(())
}
