//! Persistent volumes in memory: a file system of its own for each claim of the class `hutch-memory`.
//!
//! Such a volume is mounted when its claim is bound and unmounted when the claim is gone. Its size is hard, and all that it may
//! hold counts as memory that Pods have requested. What a process has written is charged to the cgroup of that process, also
//! after the process has ended.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hutch_image::PathSegment;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::capacity::{Amount, Capacity};
use crate::folders::make_folder;
use crate::memory;
use crate::persistent;
use crate::places::{memory_folder, memory_mount};

/// Maximum volumes: each jail that starts copies the list of all mounts.
const MAX_VOLUMES: usize = 1000;
/// Size of a page, in bytes.
const PAGE_BYTES: u64 = 4096;
/// A volume has room for one file in so many bytes, within these bounds.
const BYTES_PER_FILE: u64 = 16 << 10;
const MIN_FILES: u64 = 1024;
const MAX_FILES: u64 = 65_536;

/// Volume as its claim describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    name: String,
    namespace: PathSegment,
    uid: PathSegment,
    /// Size in bytes.
    bytes: u64,
    /// Size in bytes that the claim was given before.
    granted: Option<u64>,
}

impl Wanted {
    /// The error says why there is no such volume, whatever room the node has.
    pub(crate) fn of(claim: &PersistentVolumeClaim) -> Result<Wanted, String> {
        let (namespace, uid) = persistent::names(claim)?;
        let name = claim.metadata.name.clone().unwrap_or_default();
        let bytes = persistent::capacity(claim).ok_or_else(|| {
            format!("persistentvolumeclaim {name:?}: spec.resources.requests.storage must be greater than zero, and less than 16Ei")
        })?;
        Ok(Wanted { name, namespace, uid, bytes, granted: persistent::granted(claim) })
    }

    /// Returns true if the claim had its volume before, in this life of the node or an earlier one.
    pub(crate) fn was_bound(&self) -> bool {
        self.granted.is_some()
    }

    fn key(&self) -> String {
        key(self.uid.as_str())
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("the volume in memory of persistentvolumeclaim {:?}: {error}", self.name)
    }
}

/// Volume that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Provided {
    /// Folder that Pods see.
    pub(crate) folder: PathBuf,
    /// `true` if it was mounted only now, and so is empty.
    pub(crate) is_new: bool,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Reason why it is smaller than its claim requests.
    pub(crate) lacks: Option<String>,
}

/// Volume of a claim.
struct Mounted {
    mount: PathBuf,
    bytes: u64,
}

/// All volumes of the node.
pub(crate) struct MemoryVolumes {
    top: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the uid of the claim.
    mounted: HashMap<String, Mounted>,
    /// `true` if the node stops, and nothing more is mounted.
    over: bool,
}

impl MemoryVolumes {
    /// Volumes below this folder, in which nothing is mounted.
    pub(crate) fn new(top: PathBuf) -> MemoryVolumes {
        MemoryVolumes { top, state: Mutex::default() }
    }

    /// A panic while the lock was held leaves whole values, so the lock stays usable.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mounts the volume of a claim, and gives it another size if the claim requests one. The error is for the author of the
    /// claim. Blocks.
    pub(crate) fn provide(&self, capacity: &Capacity, wanted: &Wanted) -> Result<Provided, String> {
        let mut state = self.state();
        let State { mounted, over } = &mut *state;
        if *over {
            return Err("the node stops".into());
        }
        let folder = memory_folder(&self.top, &wanted.namespace, &wanted.uid);
        let uid = wanted.uid.as_str();
        let others = sum(mounted.iter().filter(|(other, _)| *other != uid).map(|(_, volume)| volume));
        let is_new = !mounted.contains_key(uid);
        if is_new {
            if mounted.len() >= MAX_VOLUMES {
                return Err(format!("the node has {MAX_VOLUMES} volumes in memory, as many as it can have"));
            }
            mounted.insert(uid.to_owned(), self.mount(capacity, wanted, &folder, others)?);
        }
        let Some(volume) = mounted.get_mut(uid) else { return Err("it is not mounted".into()) };
        let lacks = match volume.bytes.cmp(&wanted.bytes) {
            Ordering::Less => check_share(capacity, others, wanted.bytes)
                .and_then(|()| resize(capacity, wanted, volume))
                .err(),
            Ordering::Equal => None,
            // Its claim counts as what it is, also if it holds too much to become smaller.
            Ordering::Greater => {
                let _ = resize(capacity, wanted, volume);
                None
            }
        };
        Ok(Provided { folder, is_new, bytes: volume.bytes, lacks })
    }

