//! `SandboxClaim`: requests one Sandbox of a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use crate::{PodMetadata, VolumeClaimTemplate};

/// Names a SandboxWarmPool of the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmPoolRef {
    /// Name of the pool.
    pub name: String,
}

/// Policy for an expired claim.
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

/// Expiry of a claim, and the policy that applies then.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimLifecycle {
    /// Time at which the claim expires.
    #[serde(default, with = "crate::end_time", skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    /// Seconds between the end of the Sandbox's workload and the expiry of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// `Retain` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ClaimShutdownPolicy>,
}

/// An environment variable of a claim. Forces a cold start, except where a running Pod accepts late env.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimEnvVar {
    /// Name of the variable.
    pub name: String,
    /// Literal value.
    pub value: String,
    /// Target container; the first one when unset or empty.
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
    /// Expiry of the claim, and the policy that applies then.
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

/// The Sandbox assigned to a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedSandbox {
    /// Name of the Sandbox.
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
    /// The assigned Sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<ClaimedSandbox>,
}
