//! The volumes of a Pod: folders that are made, filled and taken away with it.
//!
//! What containers write and what the node writes never share a folder. Files of ConfigMaps, Secrets and the downward
//! API are written into a fresh folder, and only below open folders, so no link is followed on the way.

mod group;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use hutch_api::quantity;
use hutch_image::{Folder, PathSegment, remove_tree};

use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, PersistentVolumeClaim, PodSpec,
    ProjectedVolumeSource, Secret, Volume,
};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;

use crate::config::{DEFAULT_MEMORY_BYTES, DefaultLimits};
use crate::environment::{self, Facts};
use crate::places::PodPlaces;
use crate::{claims, limits, memory};

/// Least size of a volume in memory, in bytes: one page.
const PAGE_BYTES: u64 = 4096;
/// Mode of files from ConfigMaps, Secrets and the downward API that name none.
const DEFAULT_MODE: i32 = 0o644;
/// The ConfigMap that Kubernetes puts beside a token for its API.
const API_CERTIFICATE: &str = "kube-root-ca.crt";
/// Maximum files of one such volume.
const MAX_FILES: usize = 10_000;
/// Maximum size of the files of one such volume, in bytes: as much as all volumes in memory that the node writes.
const MAX_VOLUME_BYTES: usize = memory::GIVEN_BYTES as usize;

/// A volume that is ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// This folder, writable or not.
    Folder { path: PathBuf, read_only: bool },
    /// Only tokens for the API server, which a sandbox does not get: nothing is mounted.
    Nothing,
}

/// A file of a volume.
struct Item {
    path: String,
    content: Vec<u8>,
    mode: i32,
}

/// Where volumes are made, and how much memory they may take.
pub(crate) struct Surroundings<'a> {
    /// Folders of the Pod.
    pub(crate) pod: PodPlaces,
    /// Folder of all persistent volumes.
    pub(crate) persistent: &'a Path,
    /// Maximum size of what containers write into volumes in memory, in bytes.
    pub(crate) memory_bytes: u64,
    /// The group that volumes are given to.
    pub(crate) group: Option<u32>,
}

/// Makes a volume. The error is for the author of the Pod.
pub(crate) async fn prepare(
    client: &Client,
    namespace: &str,
    volume: &Volume,
    surroundings: &Surroundings<'_>,
    facts: &Facts<'_>,
) -> Result<Prepared, String> {
    let name = &volume.name;
    let segment = PathSegment::label(name)
        .ok_or_else(|| format!("volume {name:?}: the name must be a lowercase RFC 1123 label"))?;
    let pod = surroundings.pod.clone();
    let sources = Sources { client, namespace, facts };
    let group = surroundings.group;
    let work: Box<dyn FnOnce() -> io::Result<Prepared> + Send> = if let Some(empty) = &volume.empty_dir {
        let memory_bytes = (empty.medium.as_deref() == Some("Memory")).then_some(surroundings.memory_bytes);
        Box::new(move || scratch(&pod, &segment, memory_bytes, group))
    } else if let Some(source) = &volume.persistent_volume_claim {
        let claim: PersistentVolumeClaim = look_up(client, namespace, &source.claim_name, false).await?;
        let path = claims::folder(surroundings.persistent, &claim)?;
        let read_only = source.read_only == Some(true);
        Box::new(move || writable(path, read_only, group))
    } else {
        let Some(given) = sources.given(volume).await? else { return Ok(Prepared::Nothing) };
        Box::new(move || fill(&pod, &segment, &given, group))
    };
    let made = tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())?;
    made.map_err(|e| format!("MountVolume.SetUp failed for volume {name:?}: {e}"))
}

