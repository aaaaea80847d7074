//! Resources that a container may use.

use hutch_api::quantity;
use hutch_jail::Limits;
use k8s_openapi::api::core::v1::Container;

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::ResourceRequirements;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

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
    fn nonsense_is_refused() {
        let defaults = DefaultLimits::default();
        assert!(of(&container(&[("memory", "1")], &[]), &defaults).unwrap_err().contains("too little"));
        assert!(of(&container(&[("cpu", "0")], &[]), &defaults).is_err());
        assert!(of(&container(&[("memory", "many")], &[]), &defaults).is_err());
    }
}
