//! Claims of persistent volumes: their folders, sizes and access modes.

use std::path::{Path, PathBuf};

use hutch_api::quantity;
use hutch_image::PathSegment;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};

use crate::places;
use crate::usage::measure;

/// Storage class of volumes that are folders on the disk.
pub(crate) const STORAGE_CLASS: &str = "hutch-local";
/// Storage class of volumes in memory.
pub(crate) const MEMORY_CLASS: &str = "hutch-memory";
/// Other names that manifests commonly use for local storage.
const SYNONYMS: [&str; 3] = ["", "standard", "local-path"];
/// Access modes that exist.
const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
/// Condition of a claim whose volume holds more than its capacity.
pub(crate) const OVER_CAPACITY: &str = "VolumeOverCapacity";

/// Claim that a Pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimInUse {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// `true` if the Pod may write the volume.
    pub(crate) writes: bool,
    /// `true` if no other Pod may use it.
    pub(crate) exclusive: bool,
    /// `true` if its volume is in memory.
    pub(crate) in_memory: bool,
}

impl ClaimInUse {
    /// Returns `None` for a claim that no server has stored.
    pub(crate) fn of(claim: &PersistentVolumeClaim, writes: bool) -> Option<ClaimInUse> {
        let metadata = claim.metadata.clone();
        let (namespace, name, uid) = (metadata.namespace?, metadata.name?, metadata.uid?);
        let (exclusive, in_memory) = (is_exclusive(claim), is_in_memory(claim));
        Some(ClaimInUse { namespace, name, uid, writes, exclusive, in_memory })
    }

    /// Returns its folder below that of all persistent volumes on the disk; `None` for a volume in memory.
    pub(crate) fn folder(&self, volumes: &Path) -> Option<PathBuf> {
        let (namespace, uid) = segments(&self.namespace, &self.uid).filter(|_| !self.in_memory)?;
        Some(uid.below(&namespace.below(volumes)))
    }
}

/// Returns the names of the folder of a claim, its namespace and its uid. The error says why it is not ours.
pub(crate) fn names(claim: &PersistentVolumeClaim) -> Result<(PathSegment, PathSegment), String> {
    let metadata = &claim.metadata;
    let name = metadata.name.as_deref().unwrap_or("");
    let (Some(namespace), Some(uid)) = (&metadata.namespace, &metadata.uid) else {
        return Err(format!("persistentvolumeclaim {name:?} has no uid"));
    };
    if metadata.deletion_timestamp.is_some() {
        return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
    }
    check(claim)?;
    segments(namespace, uid)
        .ok_or_else(|| format!("persistentvolumeclaim {name:?} has an unusable namespace or uid"))
}

/// Returns the folder of a claim on the disk. The error says why it is not ours.
pub(crate) fn folder(volumes: &Path, claim: &PersistentVolumeClaim) -> Result<PathBuf, String> {
    let (namespace, uid) = names(claim)?;
    Ok(uid.below(&namespace.below(volumes)))
}

/// Returns the uid of the claim to which a file or folder of this name belongs: its folder, or what lies beside that.
pub(crate) fn uid_of(name: &str) -> &str {
    // No uid has a dot.
    name.split_once('.').map_or(name, |(uid, _)| uid)
}

fn segments(namespace: &str, uid: &str) -> Option<(PathSegment, PathSegment)> {
    let plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    Some((PathSegment::label(namespace)?, PathSegment::new(uid).filter(|_| plain)?))
}

/// Returns the folder of the volume of a claim below a data folder; `None` if a name would lead elsewhere. That of a volume in
/// memory is there only while its file system is mounted.
pub fn volume_folder(data: &Path, claim: &PersistentVolumeClaim) -> Option<PathBuf> {
    let metadata = &claim.metadata;
    let (namespace, uid) = segments(metadata.namespace.as_deref()?, metadata.uid.as_deref()?)?;
    Some(match is_in_memory(claim) {
        true => places::memory_folder(&places::memory_volumes(data), &namespace, &uid),
        false => uid.below(&namespace.below(&places::volumes(data))),
    })
}

/// Returns true if a claim is for a volume in memory.
pub fn is_in_memory(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_some_and(|spec| spec.storage_class_name.as_deref() == Some(MEMORY_CLASS))
}

