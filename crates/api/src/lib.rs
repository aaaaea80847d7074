//! The vocabulary of Agent Sandbox: the four custom resources, their published CRDs, the names, labels, reasons
//! and messages that clients compare, and the conversion between the two served versions.
//!
//! Everything here is data and pure functions. It does no I/O, reads no clock and depends on no async
//! runtime, so that every other crate may depend on it.
//!
//! The Rust types are those of `v1beta1`, the version that is stored; `v1alpha1` exists only as JSON, in [`convert`].

mod blueprint;
mod claim;
mod convert;
mod crds;
mod duration;
mod end_time;
mod hash;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod pool;
mod read;
mod sandbox;
mod template;

pub mod annotation;
pub mod condition;
pub mod label;
pub mod late_env;
pub mod metadata;
pub mod owner;
pub mod pod_snapshot;
pub mod quantity;
pub mod sleep;
pub mod state;
pub mod syntax;
pub mod trust;

pub use blueprint::{Blueprint, PodMetadata, PodTemplate, VolumeClaimTemplate, VolumeClaimTemplateMetadata};
pub use claim::{
    ClaimEnvVar, ClaimLifecycle, ClaimShutdownPolicy, ClaimedSandbox, SandboxClaim, SandboxClaimSpec,
    SandboxClaimStatus, WarmPoolRef,
};
pub use convert::{Error, convert};
pub use crds::{crds, pod_snapshot_crds, state_crds};
pub use duration::go_duration;
pub use hash::name_hash;
pub use pool::{
    SandboxTemplateRef, SandboxWarmPool, SandboxWarmPoolSpec, SandboxWarmPoolStatus, UpdateStrategy,
    UpdateStrategyType,
};
pub use read::{Read, Unreadable};
pub use sandbox::{OperatingMode, Sandbox, SandboxSpec, SandboxStatus, ShutdownPolicy, pod_name};
pub use template::{
    EnvVarsInjectionPolicy, NetworkPolicyManagement, SandboxTemplate, SandboxTemplateSpec,
    TemplateNetworkPolicy, VolumeClaimTemplatesPolicy,
};

/// API group of `Sandbox`.
pub const GROUP: &str = "agents.x-k8s.io";
/// API group of `SandboxClaim`, `SandboxTemplate` and `SandboxWarmPool`.
pub const EXTENSIONS_GROUP: &str = "extensions.agents.x-k8s.io";
/// Audience of tokens for the API server that `hutch up` serves, and their issuer: the default of Kubernetes.
pub const API_AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";
/// The stored version, which the types of this crate describe.
pub const STORED_VERSION: &str = "v1beta1";
/// The older version, still served by conversion.
pub const DEPRECATED_VERSION: &str = "v1alpha1";
/// Prefix of pool names that mean "cold start from the template whose name follows": a claim of the older
/// version that names only a template converts to such a name.
pub const SHADOW_POOL_PREFIX: &str = "shadow-pool-";

/// Taint that Kubernetes gives a node that `kubectl cordon` has marked.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Maximum ephemeral containers of one Pod.
pub const EPHEMERAL_CONTAINERS_MAX: usize = 32;

/// Returns true for the capability that `kubectl debug` adds to containers. A sandbox never has it, and a container that
/// requests it runs without.
pub fn is_tracing(capability: &str) -> bool {
    let name = capability.to_ascii_uppercase();
    name.strip_prefix("CAP_").unwrap_or(&name) == "SYS_PTRACE"
}

/// Processor architecture of this program, as Kubernetes names it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
