//! Annotation keys.

/// On a Sandbox: name of its Pod.
pub const POD_NAME: &str = "agents.x-k8s.io/pod-name";
/// On a Pod: the label keys that came from the template, sorted, joined by commas.
pub const PROPAGATED_LABELS: &str = "agents.x-k8s.io/propagated-labels";
/// On a Pod: the annotation keys that came from the template, sorted, joined by commas.
pub const PROPAGATED_ANNOTATIONS: &str = "agents.x-k8s.io/propagated-annotations";
/// On a Sandbox: name of its template.
pub const TEMPLATE_REF: &str = "agents.x-k8s.io/sandbox-template-ref";
/// On a claim: name of the Sandbox assigned to it. Also a deprecated label of the same key.
pub const SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";
/// On a claim, set by clients: time of the user's request (RFC 3339, nanoseconds).
pub const CLIENT_FIRST_REQUESTED_AT: &str = "agents.x-k8s.io/client-first-requested-at";
/// On a claim, set by an optional webhook: time at which the API server received it.
pub const WEBHOOK_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/webhook-first-observed-at";
/// On a claim: time at which the controller first observed it.
pub const CONTROLLER_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/controller-first-observed-at";
/// On a claim: time at which it first became Ready, or `unknown`.
pub const CLAIM_FIRST_READY_AT: &str = "agents.x-k8s.io/claim-first-ready-at";
/// On claim and Sandbox: W3C trace context as a JSON object.
pub const TRACE_CONTEXT: &str = "opentelemetry.io/trace-context";
/// On the Pod of a pooled Sandbox: `"true"`.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// On a Pod, or its template: the default container of requests that name none.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// On a Sandbox adopted from a pool, and on its Pod: the claim's `env`, as JSON, for running containers.
pub const LATE_ENV: &str = "hutch.dev/env";
/// On a Sandbox: `"true"` lets a connection through the router wake it while it is frozen or suspended.
pub const WAKE_ON_CONNECT: &str = "hutch.dev/wake-on-connect";
/// On a Sandbox that was suspended for being idle: its `metadata.generation` after that write. Any later change of the
/// spec, such as a user's own suspend, makes it void.
pub const ASLEEP_GENERATION: &str = "hutch.dev/asleep-generation";
/// On a Sandbox or its Pod template: idle time until it is frozen, where Hutch runs the Pod (Go: `10m`).
pub const IDLE_AFTER: &str = "hutch.dev/idle-after";
/// On a Sandbox or its Pod template: idle time until the memory of a frozen one is written to swap (Go: `30m`).
pub const PAGE_OUT_AFTER: &str = "hutch.dev/page-out-after";
/// On a Sandbox or its Pod template: idle time until it is suspended (Go duration: `1h`).
pub const SUSPEND_AFTER: &str = "hutch.dev/suspend-after";
/// On a Sandbox or its Pod template: port at which its sandboxd reports the time of last use.
pub const ACTIVITY_PORT: &str = "hutch.dev/activity-port";
/// On a Sandbox that is or will be suspended: time to wake it (RFC 3339). Removed after the wake.
pub const WAKE_AT: &str = "hutch.dev/wake-at";
/// On a Sandbox that may be suspended when idle: time of last use, reported periodically (RFC 3339).
pub const LAST_ACTIVITY: &str = "hutch.dev/last-activity";
/// On a frozen Sandbox: time since when it is frozen (RFC 3339).
pub const FROZEN_SINCE: &str = "hutch.dev/frozen-since";
/// On a Sandbox or its Pod template: what a suspend keeps, `memory` or `files`. On a Pod it is ignored.
pub const SUSPEND_KEEPS: &str = "hutch.dev/suspend-keeps";
/// On a Sandbox or its Pod template: time after a suspend that keeps memory at which the memory is removed (Go duration).
pub const DROP_MEMORY_AFTER: &str = "hutch.dev/drop-memory-after";
/// On a Pod template, a Sandbox or a Pod: name of the SandboxSnapshot of the same namespace from which it starts.
pub const RESTORE_FROM: &str = "hutch.dev/restore-from";
/// On a Sandbox or its Pod template: `Required`, the default, has a Pod wait whose snapshot cannot be restored; `BestEffort`
/// starts it without.
pub const RESTORE_POLICY: &str = "hutch.dev/restore-policy";
/// On a Sandbox or its Pod template: any text. A new one has the volumes of the snapshot put back.
pub const RESTORE_AGAIN: &str = "hutch.dev/restore-again";
/// On a Namespace: number of complete snapshots of each Sandbox that are kept; the oldest are deleted.
pub const SNAPSHOTS_KEEP_LAST: &str = "hutch.dev/snapshots-keep-last";
/// On a Namespace: bytes that the images of its snapshots may have, as a quantity (`10Gi`).
pub const SNAPSHOTS_BYTES: &str = "hutch.dev/snapshots-bytes";
/// On a Sandbox, its Pod template or a claim's metadata for it: name of the PodSnapshot from which it starts, as clients of
/// GKE's API write it.
pub const POD_SNAPSHOT: &str = "podsnapshot.gke.io/ps-name";
/// On a PodSnapshot, and on its SandboxSnapshot: name of the Pod whose state it holds. No user writes it.
pub const ORIGIN_POD: &str = "podsnapshot.gke.io/origin-pod";
/// On a Sandbox or its Pod template: command that is run inside after each restore, as JSON: `["/path", "argument"]`.
pub const AFTER_RESTORE: &str = "hutch.dev/after-restore";
/// On a Sandbox or its Pod template: `"true"` allows that several Sandboxes start with one memory, although random generators
/// in it then give all of them the same numbers.
pub const SHARES_GENERATORS: &str = "hutch.dev/shares-generators";
/// On a Sandbox of a fork: `spec.credentials` of the SandboxFork, `None` or `Inherit`, and after `/` the UID of the Sandbox whose
/// placeholders are in its memory.
pub const FORK_CREDENTIALS: &str = "hutch.dev/fork-credentials";
/// On a Sandbox of a fork: UID of the SandboxFork.
pub const FORK_UID: &str = "hutch.dev/fork-uid";
/// On a template, a claim or a Sandbox: names of SandboxPolicies of its namespace, joined by commas. From a claim it is
/// copied to the Sandbox.
pub const POLICIES: &str = "policy.hutch.dev/policies";
/// Prefix. On a claim or a Sandbox: attribute of the task, for conditions of policies. From a claim they are copied to the
/// Sandbox when the claim gets it.
pub const ATTRIBUTE: &str = "attr.policy.hutch.dev/";
/// On a Sandbox or a claim of `hutch up`: name of its creator, for conditions of policies. From a claim it is copied to the
/// Sandbox.
pub const USER: &str = "policy.hutch.dev/user";
/// On a Pod of a cluster with a gateway: credentials of which it has placeholders, as `POLICY/NAME`, joined by commas.
pub const CREDENTIALS: &str = "policy.hutch.dev/credentials";
/// On a shadow pool: marks it as created by a migration.
pub const MIGRATION_SHADOW: &str = "agents.x-k8s.io/migration-shadow";
/// On a shadow pool: the template whose claims it serves.
pub const MIGRATION_SOURCE: &str = "agents.x-k8s.io/migration-source-template";
/// On every object that a migration has rewritten: time of the rewrite (RFC 3339).
pub const STORAGE_MIGRATED_AT: &str = "agents.x-k8s.io/storage-migrated-at";