/// Checks that a claim is for a volume of this node.
fn check(claim: &PersistentVolumeClaim) -> Result<(), String> {
    let name = claim.metadata.name.as_deref().unwrap_or("");
    let Some(spec) = &claim.spec else { return Err(format!("persistentvolumeclaim {name:?} has no spec")) };
    let class = spec.storage_class_name.as_deref().unwrap_or(STORAGE_CLASS);
    if ![STORAGE_CLASS, MEMORY_CLASS].contains(&class) && !SYNONYMS.contains(&class) {
        return Err(format!(
            "persistentvolumeclaim {name:?}: storage class {class:?} is not provided here; leave it out or use {STORAGE_CLASS} or {MEMORY_CLASS}"
        ));
    }
    // A claim that an earlier version has bound keeps its volume.
    if spec.volume_name.as_deref().is_none_or(str::is_empty) || class == MEMORY_CLASS {
        check_fields(spec).map_err(|problem| format!("persistentvolumeclaim {name:?}: {problem}"))?;
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(format!("persistentvolumeclaim {name:?}: volumeMode Block is not supported"));
    }
    match &spec.volume_name {
        Some(volume) if *volume != volume_name(claim) && !volume.is_empty() => Err(format!(
            "persistentvolumeclaim {name:?}: bound to {volume:?}, which is no volume of this node"
        )),
        _ => Ok(()),
    }
}

/// Refuses fields of a claim that its volume would not follow.
fn check_fields(spec: &PersistentVolumeClaimSpec) -> Result<(), String> {
    let fields = [
        (spec.selector.is_some(), "selector"),
        (spec.data_source.is_some(), "dataSource"),
        (spec.data_source_ref.is_some(), "dataSourceRef"),
        (spec.volume_attributes_class_name.is_some(), "volumeAttributesClassName"),
    ];
    if let Some((_, field)) = fields.into_iter().find(|(set, _)| *set) {
        return Err(format!("spec.{field} is not supported"));
    }
    let modes = spec.access_modes.iter().flatten();
    if let Some(mode) = modes.into_iter().find(|mode| !ACCESS_MODES.contains(&mode.as_str())) {
        return Err(format!("spec.accessModes: {mode:?} is not one of {}", ACCESS_MODES.join(", ")));
    }
    Ok(())
}

/// Returns true if the volume of a claim is mounted read-only: as the Pod has it, or because no mode of the claim allows to
/// write.
pub(crate) fn is_read_only(claim: &PersistentVolumeClaim, read_only: bool) -> bool {
    let modes = claim.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
    let mut modes = modes.peekable();
    read_only || (modes.peek().is_some() && modes.all(|mode| mode == "ReadOnlyMany"))
}

/// Returns true if only one Pod at a time may use the claim.
pub(crate) fn is_exclusive(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
    modes.into_iter().any(|mode| mode == "ReadWriteOncePod")
}

/// Returns the name of the volume of a claim.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or(""))
}

/// Returns the capacity of a claim in bytes.
pub fn capacity(claim: &PersistentVolumeClaim) -> Option<u64> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").and_then(quantity::units).filter(|bytes| *bytes > 0)
}

/// Returns the capacity in bytes that a bound claim was given.
pub(crate) fn granted(claim: &PersistentVolumeClaim) -> Option<u64> {
    let status = claim.status.as_ref().filter(|status| status.phase.as_deref() == Some("Bound"))?;
    status.capacity.as_ref()?.get("storage").and_then(quantity::units).filter(|bytes| *bytes > 0)
}

/// Returns true if the volume of a claim held more than its capacity when it was measured.
pub fn is_over_capacity(claim: &PersistentVolumeClaim) -> bool {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|one| one.type_ == OVER_CAPACITY).any(|one| one.status == "True")
}

/// Returns by how much a volume exceeds its capacity.
pub(crate) fn message(used: u64, capacity: u64) -> String {
    format!("the volume holds {used} bytes, more than its capacity of {capacity} bytes")
}

