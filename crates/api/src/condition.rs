//! Condition types, reasons and messages. Clients and tests compare them, so each is defined once, here.

use k8s_openapi::api::core::v1::Pod;

/// Condition: the Sandbox, or the claim's Sandbox, can be used.
pub const READY: &str = "Ready";
/// Condition: the Sandbox has no Pod because it is suspended.
pub const SUSPENDED: &str = "Suspended";
/// Condition: the Pod has terminated by itself.
pub const FINISHED: &str = "Finished";
/// Condition: the Pod is bound to a node. Same name as the Pod's own condition.
pub const POD_SCHEDULED: &str = "PodScheduled";
/// Condition: what its policies say holds. Written where Hutch runs the Pod.
pub const POLICY_ENFORCED: &str = "PolicyEnforced";
/// Condition of a Pod: the same.
pub const POLICY_ENFORCED_OF_POD: &str = "policy.hutch.dev/PolicyEnforced";
/// Condition: what separates the processes of the Sandbox from the machine. Written where Hutch runs the Pod.
pub const ISOLATION: &str = "Isolation";
/// Condition of a Pod: the same.
pub const ISOLATION_OF_POD: &str = "hutch.dev/Isolation";

/// Status of a condition.
pub const TRUE: &str = "True";
/// Status of a condition.
pub const FALSE: &str = "False";
/// Status of a condition.
pub const UNKNOWN: &str = "Unknown";

/// Reasons.
pub mod reason {
    /// Sandbox Ready: all dependencies are ready.
    pub const DEPENDENCIES_READY: &str = "DependenciesReady";
    /// Sandbox Ready: a dependency is not ready.
    pub const DEPENDENCIES_NOT_READY: &str = "DependenciesNotReady";
    /// Sandbox Ready: suspended.
    pub const SANDBOX_SUSPENDED: &str = "SandboxSuspended";
    /// Sandbox and claim Ready: the Sandbox has expired.
    pub const SANDBOX_EXPIRED: &str = "SandboxExpired";
    /// Sandbox Ready and Finished: the Pod succeeded.
    pub const POD_SUCCEEDED: &str = "PodSucceeded";
    /// Sandbox Ready and Finished: the Pod failed.
    pub const POD_FAILED: &str = "PodFailed";
    /// Sandbox Ready: more than one Pod.
    pub const MULTIPLE_PODS: &str = "MultiplePods";
    /// Ready: an error that is retried.
    pub const RECONCILER_ERROR: &str = "ReconcilerError";

    /// Suspended: the Sandbox is running.
    pub const NOT_SUSPENDED: &str = "NotSuspended";
    /// Suspended: the Pod is gone.
    pub const POD_TERMINATED: &str = "PodTerminated";
    /// Suspended, and an event: the memory of the processes was to be kept, and is not there.
    pub const MEMORY_NOT_KEPT: &str = "MemoryNotKept";
    /// Suspended: the Pod is terminating.
    pub const POD_TERMINATING: &str = "PodTerminating";
    /// Suspended: a Pod of that name has another owner.
    pub const POD_NOT_OWNED: &str = "PodNotOwned";
    /// Suspended: the Pod could not be fetched.
    pub const POD_STATE_UNKNOWN: &str = "PodStateUnknown";

    /// PodScheduled: True and the Pod gives no reason.
    pub const POD_SCHEDULED: &str = "PodScheduled";
    /// PodScheduled: unknown.
    pub const POD_SCHEDULING_UNKNOWN: &str = "PodSchedulingUnknown";
    /// PodScheduled of a Pod: no node has enough capacity.
    pub const UNSCHEDULABLE: &str = "Unschedulable";

    /// Claim Ready: the template does not exist.
    pub const TEMPLATE_NOT_FOUND: &str = "TemplateNotFound";
    /// Claim Ready: the pool does not exist.
    pub const WARM_POOL_NOT_FOUND: &str = "WarmPoolNotFound";
    /// Claim Ready: lost a race for a Sandbox; retried.
    pub const ADOPTION_CONFLICT: &str = "AdoptionConflict";
    /// Claim Ready: created, not yet observed.
    pub const SANDBOX_CREATE_PENDING: &str = "SandboxCreatePending";
    /// Claim Ready: `additionalPodMetadata` is not allowed.
    pub const INVALID_METADATA: &str = "InvalidMetadata";
    /// Claim Ready: `env` is not allowed.
    pub const ENV_VARS_INJECTION_REJECTED: &str = "EnvVarsInjectionRejected";
    /// Claim Ready: `volumeClaimTemplates` is not allowed.
    pub const VOLUME_CLAIM_TEMPLATES_ERROR: &str = "VolumeClaimTemplatesError";
    /// Claim Ready: the claim has expired.
    pub const CLAIM_EXPIRED: &str = "ClaimExpired";
    /// Claim Ready: there is no Sandbox.
    pub const SANDBOX_MISSING: &str = "SandboxMissing";
    /// Claim Ready: the Sandbox has no Ready condition yet.
    pub const SANDBOX_NOT_READY: &str = "SandboxNotReady";
}