    /// Mounts a new volume. One that the claim had before fits in any case, at the size of then.
    fn mount(
        &self,
        capacity: &Capacity,
        wanted: &Wanted,
        folder: &Path,
        others: u64,
    ) -> Result<Mounted, String> {
        let total = capacity.total().memory_bytes;
        let granted = wanted.granted.filter(|bytes| amount(*bytes).memory_bytes <= total);
        let bytes = granted.map_or(wanted.bytes, |granted| granted.min(wanted.bytes));
        if granted.is_none() {
            check_share(capacity, others, bytes)?;
        }
        capacity.take(&wanted.key(), amount(bytes), granted.is_some())?;
        let mount = memory_mount(&self.top, &wanted.namespace, &wanted.uid);
        let made = memory::volume_of(&self.top, &mount, pages(bytes), files(bytes))
            .and_then(|()| make_folder(folder, 0o777, None));
        if let Err(error) = made {
            // The next attempt mounts it again; without this, one that is mounted would be used.
            let _ = memory::unmount_volume(&mount);
            capacity.take_back(&wanted.key());
            return Err(wanted.failed(&error));
        }
        Ok(Mounted { mount, bytes })
    }

    /// Uids of the claims that have a volume.
    pub(crate) fn uids(&self) -> Vec<String> {
        self.state().mounted.keys().cloned().collect()
    }

    /// Removes a volume with its content, unless `is_used`, which is called while no volume can be provided. Blocks.
    pub(crate) fn remove(&self, capacity: &Capacity, uid: &str, is_used: impl FnOnce() -> bool) {
        let mounted = &mut self.state().mounted;
        let Some(volume) = mounted.get(uid).filter(|_| !is_used()) else { return };
        match remove(volume) {
            Ok(()) => {
                mounted.remove(uid);
                capacity.release(&key(uid));
            }
            // The next sweep tries again, and until then its memory counts.
            Err(error) => {
                tracing::warn!(folder = %volume.mount.display(), %error, "failed to remove a volume in memory");
            }
        }
    }

    /// Unmounts all volumes for good, without their content. Blocks.
    pub(crate) fn end(&self) -> io::Result<()> {
        let mut state = self.state();
        state.over = true;
        state.mounted.clear();
        memory::end_emptied(&self.top)
    }
}

/// Key of the requests of a claim among those of Pods, no uid of which begins so.
fn key(uid: &str) -> String {
    format!("claim/{uid}")
}

/// Memory of volumes that are full, in bytes.
fn sum<'a>(volumes: impl Iterator<Item = &'a Mounted>) -> u64 {
    volumes.map(|volume| amount(volume.bytes).memory_bytes).fold(0, u64::saturating_add)
}

/// Refuses a volume with which all of them would have more than half of the memory: ending a process frees nothing of it.
fn check_share(capacity: &Capacity, others: u64, bytes: u64) -> Result<(), String> {
    match others.saturating_add(amount(bytes).memory_bytes) > capacity.total().memory_bytes / 2 {
        true => Err("the volumes in memory would have more than half of the memory of the node".into()),
        false => Ok(()),
    }
}

