//! Volumes of claims in snapshots: which ones an image has, and how those of a Sandbox that starts from it are filled.
//!
//! A volume is filled in a folder beside it, which takes its place when all bytes are on the disk. Then a record says from
//! which snapshot that was, so that it happens once: what a Sandbox writes later is its own. A killed node leaves either the
//! volume as it was, or the filled one.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hutch_api::state::{Afterwards, RESTORE_FAILED, SandboxSnapshotSpec};
use hutch_api::{annotation, owner};
use hutch_image::PathSegment;
use hutch_snapshot::{Image, TreeName};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodSpec, Volume};
use kube::ResourceExt;
use rustix::fs::{CWD, RenameFlags};
use tokio::task::spawn_blocking;

use super::restore::Restoring;
use crate::admission::Refusal;
use crate::folders::{make_folder, open_folder, remove_limited};
use crate::live::Live;
use crate::persistent::{self, ClaimInUse};
use crate::shared::Shared;
use crate::volumes;

/// End of the name of a folder that is being filled, or that has what was in the volume before.
const FILLING: &str = ".filling";
/// End of the name of the record.
const FILLED: &str = ".filled";
/// End of the name of a record that is being written.
const NEW_RECORD: &str = ".filled-new";

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
    /// Fills the volumes of claims that the image has, unless that was done before.
    pub(crate) async fn fill_claims(
        self: &Arc<Self>,
        node: &Arc<Shared>,
        live: &Live,
        pod: &Pod,
    ) -> Result<(), Refusal> {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        for volume in volumes.filter(|volume| self.facts.claims.contains(&volume.name)) {
            let filled = self.fill(node, live, pod, volume).await;
            filled.map_err(|why| Refusal {
                reason: RESTORE_FAILED,
                message: format!("volume {:?}: {why}", volume.name),
            })?;
        }
        Ok(())
    }

    async fn fill(
        self: &Arc<Self>,
        node: &Arc<Shared>,
        live: &Live,
        pod: &Pod,
        volume: &Volume,
    ) -> Result<(), String> {
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
        let target = Target::of(persistent::folder(&node.places.volumes, &claim)?)?;
        let again = pod.annotations().get(annotation::RESTORE_AGAIN).map_or("", String::as_str);
        let record = format!("{}\n{again}", self.uid);
        if target.is_filled(&record).map_err(|error| error.to_string())? {
            return Ok(());
        }
        // A Pod that is ending may still fill it, and containers may have it mounted.
        let used = ClaimInUse::of(&claim, true).ok_or("its claim has no uid")?;
        node.use_claims(live, vec![used.clone()])?;
        if let Some(other) = other_user(node, live, &used.uid, false) {
            return Err(format!("pod {other:?} uses persistentvolumeclaim {:?}", used.name));
        }
        let (restoring, capacity) = (self.clone(), persistent::capacity(&claim));
        let fill = move || target.fill(&restoring.image, &TreeName::Volume(name), capacity, &record);
        spawn_blocking(fill).await.map_err(|error| error.to_string())?
    }
}

/// Volume that is filled.
struct Target {
    /// Its folder.
    path: PathBuf,
    parent: PathBuf,
    filling: PathBuf,
    record: PathBuf,
    new_record: PathBuf,
}

impl Target {
    fn of(path: PathBuf) -> Result<Target, String> {
        let uid = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let parent = path.parent().ok_or("its folder has no parent")?.to_owned();
        let beside = |end: &str| {
            let name = PathSegment::new(format!("{uid}{end}"));
            name.map(|name| name.below(&parent)).ok_or("its claim has an unusable uid")
        };
        let (filling, record, new_record) = (beside(FILLING)?, beside(FILLED)?, beside(NEW_RECORD)?);
        Ok(Target { path, parent, filling, record, new_record })
    }

