//! The volumes of a Pod: folders that are made, filled and taken away with it.
//!
//! What containers write and what the node writes never share a folder. Files of ConfigMaps, Secrets and the downward
//! API are written into a fresh folder, and only below open folders, so no link is followed on the way.

mod given;
mod group;
mod publish;
mod refresh;

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use hutch_api::quantity;
use hutch_image::PathSegment;
use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, PersistentVolumeClaim, PodSpec, Volume};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::config::{DEFAULT_MEMORY_BYTES, DefaultLimits};
use crate::environment::Facts;
use crate::folders::{make_folder, open_folder};
use crate::host_paths::{HostPaths, OnHost};
use crate::persistent::{self, ClaimInUse};
use crate::places::PodPlaces;
use crate::security::Owner;
use crate::tokens::Tokens;
use crate::walks::{Permits, Walk, Walks};
use crate::{limits, memory};
use given::{Given, Sources};
pub(crate) use refresh::{facts, watch as refresh};

/// Least size of a volume in memory, in bytes: one page.
const PAGE_BYTES: u64 = 4096;
/// Maximum volumes in memory of one Pod.
const MAX_IN_MEMORY: usize = 64;

/// A volume that is ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// This folder, writable or not.
    Folder { path: PathBuf, read_only: bool },
    /// This path of the machine.
    OnHost(OnHost),
    /// Only tokens for the API server, which a sandbox does not get: nothing is mounted.
    Nothing,
}

/// A volume, and what has to be known about it while the Pod runs.
pub(crate) struct Made {
    pub(crate) prepared: Prepared,
    /// Digest of the files that the node has written.
    pub(crate) digest: Option<u64>,
}

/// Where volumes are made, and how much memory they may take.
pub(crate) struct Surroundings<'a> {
    /// Folders of the Pod.
    pub(crate) pod: PodPlaces,
    /// Folder of all persistent volumes.
    pub(crate) persistent: &'a Path,
    /// Maximum size of a volume in memory, in bytes.
    pub(crate) memory_bytes: u64,
    /// The group that volumes are given to.
    pub(crate) owner: Option<Owner>,
    /// Notes that the Pod uses a claim, before its volume is touched. The error is why the Pod may not.
    pub(crate) reserve: &'a (dyn Fn(ClaimInUse) -> Result<(), String> + Sync),
    /// Mounts the volume in memory of a claim that was reserved, and returns its folder.
    pub(crate) in_memory:
        &'a (dyn Fn(PersistentVolumeClaim) -> BoxFuture<'a, Result<PathBuf, String>> + Sync),
    /// Tokens of the Pod.
    pub(crate) tokens: &'a Tokens,
    /// Folders of this machine that the Pod may mount.
    pub(crate) host_paths: &'a Arc<HostPaths>,
    /// Walks of the Pod, and the permits of the node for them.
    pub(crate) walks: (&'a Walks, &'a Arc<Permits>),
}

impl Surroundings<'_> {
    /// Waits for the right to give a volume to the group of the Pod, if there is one.
    async fn owner(
        &self,
        namespace: &str,
        is_new: impl FnOnce() -> bool,
    ) -> io::Result<Option<(Owner, Walk)>> {
        let Some(owner) = self.owner else { return Ok(None) };
        let (walks, permits) = self.walks;
        Ok(Some((owner, walks.begin(permits, namespace, is_new).await?)))
    }
}

