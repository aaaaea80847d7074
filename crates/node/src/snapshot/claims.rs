//! Volumes of claims in snapshots: which ones an image has, and how those of a Sandbox that starts from it are filled.
//!
//! Only an empty volume is filled, once, unless an annotation of the Sandbox requests more: what it has written is its own. A
//! volume is filled in a folder beside it, which takes its place when all bytes of all volumes are on the disk. Then a record
//! says that it happened. A killed node leaves the volume as it was, or what it held beside it, or the filled one.

use std::io;
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
use crate::folders::{make_folder, open_folder, remove_limited, sync, write_durable};
use crate::live::Live;
use crate::persistent::{self, ClaimInUse};
use crate::shared::Shared;
use crate::volumes;

/// End of the name of a folder that is being filled.
const FILLING: &str = ".filling";
/// End of the name of the folder with what a volume held before it was filled once more.
const BEFORE: &str = ".before";
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
        for one in staged {
            // It may have started meanwhile.
            unused(node, live, &one.claim).map_err(|why| refuse(&one.name, why))?;
            let name = one.name.clone();
            let finished = spawn_blocking(move || one.target.finish(&one.record)).await;
            let finished = finished.map_err(io::Error::other).and_then(|finished| finished);
            finished.map_err(|error| refuse(&name, error.to_string()))?;
        }
        Ok(())
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
        let target = Target::of(persistent::folder(&node.places.volumes, &claim)?)?;
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
        let staged = Staged { name: volume.name.clone(), claim: used, target, record };
        let stage = move || {
            staged.target.stage(&restoring.image, &TreeName::Volume(name), capacity)?;
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
    record: String,
}