/// On a stored Sandbox that was written as `v1alpha1`: that object.
pub const SANDBOX_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandbox-state";
/// On a stored SandboxClaim that was written as `v1alpha1`: that object.
pub const CLAIM_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxclaim-state";
/// On a stored SandboxTemplate that was written as `v1alpha1`: that object.
pub const TEMPLATE_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxtemplate-state";
/// On a stored SandboxWarmPool that was written as `v1alpha1`: that object.
pub const POOL_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxwarmpool-state";
/// On a `v1alpha1` SandboxTemplate: the field that the older version lacks.
pub const VOLUME_CLAIM_TEMPLATES_POLICY: &str = "api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy";
/// On a `v1alpha1` SandboxClaim: the field that the older version lacks, as JSON.
pub const VOLUME_CLAIM_TEMPLATES: &str = "api.agents.x-k8s.io/v1beta1-volume-claim-templates";
/// On a `v1alpha1` SandboxClaim: the pool, where the older version's fields would convert to a different one.
pub const WARM_POOL_REF: &str = "api.agents.x-k8s.io/v1beta1-warm-pool-ref";

#[cfg(test)]
mod tests {
    #[test]
    fn every_key_is_documented() {
        let told = include_str!("../../../docs/annotations.md");
        let sources = [include_str!("annotation.rs"), include_str!("label.rs")];
        let constants =
            sources.iter().flat_map(|source| source.lines()).filter(|line| line.starts_with("pub const "));
        let keys: Vec<&str> =
            constants.filter_map(|line| line.split('"').nth(1)).filter(|text| text.contains('/')).collect();
        assert!(keys.len() > 30, "the constants are not read as they are written: {keys:?}");
        let missing: Vec<_> = keys.iter().filter(|key| !told.contains(&format!("`{key}`"))).collect();
        assert!(missing.is_empty(), "docs/annotations.md does not tell of {missing:?}");
    }
}