/// Makes a volume. The error is for the author of the Pod.
pub(crate) async fn prepare(
    client: &Client,
    namespace: &str,
    volume: &Volume,
    surroundings: &Surroundings<'_>,
    facts: &Facts<'_>,
) -> Result<Made, String> {
    let name = &volume.name;
    let segment = PathSegment::label(name)
        .ok_or_else(|| format!("volume {name:?}: the name must be a lowercase RFC 1123 label"))?;
    let pod = surroundings.pod.clone();
    let sources = Sources { client, namespace, facts, tokens: surroundings.tokens };
    let failed = |error: io::Error| format!("MountVolume.SetUp failed for volume {name:?}: {error}");
    let mut digest = None;
    let work: Box<dyn FnOnce() -> io::Result<Prepared> + Send> = if let Some(empty) = &volume.empty_dir {
        let memory_bytes = in_memory(empty).then(|| size_in_memory(empty, surroundings.memory_bytes));
        let size = size(empty);
        let path = scratch_folder(&pod, &segment, memory_bytes.is_some());
        let owner = surroundings.owner(namespace, || is_missing(&path)).await.map_err(failed)?;
        Box::new(move || scratch(&pod, &segment, memory_bytes, size, owner))
    } else if let Some(source) = &volume.persistent_volume_claim {
        let claim: PersistentVolumeClaim = look_up(client, namespace, &source.claim_name, false).await?;
        let path = persistent::folder(surroundings.persistent, &claim)?;
        let read_only = persistent::is_read_only(&claim, source.read_only == Some(true));
        let ran_before = facts.pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
        ClaimInUse::of(&claim, !read_only).map(surroundings.reserve).transpose()?;
        let in_memory = match persistent::is_in_memory(&claim) {
            true => Some((surroundings.in_memory)(claim.clone()).await?),
            false => None,
        };
        let owner =
            if read_only { None } else { surroundings.owner(namespace, || false).await.map_err(failed)? };
        Box::new(move || {
            if let Some(path) = in_memory {
                return owned(path, read_only, owner);
            }
            if !read_only {
                persistent::refuse_writer(&claim, &path, ran_before).map_err(io::Error::other)?;
            }
            writable(path, read_only, persistent::capacity(&claim), owner)
        })
    } else if let Some(source) = volume.host_path.clone() {
        let paths = surroundings.host_paths.clone();
        Box::new(move || paths.find(&source).map(Prepared::OnHost).map_err(io::Error::other))
    } else {
        let nothing = Made { prepared: Prepared::Nothing, digest: None };
        let Some(given) = sources.given(volume).await? else { return Ok(nothing) };
        digest = Some(publish::digest(&given.items));
        let group = surroundings.owner.map(|owner| owner.group);
        Box::new(move || fill(&pod, &segment, &given, group))
    };
    let made = tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())?;
    Ok(Made { prepared: made.map_err(failed)?, digest })
}

/// Returns true for a volume in memory.
pub(crate) fn in_memory(empty: &EmptyDirVolumeSource) -> bool {
    empty.medium.as_deref() == Some("Memory")
}

/// Maximum size of a volume in memory, as a kubelet sets it: the memory limits of all containers, or all memory that the node
/// gives to Pods if that is less. The error is for the author of the Pod.
pub(crate) fn memory_bytes(
    spec: &PodSpec,
    defaults: &DefaultLimits,
    allocatable: u64,
) -> Result<u64, String> {
    let empty = spec.volumes.iter().flatten().filter_map(|volume| volume.empty_dir.as_ref());
    if empty.filter(|empty| in_memory(empty)).count() > MAX_IN_MEMORY {
        return Err(format!("spec.volumes: more than {MAX_IN_MEMORY} emptyDir volumes of medium Memory"));
    }
    let sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(sidecar);
    let mut limit = 0u64;
    for container in spec.containers.iter().chain(sidecars) {
        let bytes = limits::of(container, defaults)?.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES);
        limit = limit.saturating_add(bytes);
    }
    Ok(limit.min(allocatable).max(PAGE_BYTES))
}

/// Size of a volume in memory. One of 0 would have no bound.
fn size_in_memory(empty: &EmptyDirVolumeSource, most: u64) -> u64 {
    size(empty).map_or(most, |size| size.min(most)).max(PAGE_BYTES)
}

fn size(empty: &EmptyDirVolumeSource) -> Option<u64> {
    empty.size_limit.as_ref().and_then(quantity::units).filter(|size| *size > 0)
}

/// An `emptyDir`: on disk, or of this size in memory.
fn scratch(
    pod: &PodPlaces,
    name: &PathSegment,
    memory_bytes: Option<u64>,
    size: Option<u64>,
    owner: Option<(Owner, Walk)>,
) -> io::Result<Prepared> {
    // The policy is one of volumes that outlive their Pod.
    let owner = owner.map(|(owner, walk)| (Owner { on_root_mismatch: false, ..owner }, walk));
    if let Some(bytes) = memory_bytes {
        memory::volume(&pod.all_memory, &pod.written_memory(name), bytes)?;
    }
    let on_disk = size.filter(|_| memory_bytes.is_none());
    writable(scratch_folder(pod, name, memory_bytes.is_some()), false, on_disk, owner)
}

/// Folder of an `emptyDir`.
fn scratch_folder(pod: &PodPlaces, name: &PathSegment, in_memory: bool) -> PathBuf {
    if in_memory { name.below(&pod.written_memory(name)) } else { pod.written_volume(name) }
}

/// Returns true if it is certain that nothing is at this path.
fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// A folder that containers write.
fn writable(
    path: PathBuf,
    read_only: bool,
    bytes: Option<u64>,
    owner: Option<(Owner, Walk)>,
) -> io::Result<Prepared> {
    make_folder(&path, 0o777, bytes)?;
    owned(path, read_only, owner)
}