/// Maximum size of what the containers of a Pod write into its volumes in memory: the memory limits of its containers,
/// or the sizes of the volumes where each names one and they are less.
pub(crate) fn memory_bytes(spec: &PodSpec, defaults: &DefaultLimits) -> Result<u64, String> {
    let sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(sidecar);
    let mut limit = 0u64;
    for container in spec.containers.iter().chain(sidecars) {
        let bytes = limits::of(container, defaults)?.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES);
        limit = limit.saturating_add(bytes);
    }
    let empty = spec.volumes.iter().flatten().filter_map(|volume| volume.empty_dir.as_ref());
    let mut sizes = Some(0u64);
    for empty in empty.filter(|empty| empty.medium.as_deref() == Some("Memory")) {
        let size = empty.size_limit.as_ref().and_then(quantity::units).filter(|size| *size > 0);
        sizes = sizes.zip(size).map(|(all, size)| all.saturating_add(size));
    }
    // A tmpfs of size 0 has no bound.
    Ok(sizes.filter(|size| *size > 0).map_or(limit, |size| size.min(limit)).max(PAGE_BYTES))
}

/// An `emptyDir`: on disk, or of this size in memory.
fn scratch(
    pod: &PodPlaces,
    name: &PathSegment,
    memory_bytes: Option<u64>,
    group: Option<u32>,
) -> io::Result<Prepared> {
    let path = match memory_bytes {
        Some(bytes) => {
            memory::volume(&pod.all_memory, &pod.written_memory(), bytes)?;
            name.below(&pod.written_memory())
        }
        None => pod.written_volume(name),
    };
    writable(path, false, group)
}

/// A folder that containers write.
fn writable(path: PathBuf, read_only: bool, group: Option<u32>) -> io::Result<Prepared> {
    make_folder(&path, 0o777)?;
    if let Some(group) = group.filter(|_| !read_only) {
        group::give(&path, group)?;
    }
    Ok(Prepared::Folder { path, read_only })
}

/// A folder that only the node writes, made anew.
fn fill(pod: &PodPlaces, name: &PathSegment, given: &Given, group: Option<u32>) -> io::Result<Prepared> {
    let path = match given.secret {
        true => {
            memory::volume(&pod.all_memory, &pod.given_memory(), memory::GIVEN_BYTES)?;
            name.below(&pod.given_memory())
        }
        false => pod.given_volume(name),
    };
    write(&path, &given.items)?;
    if let Some(group) = group {
        group::let_read(&path, group)?;
    }
    Ok(Prepared::Folder { path, read_only: true })
}

/// The files of a volume that the node writes.
struct Given {
    items: Vec<Item>,
    /// `true` if they may be secret, and are kept in memory.
    secret: bool,
}

/// Where the files of a volume come from.
struct Sources<'a> {
    client: &'a Client,
    namespace: &'a str,
    facts: &'a Facts<'a>,
}

