//! State of Sandboxes that is kept apart from them: `SandboxSnapshot` and `SandboxFork` of `hutch.dev/v1alpha1`.
//!
//! A snapshot holds what a Sandbox has written and, with [`Content::Full`], the memory of its processes. `hutch up` makes
//! them; on a cluster every object is answered with `Ready=False` and [`reason::NOT_SUPPORTED_HERE`].

mod copy;
mod credentials;
mod restore;
mod retention;

pub use copy::{RUNTIME, Renewal, after_restore, is_runtime, renewal, restored};
pub use credentials::{CredentialsOfFork, credentials_of};
pub use restore::{
    NOT_BEGUN, NOT_COMPLETE, RESTORE_FAILED, RESTORED, RESTORED_POD, RestorePolicy, STARTED_ANEW, beginning,
    begun_with, name_in_beginning, restored_from, started_anew, waits,
};
pub use retention::Retention;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

/// API group of the objects.
pub const GROUP: &str = "hutch.dev";
/// Version of the objects.
pub const VERSION: &str = "v1alpha1";

/// Plural of SandboxSnapshots.
pub const SANDBOX_SNAPSHOTS: &str = "sandboxsnapshots";
/// Plural of SandboxForks.
pub const SANDBOX_FORKS: &str = "sandboxforks";

/// Start of the names of snapshots that suspends make. No user creates one, or restores from one.
pub const SUSPEND_PREFIX: &str = "suspend-";

/// Name of the snapshot that a suspend with memory makes of the Sandbox of this uid. At most one exists.
pub fn suspend_name(sandbox_uid: &str) -> String {
    format!("{SUSPEND_PREFIX}{sandbox_uid}")
}

/// Returns true for the name of a snapshot that a suspend has made.
pub fn is_suspend(snapshot: &str) -> bool {
    snapshot.starts_with(SUSPEND_PREFIX)
}

/// Value of [`annotation::SUSPEND_KEEPS`]: memory and files.
pub const KEEPS_MEMORY: &str = "memory";
/// Value of that annotation: files only.
pub const KEEPS_FILES: &str = "files";

/// Text in the condition `Ready` of a Sandbox that is not suspended because its memory could not be written.
pub const MEMORY_NOT_KEPT: &str = "its memory cannot be kept, so it is not suspended";

/// Reasons of the condition `Ready` of a snapshot and of a fork.
pub mod reason {
    /// Not begun.
    pub const PENDING: &str = "Pending";
    /// The node works on it.
    pub const IN_PROGRESS: &str = "InProgress";
    /// It is complete and durable: `Ready` is True.
    pub const COMPLETED: &str = "Completed";
    /// It failed for good; the message has the cause.
    pub const FAILED: &str = "Failed";
    /// The Sandbox of that name is not the one of the given uid.
    pub const SOURCE_REPLACED: &str = "SourceReplaced";
    /// Snapshots are made by `hutch up` alone.
    pub const NOT_SUPPORTED_HERE: &str = "NotSupportedHere";
    /// A snapshot is restored more than once, and the Sandbox does not say how its programs get new random numbers.
    pub const NEEDS_AFTER_RESTORE: &str = "NeedsAfterRestore";
    /// The image of a complete snapshot is gone, or was changed by someone else: `Ready` is False.
    pub const LOST: &str = "Lost";
    /// The namespace or the node keeps as much as it may; the message has the bound.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// The disk is, or would be, fuller than snapshots may make it.
    pub const DISK_FULL: &str = "DiskFull";

    /// Returns true for the reason of a snapshot or a fork that stays as it is.
    pub fn is_final(reason: &str) -> bool {
        [FAILED, SOURCE_REPLACED, QUOTA_EXCEEDED, DISK_FULL, NOT_SUPPORTED_HERE, LOST, NEEDS_AFTER_RESTORE]
            .contains(&reason)
    }
}

/// Content of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Memory and files. In gVisor only.
    Full,
    /// Files that the containers have written outside of their volumes, and volumes of claims.
    Filesystem,
}

/// Volumes of claims in a snapshot, by the names of the `volumeClaimTemplates` of the Sandbox. Exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotVolumes {
    /// Those that are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// `true`: it has no volume of a claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub none: bool,
}