/// Volume that is filled.
struct Target {
    /// Its folder.
    path: PathBuf,
    parent: PathBuf,
    filling: PathBuf,
    before: PathBuf,
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
        let (filling, before) = (beside(FILLING)?, beside(BEFORE)?);
        let (record, new_record) = (beside(FILLED)?, beside(NEW_RECORD)?);
        Ok(Target { path, parent, filling, before, record, new_record })
    }

    /// Returns true if the volume is to be filled: it is empty and never was filled, or the text `again` is new. If it is not, a
    /// record keeps that so.
    fn wants(&self, again: &str, record: &str) -> io::Result<bool> {
        let found = match std::fs::read_to_string(&self.record) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let wants = !again.is_empty() || self.is_empty()?;
                return if wants { Ok(true) } else { self.write(record).map(|()| false) };
            }
            Err(error) => return Err(error),
        };
        let last = found.split_once('\n').map_or("", |(_, last)| last);
        Ok(!again.is_empty() && again != last)
    }

    fn is_empty(&self) -> io::Result<bool> {
        match std::fs::read_dir(&self.path) {
            Ok(mut entries) => Ok(entries.next().is_none()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Copies a volume, which has at most so many bytes, beside this one. Blocks.
    fn stage(&self, image: &Image, tree: &TreeName, capacity: Option<u64>) -> Result<(), String> {
        let bytes = image.tree_bytes(tree).ok_or("its image does not have it")?;
        if let Some(capacity) = capacity.filter(|capacity| bytes > *capacity) {
            return Err(format!(
                "it holds {bytes} bytes in the snapshot, and its claim requests {capacity}: request more storage"
            ));
        }
        let begun = self.begin(bytes, capacity);
        begun.map_err(|error| error.to_string())?;
        image.copy_out(tree, &self.filling).map_err(|error| error.to_string())?;
        let synced = open_folder(&self.filling).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
        synced.map_err(|error| error.to_string())
    }

    /// Makes the folder that is filled.
    fn begin(&self, bytes: u64, capacity: Option<u64>) -> io::Result<()> {
        remove_limited(&self.filling)?;
        make_folder(&self.filling, 0o700, capacity)?;
        hutch_image::check_room(&self.parent, bytes)
    }

    /// Puts the filled folder in the place of the volume, on the disk too. What the volume held stays beside it. Blocks.
    fn finish(&self, record: &str) -> io::Result<()> {
        if self.is_empty()? {
            remove_limited(&self.path)?;
        } else {
            remove_limited(&self.before)?;
            rustix::fs::renameat_with(CWD, &self.path, CWD, &self.before, RenameFlags::NOREPLACE)?;
        }
        rustix::fs::renameat_with(CWD, &self.filling, CWD, &self.path, RenameFlags::NOREPLACE)?;
        sync(&self.parent)?;
        // No container runs before the record is on the disk.
        self.write(record)
    }

    fn write(&self, record: &str) -> io::Result<()> {
        write_durable(&self.record, &self.new_record, record.as_bytes())
    }
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
            self.target.stage(&self.image, &DATA, Some(1 << 20))?;
            self.target.finish(RECORD).map_err(|error| error.to_string())
        }

        /// Starts a Pod in a new life of the node.
        fn start(&self) {
            self.start_again("");
        }

        fn start_again(&self, again: &str) {
            remove_unfinished(&self.folder.path().join("volumes"));
            let record = format!("uid\n{again}");
            if self.target.wants(again, &record).unwrap() {
                self.target.stage(&self.image, &DATA, None).unwrap();
                self.target.finish(&record).unwrap();
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
    fn empty_volume_is_filled_exactly_and_once() {
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
        // Also if the Sandbox has emptied it.
        fs::remove_dir_all(volume).unwrap();
        fs::create_dir(volume).unwrap();
        scratch.start();
        assert_eq!(fs::read_dir(volume).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(scratch.folder.path().join("outside")).unwrap(), "outside");
    }

    #[test]
    fn volume_with_files_is_filled_only_for_a_new_text_and_what_it_held_stays() {
        let scratch = Scratch::new();
        let volume = &scratch.target.path;
        fs::create_dir_all(volume).unwrap();
        fs::write(volume.join("file"), "own").unwrap();
        for again in ["", "1", "1", "", "2"] {
            let before = scratch.file();
            scratch.start_again(again);
            let is_new = again == "2" || (again == "1" && before == "own");
            assert_eq!(scratch.file(), if is_new { "of the snapshot" } else { before.as_str() }, "{again:?}");
            if is_new {
                assert_eq!(fs::read_to_string(scratch.target.before.join("file")).unwrap(), before);
                fs::write(volume.join("file"), format!("after {again}")).unwrap();
            }
        }
        assert_eq!(scratch.names(), ["1-2", "1-2.before", "1-2.filled"]);
        // It was decided when the Pod first began, also for a volume that is emptied later.
        let scratch = Scratch::new();
        fs::create_dir_all(&scratch.target.path).unwrap();
        fs::write(scratch.target.path.join("file"), "own").unwrap();
        scratch.start();
        fs::remove_file(scratch.target.path.join("file")).unwrap();
        scratch.start();
        assert_eq!(fs::read_dir(&scratch.target.path).unwrap().count(), 0);
    }

    #[test]
    fn killed_node_leaves_the_volume_as_it_was_or_filled() {
        // While the folder is filled.
        let scratch = Scratch::new();
        scratch.target.begin(1, None).unwrap();
        fs::write(scratch.target.filling.join("file"), "half").unwrap();
        scratch.start();
        assert_eq!(scratch.file(), "of the snapshot");
        assert_eq!(scratch.names(), ["1-2", "1-2.filled"]);
        // Between the two names, for a volume with files.
        fs::write(scratch.target.path.join("file"), "own").unwrap();
        fs::rename(&scratch.target.path, &scratch.target.before).unwrap();
        scratch.start_again("1");
        assert_eq!(scratch.file(), "of the snapshot");
        assert_eq!(fs::read_to_string(scratch.target.before.join("file")).unwrap(), "own");
        // Before the record, or with one that is not on the disk.
        let scratch = Scratch::new();
        scratch.start();
        fs::remove_file(&scratch.target.record).unwrap();
        fs::write(&scratch.target.new_record, "ui").unwrap();
        scratch.start();
        assert_eq!(scratch.file(), "of the snapshot");
        assert_eq!(scratch.names(), ["1-2", "1-2.filled"]);
    }

    #[test]
    fn volume_that_is_too_small_or_whose_image_was_changed_stays_as_it_was() {
        let scratch = Scratch::new();
        fs::create_dir_all(&scratch.target.path).unwrap();
        fs::write(scratch.target.path.join("file"), "old").unwrap();
        let refused = scratch.target.stage(&scratch.image, &DATA, Some(4)).unwrap_err();
        assert!(refused.contains("requests 4: request more storage"), "{refused}");
        let absent = TreeName::Volume(PathSegment::fixed("other"));
        assert!(scratch.target.stage(&scratch.image, &absent, None).is_err());
        fs::write(scratch.folder.path().join("images/one/volumes/data/file"), "of an attacker").unwrap();
        let refused = scratch.fill().unwrap_err();
        assert!(refused.contains("has been changed"), "{refused}");
        assert_eq!(scratch.file(), "old");
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
