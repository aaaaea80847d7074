//! `SandboxClaim`: somebody's wish for one Sandbox of a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use crate::{PodMetadata, VolumeClaimTemplate};

/// Names a SandboxWarmPool of the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmPoolRef {
    /// Its name.
    pub name: String,
}

/// What happens to a claim whose time is up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClaimShutdownPolicy {
    /// The claim is deleted, its Sandbox after it.
    Delete,
    /// The claim is deleted, but stays visible until its Sandbox is gone.
    DeleteForeground,
    /// Only the Sandbox is deleted.
    #[default]
    Retain,
}

/// When a claim ends, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimLifecycle {
    /// When the claim ends.
    #[serde(default, with = "crate::end_time", skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    /// Seconds between the end of the Sandbox's own work and the end of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// `Retain` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ClaimShutdownPolicy>,
}

/// An environment variable that a claim sets; it forces a cold start but for where a running Pod can take it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimEnvVar {
    /// Name of the variable.
    pub name: String,
    /// Its value, literal.
    pub value: String,
    /// Container that gets it; the first one when unset or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
}

/// Desired state of a SandboxClaim.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxClaim",
    plural = "sandboxclaims",
    namespaced,
    status = "SandboxClaimStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimSpec {
    /// The pool.
    pub warm_pool_ref: WarmPoolRef,
    /// When the claim ends, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<ClaimLifecycle>,
    /// Labels and annotations to add to the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional_pod_metadata: Option<PodMetadata>,
    /// Environment variables to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<ClaimEnvVar>>,
    /// Volumes to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
}

/// The Sandbox that a claim got.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedSandbox {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Addresses of its Pod.
    #[serde(default, rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pub pod_ips: Option<Vec<String>>,
}

/// Observed state of a SandboxClaim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimStatus {
    /// See [`crate::condition`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// The Sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<ClaimedSandbox>,
}