impl SnapshotVolumes {
    /// Returns true if the volume of that template is in the snapshot.
    pub fn has(&self, template: &str) -> bool {
        !self.none && self.include.as_ref().is_none_or(|names| names.iter().any(|name| name == template))
    }
}

/// State of the Sandbox after its snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Afterwards {
    /// It runs.
    #[default]
    Run,
    /// It stays stopped and admits no request, until its Pod is deleted. For suspends.
    Stop,
}

/// The Sandbox of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// Name, in the namespace of the snapshot.
    pub sandbox: String,
    /// UID that it must have, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Desired snapshot. Immutable.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "hutch.dev",
    version = "v1alpha1",
    kind = "SandboxSnapshot",
    plural = "sandboxsnapshots",
    namespaced,
    status = "SandboxSnapshotStatus",
    schema = "disabled",
    derive = "PartialEq",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSnapshotSpec {
    /// Its Sandbox.
    pub source: SnapshotSource,
    /// Content.
    pub content: Content,
    /// State of the Sandbox afterwards.
    #[serde(default)]
    pub afterwards: Afterwards,
    /// Volumes of claims in it; all that the `volumeClaimTemplates` of the Sandbox made, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<SnapshotVolumes>,
    /// Time after its completion at which it is deleted (Go duration: `168h`); never, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
}

/// Program that wrote the memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRuntime {
    /// Name, such as `runsc`.
    pub name: String,
    /// Version as it reports it.
    pub version: String,
    /// SHA-256 of the program, in hexadecimal digits.
    pub digest: String,
}

/// Sizes, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSizes {
    /// Memory of the processes.
    pub memory: u64,
    /// Files.
    pub files: u64,
}

/// Observed snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSnapshotStatus {
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Handler that ran the Sandbox: `gvisor` or `hutch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// Program that wrote the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<SnapshotRuntime>,
    /// Node that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// UID of the Sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_uid: Option<String>,
    /// UID of the Pod whose state it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Volumes of claims in it, by the names of their templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// Sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<SnapshotSizes>,
    /// Time for which the processes stood still, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_millis: Option<u64>,
}

/// Source of forks: a Sandbox, of which a snapshot is made, or a snapshot. Exactly one is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkSource {
    /// Name of a Sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Name of a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// Stands for the number of a Sandbox in the template of names.
const INDEX: &str = "$(INDEX)";

/// Maximum number of Sandboxes of a fork.
pub const FORKS: usize = 100;

/// Worth of the placeholders of the source in its forks, in whose memory they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForkCredentials {
    /// Nothing: they are refused, and reported. A fork has placeholders of its own.
    #[default]
    None,
    /// They stand for the credentials that the policies of the fork offer, and are also its own.
    Inherit,
}

/// Desired forks. Immutable.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "hutch.dev",
    version = "v1alpha1",
    kind = "SandboxFork",
    plural = "sandboxforks",
    namespaced,
    status = "SandboxForkStatus",
    schema = "disabled",
    derive = "PartialEq",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxForkSpec {
    /// Source.
    pub source: ForkSource,
    /// Number of Sandboxes, 1 to 100.
    pub replicas: i32,
    /// Name of each: `$(INDEX)` stands for its number from 0 on. The default is the name of the fork, `-` and the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_template: Option<String>,
    /// Content of the snapshot of a Sandbox; a snapshot as the source has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Credentials.
    #[serde(default)]
    pub credentials: ForkCredentials,
}

impl SandboxFork {
    /// Names of the Sandboxes.
    pub fn child_names(&self) -> Vec<String> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let default = format!("{name}-{INDEX}");
        let template = self.spec.name_template.as_ref().unwrap_or(&default);
        (0..self.spec.replicas).take(FORKS).map(|index| template.replace(INDEX, &index.to_string())).collect()
    }
}

/// One Sandbox of a fork.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkChild {
    /// Name.
    pub name: String,
    /// UID, once it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// `Pending`, `Ready` or `Failed`.
    pub phase: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Observed forks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxForkStatus {
    /// `Ready`: all children are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Name of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The Sandboxes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ForkChild>,
}