/// Gives a volume the size that its claim requests.
fn resize(capacity: &Capacity, wanted: &Wanted, volume: &mut Mounted) -> Result<(), String> {
    let larger = wanted.bytes.max(volume.bytes);
    capacity.take(&wanted.key(), amount(larger), larger == volume.bytes)?;
    let resized = memory::resize(&volume.mount, pages(wanted.bytes), files(wanted.bytes));
    if resized.is_ok() {
        volume.bytes = wanted.bytes;
    }
    // No more than was taken.
    let _ = capacity.take(&wanted.key(), amount(volume.bytes), true);
    resized.map_err(|error| wanted.failed(&error))
}

/// Removes a volume. Its files go first: a mount namespace of another program may have a copy of the mount.
fn remove(volume: &Mounted) -> io::Result<()> {
    memory::empty(&volume.mount)?;
    memory::unmount_volume(&volume.mount)?;
    if let Some(namespace) = volume.mount.parent() {
        // Fails when the namespace has other volumes, as it should.
        let _ = std::fs::remove_dir(namespace);
    }
    Ok(())
}

/// Size of the file system of a volume: whole pages, and never 0, which would be no bound.
fn pages(bytes: u64) -> u64 {
    bytes.clamp(1, u64::MAX - PAGE_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Maximum files of a volume.
fn files(bytes: u64) -> u64 {
    (bytes / BYTES_PER_FILE).clamp(MIN_FILES, MAX_FILES)
}

/// Memory of a volume that is full, with that of the kernel for its files, and for pages at places far from each other: it
/// takes somewhat more than a page for each of them.
fn amount(bytes: u64) -> Amount {
    let of_pages = pages(bytes).saturating_mul(2).saturating_add(pages(bytes) / 8);
    let memory_bytes = of_pages.saturating_add(files(bytes).saturating_mul(memory::INODE_BYTES));
    Amount { memory_bytes, ..Amount::default() }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn wanted(name: &str, size: &str, granted: Option<&str>) -> Wanted {
        let status = granted.map(|size| json!({"phase": "Bound", "capacity": {"storage": size}}));
        let claim = json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "status": status,
            "spec": {"storageClassName": "hutch-memory", "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": size}}}});
        Wanted::of(&serde_json::from_value(claim).unwrap()).unwrap()
    }

    /// A folder for volumes on a node with so much memory.
    fn node(memory_bytes: u64) -> (tempfile::TempDir, Capacity, MemoryVolumes) {
        let dir = tempfile::tempdir().unwrap();
        let volumes = MemoryVolumes::new(dir.path().to_owned());
        (dir, Capacity::new(Amount { cpu_millis: 1000, memory_bytes, ..Amount::default() }), volumes)
    }

    #[test]
    fn size_is_whole_pages_and_counts_the_memory_of_files() {
        assert_eq!((pages(1), pages(4096), pages(4097)), (4096, 4096, 8192));
        assert_eq!((files(1), files(64 * MIB), files(1 << 40)), (1024, 4096, 65_536));
        assert_eq!(amount(64 * MIB).memory_bytes, 140 * MIB);
        assert!(amount(u64::MAX).memory_bytes >= u64::MAX - 2 * PAGE_BYTES, "no sum overflows");
    }

    #[test]
    fn claim_without_a_size_has_no_volume() {
        for size in [json!("0"), json!("-1"), json!("100Ei"), json!("word"), json!(null)] {
            let claim = json!({"metadata": {"name": "c", "namespace": "default", "uid": "u"},
                "spec": {"storageClassName": "hutch-memory", "resources": {"requests": {"storage": size}}}});
            let Ok(claim) = serde_json::from_value(claim) else { continue };
            let error = Wanted::of(&claim).unwrap_err();
            assert!(error.contains("spec.resources.requests.storage must be greater than zero"), "{error}");
        }
    }

    #[test]
    fn volume_is_bounded_counted_enlarged_and_removed() {
        hutch_testkit::require!(root);
        let (dir, capacity, volumes) = node(64 * MIB);
        let top = dir.path();
        let first = volumes.provide(&capacity, &wanted("a", "4Mi", None)).unwrap();
        assert!(first.is_new && first.lacks.is_none());
        let file = first.folder.join("file");
        std::fs::write(&file, vec![1; 3 << 20]).unwrap();
        assert_eq!(
            std::fs::write(first.folder.join("more"), vec![1; 2 << 20]).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        std::fs::remove_file(first.folder.join("more")).unwrap();
        // One of its files is the folder, one the top.
        let made =
            (0..2 * MIN_FILES).take_while(|n| std::fs::write(first.folder.join(n.to_string()), "").is_ok());
        assert_eq!(made.count() as u64, MIN_FILES - 3);
        let again = volumes.provide(&capacity, &wanted("a", "4Mi", Some("4Mi"))).unwrap();
        assert!(!again.is_new && file.exists());

        let refused = volumes.provide(&capacity, &wanted("b", "12Mi", None)).unwrap_err();
        assert!(refused.contains("more than half of the memory"), "{refused}");
        capacity.take("pod", Amount { memory_bytes: 50 * MIB, ..Amount::default() }, false).unwrap();
        let refused = volumes.provide(&capacity, &wanted("b", "4Mi", None)).unwrap_err();
        assert_eq!(refused, "0/1 nodes are available: 1 Insufficient memory.");
        capacity.release("pod");
        let lacks = volumes.provide(&capacity, &wanted("a", "64Mi", Some("4Mi"))).unwrap().lacks;
        assert!(lacks.unwrap().contains("more than half of the memory"));
        assert_eq!(volumes.provide(&capacity, &wanted("a", "8Mi", Some("4Mi"))).unwrap().lacks, None);
        std::fs::write(first.folder.join("0"), vec![1; 4 << 20]).expect("it is larger now");
        // It holds 7 MiB.
        let smaller = volumes.provide(&capacity, &wanted("a", "5Mi", Some("4Mi"))).unwrap();
        assert_eq!((smaller.bytes, smaller.lacks), (8 * MIB, None), "it cannot become smaller");
        std::fs::remove_file(first.folder.join("0")).unwrap();
        let smaller = volumes.provide(&capacity, &wanted("a", "5Mi", Some("4Mi"))).unwrap();
        assert_eq!(smaller.bytes, 5 * MIB);
        assert!(std::fs::write(first.folder.join("0"), vec![1; 4 << 20]).is_err(), "it is smaller now");

        volumes.remove(&capacity, "a", || true);
        assert!(file.exists(), "a Pod uses it");
        volumes.remove(&capacity, "a", || false);
        assert!(!top.join("default").exists() && volumes.uids().is_empty());
        assert!(volumes.provide(&capacity, &wanted("b", "12Mi", None)).unwrap().is_new, "its memory is free");
        volumes.end().unwrap();
        assert!(!top.join("default").exists());
        assert!(volumes.provide(&capacity, &wanted("c", "1Mi", None)).is_err(), "the node stops");
    }

    #[test]
    fn claim_that_had_its_volume_before_fits_at_the_size_of_then() {
        hutch_testkit::require!(root);
        let (dir, capacity, volumes) = node(16 * MIB);
        capacity.take("pod", amount(6 * MIB), false).unwrap();
        let provided = volumes.provide(&capacity, &wanted("a", "6Mi", Some("4Mi"))).unwrap();
        assert!(provided.is_new && provided.lacks.is_some(), "{provided:?}");
        let system = rustix::fs::statvfs(&provided.folder).unwrap();
        assert_eq!(system.f_blocks * system.f_frsize, 4 * MIB);
        // More than the machine has is no size that a claim had.
        assert!(volumes.provide(&capacity, &wanted("b", "1Ti", Some("1Ti"))).is_err());
        memory::end(dir.path()).unwrap();
    }
}
