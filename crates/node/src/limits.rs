//! Resources that a container may use.

use std::collections::BTreeMap;

use hutch_api::quantity;
use hutch_jail::Limits;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::config::DefaultLimits;

/// Least memory that a container can start with, in bytes.
const MIN_MEMORY_BYTES: u64 = 1 << 20;

/// A container's limits, with the defaults for what it does not name. The error is for the author of the Pod.
pub(crate) fn of(container: &Container, defaults: &DefaultLimits) -> Result<Limits, String> {
    let resources = container.resources.as_ref();
    let named = |kind: &str, limits: bool| {
        let list = resources.and_then(|r| if limits { r.limits.as_ref() } else { r.requests.as_ref() });
        list.and_then(|list| list.get(kind)).cloned()
    };
    let bad = |kind: &str| format!("container {:?}: {kind} is not a valid quantity", container.name);
    let cpu = match named("cpu", true) {
        Some(limit) => Some(quantity::millis(&limit).filter(|n| *n > 0).ok_or_else(|| bad("limits.cpu"))?),
        None => defaults.cpu_millis,
    };
    let memory = match (named("memory", true), named("memory", false)) {
        (Some(limit), _) => Some(quantity::units(&limit).ok_or_else(|| bad("limits.memory"))?),
        (None, Some(request)) => {
            let request = quantity::units(&request).ok_or_else(|| bad("requests.memory"))?;
            defaults.memory_bytes.map(|default| default.max(request))
        }
        (None, None) => defaults.memory_bytes,
    };
    if let Some(bytes) = memory.filter(|bytes| *bytes < MIN_MEMORY_BYTES) {
        let name = &container.name;
        return Err(format!(
            "container {name:?}: limits.memory of {bytes} bytes is too little to start; at least 1Mi"
        ));
    }
    Ok(Limits { cpu_millis: cpu, memory_bytes: memory, pids: defaults.pids })
}

/// Returns the limits of the ephemeral containers of a Pod, which can name none: of each resource, the largest limit that one of
/// the Pod's own containers names.
pub(crate) fn of_ephemeral(spec: &PodSpec) -> ResourceRequirements {
    let largest = |kind: &str, value: fn(&Quantity) -> Option<u64>| {
        let limits = spec.containers.iter().filter_map(|c| c.resources.as_ref()?.limits.as_ref()?.get(kind));
        let largest = limits.max_by_key(|limit| value(limit)).filter(|limit| value(limit).is_some())?;
        Some((kind.to_owned(), largest.clone()))
    };
    let kinds = [("memory", quantity::units as fn(&_) -> _), ("ephemeral-storage", quantity::units)];
    let kinds = kinds.into_iter().chain([("cpu", quantity::millis as fn(&_) -> _)]);
    let limits: BTreeMap<_, _> = kinds.filter_map(|(kind, value)| largest(kind, value)).collect();
    ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(limits: &[(&str, &str)], requests: &[(&str, &str)]) -> Container {
        let list = |pairs: &[(&str, &str)]| {
            Some(
                pairs
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), Quantity((*v).into())))
                    .collect::<BTreeMap<_, _>>(),
            )
        };
        let resources = ResourceRequirements {
            limits: list(limits),
            requests: list(requests),
            ..ResourceRequirements::default()
        };
        Container { name: "c".into(), resources: Some(resources), ..Container::default() }
    }

    #[test]
    fn named_limits_hold_and_defaults_fill_in() {
        let defaults = DefaultLimits::default();
        let limits = of(&container(&[("cpu", "500m"), ("memory", "64Mi")], &[]), &defaults).unwrap();
        assert_eq!(limits, Limits { cpu_millis: Some(500), memory_bytes: Some(64 << 20), pids: Some(1024) });
        let none = of(&container(&[], &[("memory", "512Mi")]), &defaults).unwrap();
        assert_eq!((none.cpu_millis, none.memory_bytes), (None, Some(1 << 30)));
        let large = of(&container(&[], &[("memory", "4Gi")]), &defaults).unwrap();
        assert_eq!(large.memory_bytes, Some(4 << 30));
    }

    #[test]
    fn ephemeral_container_has_the_largest_limits_of_its_pod() {
        let defaults = DefaultLimits::default();
        let given = |containers: Vec<Container>| {
            let resources = of_ephemeral(&PodSpec { containers, ..PodSpec::default() });
            let disk = resources.limits.as_ref().and_then(|limits| limits.get("ephemeral-storage").cloned());
            let container = Container { resources: Some(resources), ..Container::default() };
            (of(&container, &defaults).unwrap(), disk.map(|disk| disk.0))
        };
        let (limits, disk) = given(vec![
            container(&[("cpu", "0.2"), ("memory", "64Mi"), ("ephemeral-storage", "9M")], &[]),
            container(&[("cpu", "100m"), ("memory", "128Mi"), ("ephemeral-storage", "10Mi")], &[]),
            container(&[], &[("memory", "4Gi")]),
        ]);
        assert_eq!((limits.cpu_millis, limits.memory_bytes), (Some(200), Some(128 << 20)));
        assert_eq!((limits.pids, disk.as_deref()), (defaults.pids, Some("10Mi")));
        let (limits, disk) = given(vec![container(&[("memory", "many")], &[])]);
        assert_eq!((limits.cpu_millis, limits.memory_bytes, disk), (None, defaults.memory_bytes, None));
    }

    #[test]
    fn nonsense_is_refused() {
        let defaults = DefaultLimits::default();
        assert!(of(&container(&[("memory", "1")], &[]), &defaults).unwrap_err().contains("too little"));
        assert!(of(&container(&[("cpu", "0")], &[]), &defaults).is_err());
        assert!(of(&container(&[("memory", "many")], &[]), &defaults).is_err());
    }
}
