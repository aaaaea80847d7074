//! Label keys and values.

/// On Pod, Service and PVC: hash of the Sandbox's name. The Service selects by it.
pub const SANDBOX_NAME_HASH: &str = "agents.x-k8s.io/sandbox-name-hash";
/// On an object made by somebody else: `"true"` lets a Sandbox of the right name take it over.
pub const ADOPTABLE: &str = "agents.x-k8s.io/adoptable";
/// On a pooled Sandbox, and its Pod: hash of the pool's name.
pub const WARM_POOL_SANDBOX: &str = "agents.x-k8s.io/warm-pool-sandbox";
/// On template, Sandbox and Pod: hash of the template's name. The NetworkPolicy selects by it.
pub const TEMPLATE_REF_HASH: &str = "agents.x-k8s.io/sandbox-template-ref-hash";
/// On a pooled Sandbox: hash of the blueprint that it was made from.
pub const TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-template-hash";
/// On a pooled Sandbox: hash of the Pod template that it was made from. Deprecated, still written.
pub const POD_TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-pod-template-hash";
/// On a Sandbox: [`LAUNCH_COLD`] or [`LAUNCH_WARM`].
pub const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";
/// On claim, Sandbox and Pod: which kind of client asked.
pub const CREATED_BY: &str = "agents.x-k8s.io/created-by";
/// On a claimed Sandbox: uid of the claim. The record of the assignment.
pub const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";

/// Value of [`LAUNCH_TYPE`]: made for its claim.
pub const LAUNCH_COLD: &str = "cold";
/// Value of [`LAUNCH_TYPE`]: made by a pool.
pub const LAUNCH_WARM: &str = "warm";

/// Values of [`CREATED_BY`] that are passed on as they are.
pub const KNOWN_CREATORS: [&str; 3] = ["go-client", "python-client", "controller"];
/// What any other value of [`CREATED_BY`] becomes.
pub const UNKNOWN_CREATOR: &str = "unknown";

/// Namespace label that Kubernetes sets to the namespace's name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// [`CREATED_BY`] as it may be passed on.
pub fn normalised_creator(value: &str) -> &str {
    if KNOWN_CREATORS.contains(&value) { value } else { UNKNOWN_CREATOR }
}