/// Messages.
pub mod message {
    /// Ready, first part.
    pub const POD_DOES_NOT_EXIST: &str = "Pod does not exist";
    /// Ready, first part; the phase follows.
    pub const POD_EXISTS_WITH_PHASE: &str = "Pod exists with phase: ";
    /// Ready, first part.
    pub const POD_RUNNING_NOT_READY: &str = "Pod is Running but not Ready";
    /// Ready, first part.
    pub const POD_READY_NO_IPS: &str = "Pod is Ready but has no podIPs yet";
    /// Ready, first part.
    pub const POD_READY: &str = "Pod is Ready";
    /// Ready, second part, when a Service is required.
    pub const SERVICE_EXISTS: &str = "; Service Exists";
    /// Ready, second part, when a Service is required.
    pub const SERVICE_DOES_NOT_EXIST: &str = "; Service does not exist";
    /// Ready, of Sandbox and claim; the error follows.
    pub const ERROR_SEEN: &str = "Error seen: ";
    /// Ready.
    pub const SUSPENDING: &str = "Sandbox is suspending";
    /// Ready.
    pub const SUSPENDED: &str = "Sandbox is suspended";
    /// Ready.
    pub const EXPIRED: &str = "Sandbox has expired";
    /// Ready and Finished.
    pub const POD_SUCCEEDED: &str = "Pod completed successfully";
    /// Ready and Finished.
    pub const POD_FAILED: &str = "Pod failed";

    /// Suspended.
    pub const NOT_SUSPENDED: &str = "Sandbox is not suspended";
    /// Suspended.
    pub const POD_TERMINATED: &str = "Pod has been terminated. Sandbox is suspended";
    /// Suspended.
    pub const POD_TERMINATING: &str = "Pod is terminating. Sandbox is suspending";
    /// Suspended.
    pub const POD_NOT_OWNED: &str = "Refused to delete pod because it is not owned by this sandbox";
    /// Suspended.
    pub const POD_STATE_UNKNOWN: &str = "Pod state is unknown. Sandbox suspension cannot be confirmed";

    /// PodScheduled.
    pub const POD_NOT_REPORTED: &str = "Pod has not reported a PodScheduled condition yet";
    /// PodScheduled.
    pub const POD_SCHEDULING_UNKNOWN: &str = "Pod state is unknown. Pod scheduling cannot be determined";

    /// Claim Ready.
    pub const CREATE_PENDING: &str = "Sandbox already created; waiting for cache to converge";
    /// Claim Ready.
    pub const CLAIM_EXPIRED: &str = "Claim expired. Sandbox cleanup initiated.";
    /// Claim Ready.
    pub const SANDBOX_MISSING: &str = "Sandbox does not exist";
    /// Claim Ready.
    pub const SANDBOX_EXPIRED: &str = "Underlying Sandbox resource has expired independently of the Claim.";
    /// Claim Ready.
    pub const SANDBOX_NOT_READY: &str = "Sandbox is not ready";
    /// Claim Ready, end of an adoption conflict.
    pub const ADOPTION_CONFLICT: &str = "; the next pass retries from a converged view";

    /// Ready with more than one Pod.
    pub fn multiple_pods(count: usize) -> String {
        format!("multiple Pods ({count}) are controlled by this Sandbox; refusing to choose or create a Pod")
    }

    /// Claim Ready.
    pub fn template_not_found(name: &str) -> String {
        format!("SandboxTemplate {name:?} not found")
    }

    /// Claim Ready.
    pub fn warm_pool_not_found(name: &str) -> String {
        format!("SandboxWarmPool {name:?} not found")
    }
}

/// Returns true if the condition `Ready` of a Pod is true.
pub fn is_pod_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == READY && condition.status == TRUE)
}
