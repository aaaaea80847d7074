//! Volumes of claims in snapshots: which ones an image has, and how those of a Sandbox that starts from it are filled.
//!
//! Only an empty volume is filled, once, unless an annotation of the Sandbox requests more: what it has written is its own. A
//! volume is filled in a folder beside it, which takes its place when all bytes of all volumes are on the disk
//! ([`crate::saved::fill`]).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hutch_api::state::{Afterwards, RESTORE_FAILED, SandboxSnapshotSpec};
use hutch_api::{annotation, owner};
use hutch_image::PathSegment;
use hutch_snapshot::TreeName;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodSpec, Volume};
use kube::ResourceExt;
use tokio::task::spawn_blocking;

use super::restore::Restoring;
use crate::admission::Refusal;
use crate::live::Live;
use crate::persistent::{self, ClaimInUse};
use crate::saved::fill::{Journal, Target};
use crate::shared::Shared;
use crate::volumes;

/// Volume of a claim that an image gets.
pub(super) struct Kept {
    /// Name of the volume in the Pod, and of its template in the Sandbox.
    pub(super) name: PathSegment,
    pub(super) folder: PathBuf,
    claim: String,
    uid: String,
}

/// Returns the volumes of claims that belong in a snapshot of a Sandbox.
///
/// # Errors
/// One of them does not exist, is not the Sandbox's own, or is written by another Pod.
pub(super) async fn kept(
    node: &Shared,
    live: &Live,
    spec: &SandboxSnapshotSpec,
    sandbox_uid: &str,
) -> Result<Vec<Kept>, String> {
    let chosen = spec.volumes.clone().unwrap_or_default();
    // Those of a suspend stay where they are.
    if spec.afterwards == Afterwards::Stop || chosen.none {
        return Ok(Vec::new());
    }
    let (pod, mut all) = (live.pod(), Vec::new());
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    for volume in volumes.filter(|volume| chosen.has(&volume.name)) {
        let is_named = chosen.include.is_some();
        if let Some(one) = kept_one(node, live, volume, (&spec.source.sandbox, sandbox_uid), is_named).await?
        {
            all.push(one);
        }
    }
    for name in chosen.include.iter().flatten() {
        if !all.iter().any(|one| one.name.as_str() == name) {
            return Err(format!(
                "spec.volumes.include: {name:?} is no volume that a volumeClaimTemplate of Sandbox {:?} made",
                spec.source.sandbox
            ));
        }
    }
    alone(node, live, &all)?;
    Ok(all)
}

/// Returns a volume if its claim was made by a template of the Sandbox of this name and uid.
async fn kept_one(
    node: &Shared,
    live: &Live,
    volume: &Volume,
    (sandbox, uid): (&str, &str),
    is_named: bool,
) -> Result<Option<Kept>, String> {
    let Some(source) = &volume.persistent_volume_claim else { return Ok(None) };
    let name = &source.claim_name;
    if *name != format!("{}-{sandbox}", volume.name) {
        return Ok(None);
    }
    let found = volumes::find::<PersistentVolumeClaim>(&node.client, &live.id.namespace, name).await?;
    let claim =
        found.ok_or_else(|| format!("volume {:?}: persistentvolumeclaim {name:?} not found", volume.name))?;
    if owner::sandbox(&claim).is_none_or(|owner| owner.uid != uid) {
        return Ok(None);
    }
    if persistent::is_in_memory(&claim) {
        let why =
            format!("spec.volumes.include: {:?} is a volume in memory, which no snapshot holds", volume.name);
        return if is_named { Err(why) } else { Ok(None) };
    }
    let folder = persistent::folder(&node.places.volumes, &claim)?;
    let uid = claim.uid().unwrap_or_default();
    if !live.claims().iter().any(|used| used.uid == uid) {
        return Err(format!(
            "volume {:?}: persistentvolumeclaim {name:?} is not the one that the Pod uses",
            volume.name
        ));
    }
    let name = PathSegment::label(&volume.name).ok_or("a volume has no valid name")?;
    Ok(Some(Kept { name, folder, claim: claim.name_any(), uid }))
}

/// Checks that no other Pod writes one of these volumes: its files would be of another moment.
pub(super) fn alone(node: &Shared, live: &Live, all: &[Kept]) -> Result<(), String> {
    for one in all {
        if let Some(pod) = other_user(node, live, &one.uid, true) {
            return Err(format!(
                "volume {:?}: pod {pod:?} writes persistentvolumeclaim {:?} too, so its files would be of another moment: end that \
                 pod, or leave the volume out with spec.volumes",
                one.name.as_str(),
                one.claim
            ));
        }
    }
    Ok(())
}

/// Returns another Pod that uses a claim.
fn other_user(node: &Shared, live: &Live, claim: &str, only_writers: bool) -> Option<String> {
    let others = node.all().into_iter().filter(|other| other.id.uid != live.id.uid && !other.has_ended());
    let uses = |other: &Arc<Live>| {
        other.claims().iter().any(|used| used.uid == claim && (used.writes || !only_writers))
    };
    others.filter(uses).map(|other| other.id.name.clone()).next()
}

