//! `SandboxTemplate`: a blueprint with policies for its claims.

use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyIngressRule};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use crate::{Blueprint, PodTemplate, VolumeClaimTemplate};

/// Manager of the NetworkPolicy of a template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkPolicyManagement {
    /// The controller.
    #[default]
    Managed,
    /// An external manager, or none.
    Unmanaged,
}

/// Policy for environment variables of a claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnvVarsInjectionPolicy {
    /// Only variables that the template lacks.
    Allowed,
    /// Any variables, including those of the template.
    Overrides,
    /// No variables.
    #[default]
    Disallowed,
}

/// Policy for volumes of a claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeClaimTemplatesPolicy {
    /// No volumes.
    #[default]
    Disallowed,
    /// Only volumes that the template lacks.
    Allowed,
    /// Any volumes, including those of the template.
    Overrides,
}

/// Network rules of a template; a direction without rules is denied.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateNetworkPolicy {
    /// Allowed ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Vec<NetworkPolicyIngressRule>>,
    /// Allowed egress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<NetworkPolicyEgressRule>>,
}

/// Content of a SandboxTemplate.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxTemplate",
    plural = "sandboxtemplates",
    namespaced,
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateSpec {
    /// The Pod.
    pub pod_template: PodTemplate,
    /// Volumes that outlive the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    /// Headless Service: `true` creates it, `false` removes it, unset keeps an existing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    /// Network rules; the secure default when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<TemplateNetworkPolicy>,
    /// `Managed` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy_management: Option<NetworkPolicyManagement>,
    /// `Disallowed` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars_injection_policy: Option<EnvVarsInjectionPolicy>,
    /// `Disallowed` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates_policy: Option<VolumeClaimTemplatesPolicy>,
}

impl SandboxTemplateSpec {
    /// Returns the part that a Sandbox copies.
    pub fn blueprint(&self) -> Blueprint {
        Blueprint {
            pod_template: self.pod_template.clone(),
            volume_claim_templates: self.volume_claim_templates.clone(),
            service: self.service,
        }
    }
}