impl Sources<'_> {
    /// The files of a volume; `None` when a sandbox gets nothing of it.
    async fn given(&self, volume: &Volume) -> Result<Option<Given>, String> {
        let disk = |items| Ok(Some(Given { items, secret: false }));
        let memory = |items| Ok(Some(Given { items, secret: true }));
        if let Some(map) = &volume.config_map {
            let mode = map.default_mode.unwrap_or(DEFAULT_MODE);
            disk(self.config_map(&map.name, map.items.as_deref(), mode, map.optional).await?)
        } else if let Some(secret) = &volume.secret {
            let mode = secret.default_mode.unwrap_or(DEFAULT_MODE);
            let name = secret.secret_name.as_deref().unwrap_or("");
            memory(self.secret(name, secret.items.as_deref(), mode, secret.optional).await?)
        } else if let Some(downward) = &volume.downward_api {
            disk(self.downward(downward.items.as_deref(), downward.default_mode.unwrap_or(DEFAULT_MODE))?)
        } else if let Some(projected) = &volume.projected {
            match self.projected(&volume.name, projected).await? {
                Some(items) => memory(items),
                None => Ok(None),
            }
        } else {
            disk(Vec::new())
        }
    }

    async fn config_map(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<Vec<Item>, String> {
        let optional = optional == Some(true);
        let map: ConfigMap = look_up(self.client, self.namespace, name, optional).await?;
        let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
        let binary = map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0));
        choose(&text.chain(binary).collect(), items, mode, optional)
    }

    async fn secret(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<Vec<Item>, String> {
        let optional = optional == Some(true);
        let secret: Secret = look_up(self.client, self.namespace, name, optional).await?;
        let data = secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect();
        choose(&data, items, mode, optional)
    }

    fn downward(&self, items: Option<&[DownwardAPIVolumeFile]>, mode: i32) -> Result<Vec<Item>, String> {
        let content = |item: &DownwardAPIVolumeFile| match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => environment::field_value(&field.field_path, self.facts),
            (None, Some(resource)) => {
                let spec = self.facts.pod.spec.as_ref().ok_or("the Pod has no spec")?;
                let named = resource.container_name.as_deref();
                let container = spec.containers.iter().find(|c| Some(c.name.as_str()) == named);
                let container = container.ok_or("resourceFieldRef names no container of the Pod")?;
                environment::resource_value(resource, container, self.facts)
            }
            (None, None) => Err("a downward API file names no source".into()),
        };
        let items = items.unwrap_or(&[]).iter().map(|item| {
            let content = content(item)?.into_bytes();
            Ok(Item { path: item.path.clone(), content, mode: item.mode.unwrap_or(mode) })
        });
        items.collect()
    }

    /// All but a token for the API server and the certificate by which it is known: a sandbox does not get them. Nothing,
    /// when nothing else is listed.
    async fn projected(
        &self,
        volume: &str,
        projected: &ProjectedVolumeSource,
    ) -> Result<Option<Vec<Item>>, String> {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        let sources = projected.sources.as_deref().unwrap_or(&[]);
        let token = sources.iter().any(|source| source.service_account_token.is_some());
        let wanted = sources.iter().filter(|source| {
            let certificate = source.config_map.as_ref().is_some_and(|map| map.name == API_CERTIFICATE);
            source.service_account_token.is_none() && !(token && certificate)
        });
        let wanted: Vec<_> = wanted.collect();
        if token && wanted.is_empty() {
            return Ok(None);
        }
        let mut items = Vec::new();
        for source in wanted {
            items.extend(if let Some(map) = &source.config_map {
                self.config_map(&map.name, map.items.as_deref(), mode, map.optional).await?
            } else if let Some(secret) = &source.secret {
                self.secret(&secret.name, secret.items.as_deref(), mode, secret.optional).await?
            } else if let Some(downward) = &source.downward_api {
                self.downward(downward.items.as_deref(), mode)?
            } else {
                return Err(format!("volume {volume:?} has a projected source of an unsupported kind"));
            });
        }
        Ok(Some(items))
    }
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

/// All keys under their own names, or those that are listed under theirs.
fn choose(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
) -> Result<Vec<Item>, String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let all = data.iter().map(|(key, value)| Item { path: key.clone(), content: value.clone(), mode });
        return Ok(all.collect());
    };
    let mut chosen = Vec::new();
    for item in items {
        match data.get(&item.key) {
            Some(value) => chosen.push(Item {
                path: item.path.clone(),
                content: value.clone(),
                mode: item.mode.unwrap_or(mode),
            }),
            None if optional => {}
            None => return Err(format!("references non-existent key: {}", item.key)),
        }
    }
    Ok(chosen)
}