    /// Returns true if the volume was filled, and this is the record of it.
    fn is_filled(&self, record: &str) -> io::Result<bool> {
        match std::fs::read(&self.record) {
            Ok(found) => Ok(found == record.as_bytes()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fills the volume, which holds at most so many bytes. Blocks.
    fn fill(
        &self,
        image: &Image,
        tree: &TreeName,
        capacity: Option<u64>,
        record: &str,
    ) -> Result<(), String> {
        let bytes = image.tree_bytes(tree).ok_or("its image does not have it")?;
        if let Some(capacity) = capacity.filter(|capacity| bytes > *capacity) {
            return Err(format!(
                "it holds {bytes} bytes in the snapshot, and its claim requests {capacity}: request more storage"
            ));
        }
        let begun = self.begin(bytes, capacity);
        begun.map_err(|error| error.to_string())?;
        image.copy_out(tree, &self.filling).map_err(|error| error.to_string())?;
        self.finish(record).map_err(|error| error.to_string())
    }

    /// Makes the folder that is filled.
    fn begin(&self, bytes: u64, capacity: Option<u64>) -> io::Result<()> {
        remove_limited(&self.filling)?;
        make_folder(&self.filling, 0o700, capacity)?;
        hutch_image::check_room(&self.parent, bytes)
    }

    /// Puts the filled folder in the place of the volume, on the disk too.
    fn finish(&self, record: &str) -> io::Result<()> {
        rustix::fs::syncfs(open_folder(&self.filling)?)?;
        let flags = match self.path.symlink_metadata() {
            Ok(_) => RenameFlags::EXCHANGE,
            Err(error) if error.kind() == io::ErrorKind::NotFound => RenameFlags::NOREPLACE,
            Err(error) => return Err(error),
        };
        rustix::fs::renameat_with(CWD, &self.filling, CWD, &self.path, flags)?;
        sync(&self.parent)?;
        // No container runs before the record is on the disk. Without it, the volume is filled again.
        let mut file = File::create(&self.new_record)?;
        file.write_all(record.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&self.new_record, &self.record)?;
        sync(&self.parent)?;
        // What the volume held before.
        remove_limited(&self.filling)
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Removes what a node left that was killed while it filled volumes. Blocks.
pub(crate) fn remove_unfinished(volumes: &Path) {
    let namespaces = std::fs::read_dir(volumes).into_iter().flatten().flatten();
    let inside =
        namespaces.flat_map(|namespace| std::fs::read_dir(namespace.path()).into_iter().flatten().flatten());
    for entry in inside {
        let name = entry.file_name();
        let is_unfinished =
            name.to_str().is_some_and(|name| name.ends_with(FILLING) || name.ends_with(NEW_RECORD));
        if is_unfinished && let Err(error) = remove_limited(&entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "failed to remove an unfinished volume");
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use hutch_snapshot::Images;
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    const DATA: TreeName = TreeName::Volume(PathSegment::fixed("data"));
    const RECORD: &str = "uid\n";

    /// An image with a volume, and a claim.
    struct Scratch {
        folder: TempDir,
        image: Image,
        target: Target,
    }

    impl Scratch {
        fn new() -> Scratch {
            let folder = tempfile::tempdir().unwrap();
            let source = folder.path().join("source");
            fs::create_dir_all(source.join("sub")).unwrap();
            fs::write(source.join("file"), "of the snapshot").unwrap();
            fs::set_permissions(source.join("file"), fs::Permissions::from_mode(0o4750)).unwrap();
            std::os::unix::fs::symlink(folder.path().join("outside"), source.join("sub/link")).unwrap();
            fs::write(folder.path().join("outside"), "outside").unwrap();
            let images = Images::open(&folder.path().join("images")).unwrap();
            let mut partial = images.begin(&PathSegment::fixed("one")).unwrap();
            partial.copy_tree(&DATA, &source).unwrap();
            let image = partial.finish(json!({})).unwrap();
            let target = Target::of(folder.path().join("volumes/default/1-2")).unwrap();
            Scratch { folder, image, target }
        }

        fn fill(&self) -> Result<(), String> {
            self.target.fill(&self.image, &DATA, Some(1 << 20), RECORD)
        }

        /// Starts a Pod in a new life of the node.
        fn start(&self) {
            remove_unfinished(&self.folder.path().join("volumes"));
            if !self.target.is_filled(RECORD).unwrap() {
                self.fill().unwrap();
            }
        }

        fn file(&self) -> String {
            fs::read_to_string(self.target.path.join("file")).unwrap()
        }

        /// Names beside the volume.
        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.target.parent).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort_unstable();
            names
        }
    }

    #[test]
    fn volume_is_filled_exactly_and_once_for_each_record() {
        let scratch = Scratch::new();
        scratch.start();
        let volume = &scratch.target.path;
        assert_eq!(scratch.file(), "of the snapshot");
        assert_eq!(volume.join("file").metadata().unwrap().permissions().mode() & 0o7777, 0o4750);
        let link = volume.join("sub/link");
        assert_eq!(fs::read_link(&link).unwrap(), scratch.folder.path().join("outside"));
        assert_eq!(scratch.names(), ["1-2", "1-2.filled"]);
        fs::write(volume.join("file"), "newer").unwrap();
        scratch.start();
        assert_eq!(scratch.file(), "newer");
        // Another snapshot, or the same once more.
        for record in ["other\n", "uid\n2"] {
            assert!(!scratch.target.is_filled(record).unwrap());
            scratch.target.fill(&scratch.image, &DATA, None, record).unwrap();
            assert_eq!(scratch.file(), "of the snapshot");
            assert!(scratch.target.is_filled(record).unwrap());
            assert_eq!(scratch.names(), ["1-2", "1-2.filled"]);
            fs::write(volume.join("file"), "newer").unwrap();
        }
        assert_eq!(fs::read_to_string(scratch.folder.path().join("outside")).unwrap(), "outside");
    }

    #[test]
    fn killed_node_leaves_the_volume_as_it_was_or_filled() {
        for with_old in [false, true] {
            // While the folder is filled.
            let scratch = Scratch::new();
            if with_old {
                fs::create_dir_all(&scratch.target.path).unwrap();
                fs::write(scratch.target.path.join("file"), "old").unwrap();
            }
            scratch.target.begin(1, None).unwrap();
            fs::write(scratch.target.filling.join("file"), "half").unwrap();
            if with_old {
                assert_eq!(scratch.file(), "old");
            }
            scratch.start();
            assert_eq!(scratch.file(), "of the snapshot");
            // Before the record, or with one that is not on the disk.
            fs::remove_file(&scratch.target.record).unwrap();
            fs::write(&scratch.target.new_record, "ui").unwrap();
            fs::create_dir(&scratch.target.filling).unwrap();
            fs::write(scratch.target.filling.join("file"), "old").unwrap();
            scratch.start();
            assert_eq!(scratch.file(), "of the snapshot");
            assert_eq!(scratch.names(), ["1-2", "1-2.filled"]);
            // After the record.
            fs::create_dir(&scratch.target.filling).unwrap();
            fs::write(scratch.target.path.join("file"), "newer").unwrap();
            scratch.start();
            assert_eq!(scratch.file(), "newer");
            assert_eq!(scratch.names(), ["1-2", "1-2.filled"]);
        }
    }

    #[test]
    fn volume_that_is_too_small_or_whose_image_was_changed_stays_as_it_was() {
        let scratch = Scratch::new();
        fs::create_dir_all(&scratch.target.path).unwrap();
        fs::write(scratch.target.path.join("file"), "old").unwrap();
        let refused = scratch.target.fill(&scratch.image, &DATA, Some(4), RECORD).unwrap_err();
        assert!(refused.contains("requests 4: request more storage"), "{refused}");
        let absent = TreeName::Volume(PathSegment::fixed("other"));
        assert!(scratch.target.fill(&scratch.image, &absent, None, RECORD).is_err());
        fs::write(scratch.folder.path().join("images/one/volumes/data/file"), "of an attacker").unwrap();
        let refused = scratch.fill().unwrap_err();
        assert!(refused.contains("has been changed"), "{refused}");
        assert_eq!(scratch.file(), "old");
        assert!(!scratch.target.is_filled(RECORD).unwrap());
        remove_unfinished(&scratch.folder.path().join("volumes"));
        assert_eq!(scratch.names(), ["1-2"]);
    }

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
