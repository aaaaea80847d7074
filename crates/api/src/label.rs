//! Label keys and values.

/// On Pod, Service and PVC: hash of the Sandbox's name. The Service selects by it.
pub const SANDBOX_NAME_HASH: &str = "agents.x-k8s.io/sandbox-name-hash";
/// On an object of another owner: `"true"` lets the Sandbox of the matching name adopt it.
pub const ADOPTABLE: &str = "agents.x-k8s.io/adoptable";
/// On a pooled Sandbox, and its Pod: hash of the pool's name.
pub const WARM_POOL_SANDBOX: &str = "agents.x-k8s.io/warm-pool-sandbox";
/// On template, Sandbox and Pod: hash of the template's name. The NetworkPolicy selects by it.
pub const TEMPLATE_REF_HASH: &str = "agents.x-k8s.io/sandbox-template-ref-hash";
/// On a pooled Sandbox: hash of its blueprint.
pub const TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-template-hash";
/// On a pooled Sandbox: hash of its Pod template. Deprecated, still written.
pub const POD_TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-pod-template-hash";
/// On a Sandbox: [`LAUNCH_COLD`] or [`LAUNCH_WARM`].
pub const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";
/// On claim, Sandbox and Pod: kind of the requesting client.
pub const CREATED_BY: &str = "agents.x-k8s.io/created-by";
/// On a Sandbox of a fork: name of the SandboxFork.
pub const FORK: &str = "hutch.dev/fork";
/// On a claimed Sandbox: UID of the claim. Records the assignment.
pub const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";

/// Value of [`LAUNCH_TYPE`]: created for its claim.
pub const LAUNCH_COLD: &str = "cold";
/// Value of [`LAUNCH_TYPE`]: created by a pool.
pub const LAUNCH_WARM: &str = "warm";

/// Values of [`CREATED_BY`] that are propagated unchanged.
pub const KNOWN_CREATORS: [&str; 3] = ["go-client", "python-client", "controller"];
/// Replaces any other value of [`CREATED_BY`].
pub const UNKNOWN_CREATOR: &str = "unknown";

/// Namespace label that Kubernetes sets to the namespace's name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Returns the value of [`CREATED_BY`] that may be propagated.
pub fn normalised_creator(value: &str) -> &str {
    if KNOWN_CREATORS.contains(&value) { value } else { UNKNOWN_CREATOR }
}
