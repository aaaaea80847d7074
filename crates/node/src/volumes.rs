//! The volumes of a Pod: folders that are made, filled and taken away with it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, PersistentVolumeClaim, ProjectedVolumeSource, Secret, Volume,
};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::claims;
use crate::environment::{self, Facts};

/// Mode of files from ConfigMaps, Secrets and the downward API that name none.
const DEFAULT_MODE: i32 = 0o644;
/// The ConfigMap that Kubernetes puts beside a token for its API.
const API_CERTIFICATE: &str = "kube-root-ca.crt";
/// Most files of one such volume.
const MAX_FILES: usize = 10_000;

/// A volume that is ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// This folder, writable or not.
    Folder { path: PathBuf, read_only: bool },
    /// Only tokens for the API server, which a sandbox does not get: nothing is mounted.
    Nothing,
}

/// Where volumes are made.
pub(crate) struct Places<'a> {
    /// Folder of the Pod's own volumes on disk.
    pub(crate) disk: PathBuf,
    /// Folder of the Pod's own volumes in memory: secrets, and `emptyDir` with `medium: Memory`.
    pub(crate) memory: PathBuf,
    /// Folder of all persistent volumes.
    pub(crate) persistent: &'a Path,
}

/// A file of a volume.
struct Item {
    path: String,
    content: Vec<u8>,
    mode: i32,
}

/// Makes a volume. The error is for the author of the Pod.
pub(crate) async fn prepare(
    client: &Client,
    namespace: &str,
    volume: &Volume,
    places: &Places<'_>,
    facts: &Facts<'_>,
) -> Result<Prepared, String> {
    let name = &volume.name;
    let fail = |e: io::Error| format!("MountVolume.SetUp failed for volume {name:?}: {e}");
    if let Some(empty) = &volume.empty_dir {
        let memory = empty.medium.as_deref() == Some("Memory");
        let parent = if memory { &places.memory } else { &places.disk };
        let path = parent.join(name);
        make_folder(&path, 0o777).map_err(fail)?;
        return Ok(Prepared::Folder { path, read_only: false });
    }
    if let Some(source) = &volume.persistent_volume_claim {
        let claim: PersistentVolumeClaim = look_up(client, namespace, &source.claim_name, false).await?;
        let path = claims::folder(places.persistent, &claim)?;
        make_folder(&path, 0o777).map_err(fail)?;
        return Ok(Prepared::Folder { path, read_only: source.read_only == Some(true) });
    }
    let sources = Sources { client, namespace, facts };
    let mut parent = &places.disk;
    let items = if let Some(map) = &volume.config_map {
        let mode = map.default_mode.unwrap_or(DEFAULT_MODE);
        sources.config_map(&map.name, map.items.as_deref(), mode, map.optional).await?
    } else if let Some(secret) = &volume.secret {
        parent = &places.memory;
        let mode = secret.default_mode.unwrap_or(DEFAULT_MODE);
        let name = secret.secret_name.as_deref().unwrap_or("");
        sources.secret(name, secret.items.as_deref(), mode, secret.optional).await?
    } else if let Some(downward) = &volume.downward_api {
        let mode = downward.default_mode.unwrap_or(DEFAULT_MODE);
        sources.downward(downward.items.as_deref(), mode)?
    } else if let Some(projected) = &volume.projected {
        parent = &places.memory;
        match sources.projected(name, projected).await? {
            Some(items) => items,
            None => return Ok(Prepared::Nothing),
        }
    } else {
        Vec::new()
    };
    let path = parent.join(name);
    write(&path, &items).map_err(fail)?;
    Ok(Prepared::Folder { path, read_only: true })
}

/// Where the files of a volume come from.
struct Sources<'a> {
    client: &'a Client,
    namespace: &'a str,
    facts: &'a Facts<'a>,
}

impl Sources<'_> {
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
                environment::resource_value(&resource.resource, container, self.facts)
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
    /// when nothing else was asked for.
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

/// The object that a volume names; an empty one where it is missing and may be.
async fn look_up<K>(client: &Client, namespace: &str, name: &str, optional: bool) -> Result<K, String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Default
        + DeserializeOwned,
{
    let objects: Api<K> = Api::namespaced(client.clone(), namespace);
    match objects.get_opt(name).await.map_err(|e| e.to_string())? {
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

fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    if !path.is_dir() {
        if let Some(parent) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        std::fs::create_dir(path)?;
        // Separately, because the process's mask takes bits away on creation.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn write(folder: &Path, items: &[Item]) -> io::Result<()> {
    if items.len() > MAX_FILES {
        return Err(io::Error::other(format!("more than {MAX_FILES} files")));
    }
    make_folder(folder, 0o755)?;
    for item in items {
        let path = Path::new(&item.path);
        let plain = |part| matches!(part, Component::Normal(_));
        if item.path.is_empty() || !path.components().all(plain) {
            return Err(io::Error::other(format!("{:?} is not a path within the volume", item.path)));
        }
        let file = folder.join(path);
        let mut parents: Vec<&Path> =
            path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()).collect();
        parents.reverse();
        for parent in parents {
            make_folder(&folder.join(parent), 0o755)?;
        }
        std::fs::write(&file, &item.content)?;
        let mode = u32::try_from(item.mode).unwrap_or(0o644) & 0o777;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Gives a volume to a group, as `fsGroup` asks.
pub(crate) fn give_to_group(path: &Path, group: u32) -> io::Result<()> {
    let gid = rustix::fs::Gid::from_raw(group);
    rustix::fs::chown(path, None, Some(gid))?;
    let mode = std::fs::metadata(path)?.permissions().mode() | 0o2070;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
