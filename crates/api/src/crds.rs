//! The published CRDs, as data.

/// The four CustomResourceDefinitions as YAML: Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool.
///
/// They hold what Rust types cannot: defaults, enums, list-map keys of the embedded Pod schema, one CEL rule.
pub fn crds() -> &'static [&'static str] {
    &[
        include_str!("../crds/agents.x-k8s.io_sandboxes.yaml"),
        include_str!("../crds/extensions.agents.x-k8s.io_sandboxclaims.yaml"),
        include_str!("../crds/extensions.agents.x-k8s.io_sandboxtemplates.yaml"),
        include_str!("../crds/extensions.agents.x-k8s.io_sandboxwarmpools.yaml"),
    ]
}

/// The CustomResourceDefinitions of [`crate::state`] as YAML: SandboxFork, SandboxSnapshot.
pub fn state_crds() -> &'static [&'static str] {
    &[
        include_str!("../crds/hutch.dev_sandboxforks.yaml"),
        include_str!("../crds/hutch.dev_sandboxsnapshots.yaml"),
    ]
}

/// The CustomResourceDefinitions of [`crate::pod_snapshot`] as YAML: PodSnapshotManualTrigger, PodSnapshot. They are for
/// `hutch up` alone: a cluster of GKE has its own ones of these names.
pub fn pod_snapshot_crds() -> &'static [&'static str] {
    &[
        include_str!("../views/podsnapshot.gke.io_podsnapshotmanualtriggers.yaml"),
        include_str!("../views/podsnapshot.gke.io_podsnapshots.yaml"),
    ]
}
