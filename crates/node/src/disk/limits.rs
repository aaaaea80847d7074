//! Limits that a Pod names for what it keeps on disk: `sizeLimit` of volumes, `ephemeral-storage` of containers.

use hutch_api::quantity;
use hutch_image::PathSegment;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::limits::of_ephemeral;
use crate::memory;
use crate::places::PodPlaces;
use crate::usage::measure;
use crate::volumes::in_memory;

const RESOURCE: &str = "ephemeral-storage";

fn limit(container: &Container) -> Option<&Quantity> {
    container.resources.as_ref()?.limits.as_ref()?.get(RESOURCE)
}

/// Returns the limit of a container in bytes.
pub(crate) fn of_container(container: &Container) -> Option<u64> {
    limit(container).and_then(quantity::units).filter(|bytes| *bytes > 0)
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers.iter().chain(spec.init_containers.iter().flatten())
}

/// Volumes on disk that have a limit, with the limit.
fn volumes(spec: &PodSpec) -> impl Iterator<Item = (&str, &Quantity)> {
    spec.volumes.iter().flatten().filter_map(|volume| {
        let empty = volume.empty_dir.as_ref().filter(|empty| !in_memory(empty))?;
        Some((&*volume.name, empty.size_limit.as_ref()?))
    })
}

/// Returns true if a Pod has volumes in memory.
pub(crate) fn has_memory(spec: &PodSpec) -> bool {
    spec.volumes.iter().flatten().any(|volume| volume.empty_dir.as_ref().is_some_and(in_memory))
}

pub(super) fn has_limits(spec: &PodSpec) -> bool {
    let container = containers(spec).any(|container| limit(container).is_some());
    container || volumes(spec).next().is_some() || has_memory(spec)
}

/// Returns that the volumes in memory hold more than `most` bytes together. Each alone cannot, but what a container has written
/// stays when it ends and is charged to none that follows. Blocks.
pub(crate) fn memory_exceeded(spec: &PodSpec, places: &PodPlaces, most: u64) -> Option<String> {
    if !has_memory(spec) {
        return None;
    }
    let used = memory::used(&places.all_written_memory());
    (used > most).then(|| {
        format!(
            "Usage of EmptyDir volumes in memory exceeds the memory limits of the containers, {most} bytes. "
        )
    })
}

/// Returns the bytes of a container outside of volumes. Blocks.
fn used_by(places: &PodPlaces, container: &PathSegment) -> u64 {
    let written = measure(&places.root(container)).and(measure(&places.message(container)));
    written.and(measure(&places.logs(container))).bytes
}

fn beyond(container: &str, size: &Quantity) -> String {
    format!("Container {container} exceeded its local ephemeral storage limit \"{}\". ", size.0)
}

/// The first limit that is exceeded, as a kubelet words it. Blocks.
pub(super) fn exceeded(spec: &PodSpec, places: &PodPlaces) -> Option<String> {
    for (name, size) in volumes(spec) {
        let bytes = quantity::units(size).filter(|bytes| *bytes > 0);
        let used = PathSegment::label(name).map(|name| measure(&places.written_volume(&name)).bytes);
        if used > bytes && bytes.is_some() {
            return Some(format!("Usage of EmptyDir volume {name:?} exceeds the limit \"{}\". ", size.0));
        }
    }
    let (mut used_by_all, mut limit_of_all) = (0u64, None);
    for container in containers(spec) {
        let Some(name) = PathSegment::label(&container.name) else { continue };
        let used = used_by(places, &name);
        used_by_all = used_by_all.saturating_add(used);
        let Some((size, bytes)) = limit(container).and_then(|size| Some((size, quantity::units(size)?)))
        else {
            continue;
        };
        if used > bytes {
            return Some(beyond(&container.name, size));
        }
        limit_of_all = Some(limit_of_all.unwrap_or(0u64).saturating_add(bytes));
    }
    let limit_of_all = limit_of_all?;
    let of_ephemeral = of_ephemeral(spec).limits.and_then(|mut limits| limits.remove(RESOURCE));
    for container in spec.ephemeral_containers.iter().flatten() {
        let Some(name) = PathSegment::label(&container.name) else { continue };
        let used = used_by(places, &name);
        if let Some(size) = of_ephemeral.as_ref().filter(|size| quantity::units(size) < Some(used)) {
            return Some(beyond(&container.name, size));
        }
        used_by_all = used_by_all.saturating_add(used);
    }
    for volume in spec.volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some()) {
        let on_disk =
            PathSegment::label(&volume.name).map(|name| measure(&places.written_volume(&name)).bytes);
        used_by_all = used_by_all.saturating_add(on_disk.unwrap_or(0));
    }
    (used_by_all > limit_of_all).then(|| {
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit_of_all}. ")
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_of_volumes_containers_and_pods_are_found_exceeded() {
        let dir = tempfile::tempdir().unwrap();
        let places = PodPlaces {
            disk: dir.path().to_owned(),
            memory: dir.path().join("memory"),
            all_memory: dir.path().join("memory"),
        };
        let name = |name: &str| PathSegment::label(name).unwrap();
        for folder in [places.written_volume(&name("v")), places.root(&name("c")), places.root(&name("d"))] {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("file"), vec![1; 1 << 20]).unwrap();
        }
        let exceeded = |volume: Option<&str>, c: Option<&str>, d: Option<&str>| {
            let container = |name: &str, size: Option<&str>| {
                let limits = size.map(|size| json!({ RESOURCE: size }));
                json!({"name": name, "resources": {"limits": limits}})
            };
            let spec = json!({"containers": [container("c", c), container("d", d)],
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": volume}}]});
            exceeded(&serde_json::from_value(spec).unwrap(), &places).unwrap_or_default()
        };
        assert_eq!(exceeded(Some("2Mi"), Some("2Mi"), Some("2Mi")), "");
        let volume = exceeded(Some("1M"), None, None);
        assert_eq!(volume, "Usage of EmptyDir volume \"v\" exceeds the limit \"1M\". ");
        let container = exceeded(None, None, Some("1M"));
        assert_eq!(container, "Container d exceeded its local ephemeral storage limit \"1M\". ");
        let spec = json!({"containers": [{"name": "other", "resources": {"limits": {RESOURCE: "1M"}}},
            {"name": "large", "resources": {"limits": {RESOURCE: "5M"}}}],
            "ephemeralContainers": [{"name": "debugger"}]});
        let spec = serde_json::from_value(spec).unwrap();
        assert_eq!(super::exceeded(&spec, &places), None);
        let root = places.root(&name("debugger"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("file"), vec![1; 5 << 20]).unwrap();
        let message = super::exceeded(&spec, &places).unwrap();
        assert_eq!(message, "Container debugger exceeded its local ephemeral storage limit \"5M\". ");
        let spec = json!({"containers": [{"name": "message", "resources": {"limits": {RESOURCE: "1M"}}}]});
        std::fs::create_dir_all(places.message(&name("message"))).unwrap();
        std::fs::write(places.message(&name("message")).join("message"), vec![1; 2 << 20]).unwrap();
        let message = super::exceeded(&serde_json::from_value(spec).unwrap(), &places).unwrap();
        assert_eq!(message, "Container message exceeded its local ephemeral storage limit \"1M\". ");
        let all = exceeded(None, Some("2Mi"), None);
        assert_eq!(all, "Pod ephemeral local storage usage exceeds the total limit of containers 2097152. ");
    }
}
