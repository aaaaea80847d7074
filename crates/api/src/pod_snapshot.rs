//! GKE's API of Pod snapshots, `podsnapshot.gke.io/v1`, which `hutch up` serves as a view of SandboxSnapshots.
//!
//! A [`PodSnapshotManualTrigger`] makes a SandboxSnapshot, and each of those has a [`PodSnapshot`] of its name. On a cluster
//! these kinds belong to GKE, and nothing here concerns them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use crate::annotation;
use crate::state::SandboxSnapshot;

/// API group.
pub const GROUP: &str = "podsnapshot.gke.io";
/// Finalizer of a PodSnapshot: its SandboxSnapshot is deleted first.
pub const FINALIZER: &str = "hutch.dev/sandbox-snapshot";

/// Returns true for a snapshot that a trigger has made.
pub fn is_of_trigger(snapshot: &SandboxSnapshot) -> bool {
    snapshot.metadata.annotations.as_ref().is_some_and(|marks| marks.contains_key(annotation::ORIGIN_POD))
}

/// Type of the condition of a trigger.
pub const TRIGGERED: &str = "Triggered";

/// Reasons of the condition [`TRIGGERED`].
pub mod reason {
    /// Not begun.
    pub const PENDING: &str = "Pending";
    /// The snapshot is taken.
    pub const IN_PROGRESS: &str = "InProgress";
    /// The PodSnapshot is Ready: the condition is True.
    pub const COMPLETE: &str = "Complete";
    /// It failed for good; the message has the cause.
    pub const FAILED: &str = "Failed";
}

/// Request for one snapshot. Immutable.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "podsnapshot.gke.io",
    version = "v1",
    kind = "PodSnapshotManualTrigger",
    plural = "podsnapshotmanualtriggers",
    namespaced,
    status = "PodSnapshotManualTriggerStatus",
    schema = "disabled",
    derive = "PartialEq",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct PodSnapshotManualTriggerSpec {
    /// Name of a Pod of a Sandbox, in the namespace of the trigger.
    pub target_pod: String,
}

/// Outcome of a trigger.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSnapshotManualTriggerStatus {
    /// [`TRIGGERED`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// The snapshot, once it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_created: Option<SnapshotCreated>,
}

/// Snapshot of a trigger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCreated {
    /// Name of the PodSnapshot and of the SandboxSnapshot: the uid of the trigger.
    pub name: String,
}

/// View of the SandboxSnapshot of the same name.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "podsnapshot.gke.io",
    version = "v1",
    kind = "PodSnapshot",
    plural = "podsnapshots",
    namespaced,
    status = "PodSnapshotStatus",
    schema = "disabled",
    derive = "PartialEq",
    crates(kube_core = "::kube_core")
)]
pub struct PodSnapshotSpec {}

/// State of the SandboxSnapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodSnapshotStatus {
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}
