//! `Sandbox`: one isolated, stateful, named environment.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use crate::{Blueprint, PodTemplate, VolumeClaimTemplate, annotation};

/// Whether a Sandbox has a Pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatingMode {
    /// It has one.
    #[default]
    Running,
    /// It has none; its volumes and name are kept.
    Suspended,
}

/// What happens to a Sandbox whose time is up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShutdownPolicy {
    /// The Sandbox object is deleted, and with it everything it owns.
    Delete,
    /// Pod and Service are deleted; the object and its volumes stay.
    #[default]
    Retain,
}

/// Desired state of a Sandbox.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "agents.x-k8s.io",
    version = "v1beta1",
    kind = "Sandbox",
    plural = "sandboxes",
    namespaced,
    status = "SandboxStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// The Pod.
    pub pod_template: PodTemplate,
    /// Volumes that outlive the Pod. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    /// Whether a headless Service is wanted: yes, no, or "keep one that is there".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    /// When the Sandbox ends.
    #[serde(default, with = "crate::end_time", skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    /// What happens then; `Retain` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ShutdownPolicy>,
    /// `Running` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_mode: Option<OperatingMode>,
}

/// Name of a Sandbox's Pod: what it is annotated with, else its own.
pub fn pod_name(sandbox: &impl kube_core::Resource) -> &str {
    let metadata = sandbox.meta();
    let noted = metadata.annotations.as_ref().and_then(|noted| noted.get(annotation::POD_NAME));
    let noted = noted.map(String::as_str).filter(|name| !name.is_empty());
    noted.or(metadata.name.as_deref()).unwrap_or_default()
}

impl SandboxSpec {
    /// The part that came from a template.
    pub fn blueprint(&self) -> Blueprint {
        Blueprint {
            pod_template: self.pod_template.clone(),
            volume_claim_templates: self.volume_claim_templates.clone(),
            service: self.service,
        }
    }

    /// A running Sandbox of that blueprint, without an end.
    pub fn from_blueprint(blueprint: Blueprint) -> Self {
        let Blueprint { pod_template, volume_claim_templates, service } = blueprint;
        Self { pod_template, volume_claim_templates, service, ..Self::default() }
    }

    /// The volumes, none when unset.
    pub fn volumes(&self) -> &[VolumeClaimTemplate] {
        self.volume_claim_templates.as_deref().unwrap_or_default()
    }
}

/// Observed state of a Sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// `<service>.<namespace>.svc.<cluster domain>`, when there is a Service.
    #[serde(default, rename = "serviceFQDN", skip_serializing_if = "Option::is_none")]
    pub service_fqdn: Option<String>,
    /// Name of the headless Service, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// See [`crate::condition`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Label selector of the Pod, `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Addresses of the Pod that the Sandbox owns.
    #[serde(default, rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pub pod_ips: Option<Vec<String>>,
    /// Node of the Pod that the Sandbox owns.
    #[serde(default, rename = "nodeName", skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}
