//! ConfigMaps of a Pod as files. They are not mounted, since a Pod has the files of the machine: what a variable says about a
//! path below the place of a mount is about the file here instead.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod};
use kube::{Api, Client, ResourceExt};

/// Pause between two tries to read a ConfigMap. A Pod waits for it, as on other Nodes.
const PAUSE: Duration = Duration::from_millis(50);

/// Folders of volumes, by name.
#[derive(Default)]
pub(super) struct Volumes(HashMap<String, PathBuf>);

/// Returns true if a Pod has volumes that are read.
pub(super) fn has_volumes(pod: &Pod) -> bool {
    config_maps(pod).next().is_some()
}

/// Names of volumes and their ConfigMaps.
fn config_maps(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some((volume.name.as_str(), volume.config_map.as_ref()?.name.as_str())))
}

impl Volumes {
    /// Waits for the ConfigMaps of a Pod, and writes them below a folder.
    pub(super) async fn read(client: &Client, pod: &Pod, folder: &Path) -> anyhow::Result<Volumes> {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let mut volumes = Volumes::default();
        for (volume, name) in config_maps(pod) {
            let found = loop {
                match api.get_opt(name).await.with_context(|| format!("ConfigMap {name}"))? {
                    Some(found) => break found,
                    None => tokio::time::sleep(PAUSE).await,
                }
            };
            let folder = folder.join(pod.uid().unwrap_or_default()).join("volumes").join(volume);
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            for (file, text) in found.data.iter().flatten() {
                std::fs::write(folder.join(file), text).with_context(|| file.clone())?;
            }
            volumes.0.insert(volume.to_owned(), folder);
        }
        Ok(volumes)
    }

    /// The value of a variable of a container, with the path of a file here.
    pub(super) fn here(&self, container: &Container, value: String) -> String {
        let mut mounts = container.volume_mounts.iter().flatten();
        let found = mounts.find_map(|mount| {
            let rest = value.strip_prefix(&format!("{}/", mount.mount_path))?;
            Some(self.0.get(&mount.name)?.join(rest).display().to_string())
        });
        found.unwrap_or(value)
    }
}
