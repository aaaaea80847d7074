//! Blueprint of a Sandbox: the fields that `Sandbox` and `SandboxTemplate` share.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PodSpec};
use serde::{Deserialize, Serialize};

/// Labels and annotations to set on the Pod of a Sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// Labels; keys of the project's own domains never reach the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations; keys of the project's own domains never reach the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// The Pod of a Sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Pod spec. Shared, since it is the largest part of a Sandbox and mostly identical across Sandboxes.
    #[serde(with = "shared")]
    pub spec: Arc<PodSpec>,
    /// Labels and annotations of the Pod.
    #[serde(default)]
    pub metadata: PodMetadata,
}

/// Serializes a shared value as the value itself.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(to)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}

/// Name, labels and annotations of a volume claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimTemplateMetadata {
    /// Name of the volume in the Pod; the claim itself is called `<name>-<sandbox>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// A volume that outlives the Pod of the Sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimTemplate {
    /// Name, labels and annotations.
    #[serde(default)]
    pub metadata: VolumeClaimTemplateMetadata,
    /// Size, class and access modes.
    pub spec: PersistentVolumeClaimSpec,
}

impl VolumeClaimTemplate {
    /// The template's name, empty when it has none.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

/// Everything that is copied from a template to a Sandbox; input of the blueprint hash.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blueprint {
    /// The Pod.
    pub pod_template: PodTemplate,
    /// Volumes that outlive the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    /// Headless Service: `true` creates it, `false` removes it, unset keeps an existing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
}