/// A folder that is there, given to the group of the Pod.
fn owned(path: PathBuf, read_only: bool, owner: Option<(Owner, Walk)>) -> io::Result<Prepared> {
    if let Some((owner, walk)) = owner {
        walk.once(&path, || group::give(&path, owner, &walk))?;
    }
    Ok(Prepared::Folder { path, read_only })
}

/// A folder that only the node writes, made anew.
fn fill(pod: &PodPlaces, name: &PathSegment, given: &Given, group: Option<u32>) -> io::Result<Prepared> {
    if given.secret {
        // Room for the earlier files and those that replace them.
        memory::volume(&pod.all_memory, &pod.given_memory(), 2 * memory::GIVEN_BYTES)?;
    }
    let path = given_folder(pod, name, given.secret);
    publish::write_new(&path, &given.items, group)?;
    Ok(Prepared::Folder { path, read_only: true })
}

/// Folder of a volume that only the node writes.
fn given_folder(pod: &PodPlaces, name: &PathSegment, secret: bool) -> PathBuf {
    if secret { name.below(&pod.given_memory()) } else { pod.given_volume(name) }
}

/// The object of this name, if it is there. A name that would lead to another path of the API is that of none.
pub(crate) async fn find<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    if !hutch_api::syntax::is_path_segment(name) {
        return Ok(None);
    }
    let objects: Api<K> = Api::namespaced(client.clone(), namespace);
    objects.get_opt(name).await.map_err(|e| e.to_string())
}

/// The object that a volume names; an empty one where it is missing and may be.
async fn look_up<K>(client: &Client, namespace: &str, name: &str, optional: bool) -> Result<K, String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Default
        + DeserializeOwned,
{
    match find(client, namespace, name).await? {
        Some(found) => Ok(found),
        None if optional => Ok(K::default()),
        None => Err(format!("{} {name:?} not found", K::kind(&()).to_lowercase())),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    /// A server that has an object at every path.
    fn generous() -> Client {
        let map = || async {
            axum::Json(serde_json::json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}}))
        };
        Client::new(axum::Router::new().fallback(map), "default")
    }

    #[tokio::test]
    async fn name_that_would_be_another_path_names_no_object() {
        let client = generous();
        assert!(find::<ConfigMap>(&client, "default", "map").await.unwrap().is_some());
        for name in [
            "",
            "..",
            "map/status",
            "../secrets/s",
            "../../other/configmaps/map",
            "map?watch=1",
            "a\nb",
            "a\0b",
        ] {
            assert!(find::<ConfigMap>(&client, "default", name).await.unwrap().is_none(), "{name:?}");
        }
        let missing = look_up::<ConfigMap>(&client, "default", "map/status", false).await.unwrap_err();
        assert_eq!(missing, "configmap \"map/status\" not found");
    }

    #[test]
    fn link_in_place_of_a_volume_is_refused() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(outside.path(), &link).unwrap();
        let owner = Owner { group: 7, on_root_mismatch: false };
        assert!(writable(link, false, None, Some((owner, crate::walks::tests::walk()))).is_err());
        assert_eq!(std::os::unix::fs::MetadataExt::gid(&outside.path().metadata().unwrap()), 0);
    }

    #[test]
    fn volume_in_memory_has_its_size_or_the_limits_of_the_containers() {
        let spec = |limit: &str, volumes: usize| -> PodSpec {
            let volume = |n| serde_json::json!({"name": format!("v{n}"), "emptyDir": {"medium": "Memory"}});
            let volumes: Vec<_> = (0..volumes).map(volume).collect();
            let spec = serde_json::json!({"volumes": volumes, "containers": [
                {"name": "c", "resources": {"limits": {"memory": limit}}}]});
            serde_json::from_value(spec).unwrap()
        };
        let most = |limit: &str, allocatable| {
            memory_bytes(&spec(limit, 1), &DefaultLimits::default(), allocatable).unwrap()
        };
        assert_eq!(most("64Mi", 1 << 30), 64 << 20);
        assert_eq!(most("64Gi", 1 << 30), 1 << 30);
        let many = memory_bytes(&spec("64Mi", 65), &DefaultLimits::default(), 1 << 30);
        assert!(many.unwrap_err().contains("more than 64"));
        let size = |size: Option<&str>| {
            let empty = serde_json::json!({"medium": "Memory", "sizeLimit": size});
            size_in_memory(&serde_json::from_value(empty).unwrap(), 64 << 20)
        };
        assert_eq!(size(Some("8Mi")), 8 << 20);
        for unbounded in [None, Some("1Gi"), Some("0")] {
            assert_eq!(size(unbounded), 64 << 20);
        }
        assert_eq!(size(Some("1")), PAGE_BYTES);
    }
}
