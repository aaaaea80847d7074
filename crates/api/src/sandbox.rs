//! `Sandbox`: one isolated, stateful, named environment.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use crate::{Blueprint, PodTemplate, VolumeClaimTemplate, annotation};

/// Operating mode of a Sandbox: with or without a Pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatingMode {
    /// The Sandbox has a Pod.
    #[default]
    Running,
    /// The Sandbox has no Pod; volumes and name are kept.
    Suspended,
}

/// Policy for an expired Sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShutdownPolicy {
    /// The Sandbox object and everything that it owns are deleted.
    Delete,
    /// Pod and Service are deleted; the object and its volumes are kept.
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
    /// Headless Service: `true` creates it, `false` removes it, unset keeps an existing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    /// Time at which the Sandbox expires.
    #[serde(default, with = "crate::end_time", skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    /// Policy at expiry; `Retain` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ShutdownPolicy>,
    /// `Running` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_mode: Option<OperatingMode>,
}

/// Returns the name of a Sandbox's Pod: the annotation if set, else the Sandbox's own name.
pub fn pod_name(sandbox: &impl kube_core::Resource) -> &str {
    let metadata = sandbox.meta();
    let noted = metadata.annotations.as_ref().and_then(|noted| noted.get(annotation::POD_NAME));
    let noted = noted.map(String::as_str).filter(|name| !name.is_empty());
    noted.or(metadata.name.as_deref()).unwrap_or_default()
}

impl Sandbox {
    /// Returns the value of an annotation. That of the Sandbox itself precedes that of its Pod template.
    pub fn setting(&self, key: &str) -> Option<&str> {
        let own = self.metadata.annotations.as_ref().and_then(|own| own.get(key));
        let of_template = || self.spec.pod_template.metadata.annotations.as_ref().and_then(|of| of.get(key));
        own.or_else(of_template).map(String::as_str)
    }
}

impl SandboxSpec {
    /// Returns the part that came from a template.
    pub fn blueprint(&self) -> Blueprint {
        Blueprint {
            pod_template: self.pod_template.clone(),
            volume_claim_templates: self.volume_claim_templates.clone(),
            service: self.service,
        }
    }

    /// Returns a running Sandbox of that blueprint that never expires.
    pub fn from_blueprint(blueprint: Blueprint) -> Self {
        let Blueprint { pod_template, volume_claim_templates, service } = blueprint;
        Self { pod_template, volume_claim_templates, service, ..Self::default() }
    }

    /// Returns the volumes, empty when unset.
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