/// Returns why a Pod that writes the volume of a claim is not started. Only a claim with the condition is measured. Blocks.
pub(crate) fn refuse_writer(
    claim: &PersistentVolumeClaim,
    folder: &Path,
    ran_before: bool,
) -> Result<(), String> {
    // It has the volume since before, and continues with it after a restart of the node.
    if ran_before {
        return Ok(());
    }
    let Some(capacity) = capacity(claim).filter(|_| is_over_capacity(claim)) else { return Ok(()) };
    let used = measure(folder).bytes;
    if used <= capacity {
        return Ok(());
    }
    let name = claim.metadata.name.as_deref().unwrap_or("");
    let message = message(used, capacity);
    Err(format!(
        "persistentvolumeclaim {name:?}: {OVER_CAPACITY}: {message}. Remove files or request more storage; readers can be started"
    ))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(change: serde_json::Value) -> PersistentVolumeClaim {
        let mut value = json!({"metadata": {"name": "c", "namespace": "default", "uid": "1-2"},
                               "spec": {"accessModes": ["ReadWriteOnce"]}});
        for (key, new) in change.as_object().unwrap() {
            value["spec"][key] = new.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_claim_has_one_folder_or_a_reason() {
        let root = Path::new("/v");
        assert_eq!(folder(root, &claim(json!({}))).unwrap(), Path::new("/v/default/1-2"));
        assert!(folder(root, &claim(json!({"storageClassName": "standard"}))).is_ok());
        assert!(folder(root, &claim(json!({"volumeName": "pvc-1-2"}))).is_ok());
        for (change, word) in [
            (json!({"storageClassName": "ebs"}), "ebs"),
            (json!({"volumeMode": "Block"}), "Block"),
            (json!({"volumeName": "pv-of-others"}), "pv-of-others"),
            (json!({"storageClassName": "hutch-memory", "volumeName": "pv-of-others"}), "pv-of-others"),
            (json!({"storageClassName": "hutch-memory", "selector": {}}), "spec.selector"),
            (json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}), "spec.dataSource"),
            (json!({"volumeName": "", "selector": {}}), "spec.selector"),
            (json!({"storageClassName": "hutch-memory", "accessModes": ["Any"]}), "spec.accessModes"),
        ] {
            let error = folder(root, &claim(change)).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let mut hostile = claim(json!({}));
        hostile.metadata.uid = Some("../..".into());
        assert!(folder(root, &hostile).is_err());
        assert_eq!(volume_folder(root, &hostile), None);
        let in_memory = claim(json!({"storageClassName": "hutch-memory"}));
        let found = volume_folder(root, &in_memory).unwrap();
        assert_eq!(found, Path::new("/v/memory-volumes/default/1-2/data"));
        assert_eq!(ClaimInUse::of(&in_memory, true).unwrap().folder(root), None, "it is not on the disk");
    }

    #[test]
    fn access_modes_decide_who_writes() {
        for (modes, read_only, exclusive) in [
            (json!([]), false, false),
            (json!(["ReadWriteOnce"]), false, false),
            (json!(["ReadWriteOncePod"]), false, true),
            (json!(["ReadWriteMany", "ReadOnlyMany"]), false, false),
            (json!(["ReadOnlyMany"]), true, false),
        ] {
            let claim = claim(json!({ "accessModes": modes }));
            assert_eq!(
                (is_read_only(&claim, false), is_exclusive(&claim)),
                (read_only, exclusive),
                "{modes}"
            );
            assert!(is_read_only(&claim, true));
        }
    }

    #[test]
    fn writer_is_refused_while_the_volume_is_over_its_capacity() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), vec![1; 1 << 20]).unwrap();
        let claim = |storage: &str, over: bool| {
            let mut claim = claim(json!({"resources": {"requests": {"storage": storage}}}));
            let status =
                json!({"conditions": over.then(|| [json!({"type": OVER_CAPACITY, "status": "True"})])});
            claim.status = serde_json::from_value(status).unwrap();
            claim
        };
        assert_eq!(
            refuse_writer(&claim("512Ki", false), dir.path(), false),
            Ok(()),
            "it was not measured yet"
        );
        let refused = refuse_writer(&claim("512Ki", true), dir.path(), false).unwrap_err();
        assert!(refused.contains("VolumeOverCapacity") && refused.contains("524288"), "{refused}");
        assert_eq!(refuse_writer(&claim("512Ki", true), dir.path(), true), Ok(()), "it ran before");
        assert_eq!(refuse_writer(&claim("2Mi", true), dir.path(), false), Ok(()));
    }
}