/// Checks that a Pod has the claims of an image.
pub(super) fn check(claims: &[String], spec: &PodSpec) -> Result<(), String> {
    let has = |name: &String| {
        let mut volumes = spec.volumes.iter().flatten();
        volumes.any(|volume| volume.name == *name && volume.persistent_volume_claim.is_some())
    };
    match claims.iter().find(|name| !has(name)) {
        Some(name) => {
            Err(format!("it has the volume {name:?} of a claim, and no volumeClaimTemplate has that name"))
        }
        None => Ok(()),
    }
}

impl Restoring {
    /// Fills the volumes of claims that the image has, if they are to be filled: all of them, or none.
    pub(crate) async fn fill_claims(
        self: &Arc<Self>,
        node: &Arc<Shared>,
        live: &Live,
        pod: &Pod,
    ) -> Result<(), Refusal> {
        let refuse = |name: &str, why: String| Refusal {
            reason: RESTORE_FAILED,
            message: format!("volume {name:?}: {why}"),
        };
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut staged: Vec<Staged> = Vec::new();
        for volume in volumes.filter(|volume| self.facts.claims.contains(&volume.name)) {
            let one = self.stage(node, live, (pod, volume), &staged).await;
            staged.extend(one.map_err(|why| refuse(&volume.name, why))?);
        }
        for one in &staged {
            // It may have started meanwhile.
            unused(node, live, &one.claim).map_err(|why| refuse(&one.name, why))?;
        }
        let names: Vec<String> = staged.iter().map(|one| one.name.clone()).collect();
        let targets = staged.into_iter().map(|one| one.target).collect();
        let Some(fill) = Journal::of(targets) else { return Ok(()) };
        let shared = node.clone();
        let filled = spawn_blocking(move || fill.place(&shared.snapshots.unsettled)).await;
        let filled = filled.map_err(io::Error::other).and_then(|filled| filled);
        filled.map_err(|error| refuse(&names.join(", "), error.to_string()))
    }

    /// Copies a volume beside that of the Pod, if this is to be filled.
    async fn stage(
        self: &Arc<Self>,
        node: &Arc<Shared>,
        live: &Live,
        (pod, volume): (&Pod, &Volume),
        before: &[Staged],
    ) -> Result<Option<Staged>, String> {
        let source = volume.persistent_volume_claim.as_ref().ok_or("it is not that of a claim")?;
        let name = PathSegment::label(&volume.name).ok_or("its name is not valid")?;
        let found: Option<PersistentVolumeClaim> =
            volumes::find(&node.client, &live.id.namespace, &source.claim_name).await?;
        let claim =
            found.ok_or_else(|| format!("persistentvolumeclaim {:?} not found", source.claim_name))?;
        // That of another Sandbox, or of several, is not filled over.
        let sandbox = owner::sandbox(pod).map(|owner| &owner.uid);
        if sandbox.is_none() || owner::sandbox(&claim).map(|owner| &owner.uid) != sandbox {
            let claim = claim.name_any();
            return Err(format!(
                "persistentvolumeclaim {claim:?} is not one that the Sandbox of the Pod has made"
            ));
        }
        if persistent::is_in_memory(&claim) {
            return Err("it is a volume in memory, and that of the snapshot is on the disk".into());
        }
        let folder = persistent::folder(&node.places.volumes, &claim)?;
        let target = Target::of(folder).ok_or("its claim has an unusable uid")?;
        let again = pod.annotations().get(annotation::RESTORE_AGAIN).map_or("", String::as_str);
        let record = format!("{}\n{again}", self.uid);
        // A Pod that is ending may still fill it, and containers may have it mounted.
        let used = ClaimInUse::of(&claim, true).ok_or("its claim has no uid")?;
        let all = before.iter().map(|one| one.claim.clone()).chain([used.clone()]);
        node.use_claims(live, all.collect())?;
        if !target.wants(again, &record).map_err(|error| error.to_string())? {
            return Ok(None);
        }
        unused(node, live, &used)?;
        let (restoring, capacity) = (self.clone(), persistent::capacity(&claim));
        let staged = Staged { name: volume.name.clone(), claim: used, target };
        let stage = move || {
            staged.target.stage((&restoring.image, &TreeName::Volume(name)), capacity, &record)?;
            Ok(Some(staged))
        };
        spawn_blocking(stage).await.map_err(|error| error.to_string())?
    }
}

/// Refuses a volume that another Pod uses.
fn unused(node: &Shared, live: &Live, claim: &ClaimInUse) -> Result<(), String> {
    match other_user(node, live, &claim.uid, false) {
        Some(other) => Err(format!("pod {other:?} uses persistentvolumeclaim {:?}", claim.name)),
        None => Ok(()),
    }
}

/// Volume whose new content is complete beside it.
struct Staged {
    name: String,
    claim: ClaimInUse,
    target: Target,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_without_the_claim_of_an_image_is_refused() {
        let spec = |volume: serde_json::Value| -> PodSpec {
            serde_json::from_value(json!({"containers": [], "volumes": [volume]})).unwrap()
        };
        let claims = ["data".to_owned()];
        let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-s"}});
        assert_eq!(check(&claims, &spec(claim)), Ok(()));
        let refused = check(&claims, &spec(json!({"name": "data", "emptyDir": {}}))).unwrap_err();
        assert!(refused.contains("no volumeClaimTemplate"), "{refused}");
        assert_eq!(check(&[], &spec(json!({"name": "x", "emptyDir": {}}))), Ok(()));
    }
}
