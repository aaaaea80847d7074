//! `SandboxWarmPool`: Sandboxes of a template that are started before a claim needs them.

use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

/// Names a SandboxTemplate of the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxTemplateRef {
    /// Name of the template.
    pub name: String,
}

/// Time at which pooled Sandboxes of an outdated blueprint are replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateStrategyType {
    /// Immediately.
    Recreate,
    /// Only as claims adopt them.
    #[default]
    OnReplenish,
}

/// Update strategy for pooled Sandboxes of an outdated blueprint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateStrategy {
    /// `OnReplenish` when unset.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<UpdateStrategyType>,
}

/// Desired state of a SandboxWarmPool.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxWarmPool",
    plural = "sandboxwarmpools",
    shortname = "swp",
    namespaced,
    status = "SandboxWarmPoolStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolSpec {
    /// Desired number of pooled Sandboxes, 1 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Template of the pooled Sandboxes.
    pub sandbox_template_ref: SandboxTemplateRef,
    /// Update strategy for pooled Sandboxes of an outdated blueprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

impl SandboxWarmPoolSpec {
    /// Returns the strategy, its default when unset.
    pub fn strategy(&self) -> UpdateStrategyType {
        self.update_strategy.as_ref().and_then(|strategy| strategy.kind).unwrap_or_default()
    }
}

/// Observed state of a SandboxWarmPool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolStatus {
    /// Pooled Sandboxes that are not being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Pooled Sandboxes that are Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Label selector of the pooled Sandboxes, `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Generation of the pool that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
