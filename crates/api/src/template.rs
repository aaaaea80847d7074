//! `SandboxTemplate`: a blueprint with the policies for those who use it.

use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyIngressRule};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use crate::{Blueprint, PodTemplate, VolumeClaimTemplate};

/// Who makes the NetworkPolicy of a template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkPolicyManagement {
    /// The controller.
    #[default]
    Managed,
    /// Somebody else, or nobody.
    Unmanaged,
}

/// Whether a claim may set environment variables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnvVarsInjectionPolicy {
    /// New ones only.
    Allowed,
    /// New ones and ones that the template has.
    Overrides,
    /// None.
    #[default]
    Disallowed,
}

/// Whether a claim may bring volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeClaimTemplatesPolicy {
    /// None.
    #[default]
    Disallowed,
    /// New ones only.
    Allowed,
    /// New ones and ones that the template has.
    Overrides,
}

/// Network rules of a template; a direction without rules is denied.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateNetworkPolicy {
    /// Who may come in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Vec<NetworkPolicyIngressRule>>,
    /// What may be reached.
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
    /// Whether a headless Service is wanted.
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
    /// The part that a Sandbox copies.
    pub fn blueprint(&self) -> Blueprint {
        Blueprint {
            pod_template: self.pod_template.clone(),
            volume_claim_templates: self.volume_claim_templates.clone(),
            service: self.service,
        }
    }
}