/// Makes a folder with this mode below folders of mode 0700; one that is there already stays as it is.
fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    match std::fs::create_dir(path) {
        // Separately, because the process's mask takes bits away on creation.
        Ok(()) => rustix::fs::fchmod(open_folder(path)?, Mode::from_raw_mode(mode))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => drop(open_folder(path)?),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Opens a folder that is no link.
fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Writes the files into a folder that is made anew.
fn write(folder: &Path, items: &[Item]) -> io::Result<()> {
    if items.len() > MAX_FILES {
        return Err(io::Error::other(format!("more than {MAX_FILES} files")));
    }
    if items.iter().map(|item| item.content.len()).sum::<usize>() > MAX_VOLUME_BYTES {
        return Err(io::Error::other(format!("more than {MAX_VOLUME_BYTES} bytes")));
    }
    remove_tree(folder)?;
    make_folder(folder, 0o755)?;
    let opened = Folder::open(folder)?;
    for item in items {
        let path = Path::new(&item.path);
        let plain = |part| matches!(part, Component::Normal(_));
        let (true, Some(parent), Some(name)) =
            (path.components().all(plain), path.parent(), path.file_name())
        else {
            return Err(io::Error::other(format!("{:?} is not a path within the volume", item.path)));
        };
        let mut file = opened.make_folders(parent)?.create_file(Path::new(name))?;
        file.write_all(&item.content)?;
        let mode = u32::try_from(item.mode).unwrap_or(0o644) & 0o777;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
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
    fn keys_become_files_and_never_leave_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let data = BTreeMap::from([("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())]);
        let all = choose(&data, None, 0o400, false).unwrap();
        write(&dir.path().join("v"), &all).unwrap();
        let file = dir.path().join("v/a");
        assert_eq!(std::fs::read(&file).unwrap(), b"1");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o400);
        let item = |key: &str, path: &str| vec![KeyToPath { key: key.into(), path: path.into(), mode: None }];
        let nested = choose(&data, Some(&item("b", "x/y")), 0o644, false).unwrap();
        write(&dir.path().join("w"), &nested).unwrap();
        assert_eq!(std::fs::read(dir.path().join("w/x/y")).unwrap(), b"2");
        assert!(choose(&data, Some(&item("c", "c")), 0o644, false).is_err());
        assert_eq!(choose(&data, Some(&item("c", "c")), 0o644, true).unwrap().len(), 0);
        let escape = choose(&data, Some(&item("b", "../escape")), 0o644, false).unwrap();
        assert!(write(&dir.path().join("z"), &escape).is_err());
        assert!(!dir.path().join("escape").exists());
    }

    #[test]
    fn planted_links_are_not_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let volume = dir.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        std::os::unix::fs::symlink(outside.path(), volume.join("x")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("file"), volume.join("a")).unwrap();
        let item = |path: &str| Item { path: path.into(), content: b"1".to_vec(), mode: 0o644 };
        write(&volume, &[item("a"), item("x/y")]).unwrap();
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        assert!(volume.join("x/y").is_file());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(outside.path(), &link).unwrap();
        assert!(writable(link, false, Some(7)).is_err());
        assert_eq!(std::os::unix::fs::MetadataExt::gid(&outside.path().metadata().unwrap()), 0);
    }

    #[test]
    fn memory_volumes_are_bounded_by_limits_and_sizes() {
        let bytes = |volumes: serde_json::Value, limit: &str| {
            let spec = serde_json::json!({"volumes": volumes, "containers": [
                {"name": "c", "resources": {"limits": {"memory": limit}}}]});
            memory_bytes(&serde_json::from_value(spec).unwrap(), &DefaultLimits::default()).unwrap()
        };
        let volume = |size: Option<&str>| serde_json::json!({"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": size}});
        assert_eq!(bytes(serde_json::json!([]), "64Mi"), 64 << 20);
        assert_eq!(bytes(serde_json::json!([volume(Some("8Mi")), volume(Some("8Mi"))]), "64Mi"), 16 << 20);
        assert_eq!(bytes(serde_json::json!([volume(Some("8Mi")), volume(None)]), "64Mi"), 64 << 20);
        assert_eq!(bytes(serde_json::json!([volume(Some("1Gi"))]), "64Mi"), 64 << 20);
        assert_eq!(bytes(serde_json::json!([volume(Some("0"))]), "64Mi"), 64 << 20);
    }
}
