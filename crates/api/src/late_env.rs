//! Late env: Pod condition by which the node reports variables passed to a running Pod.

/// Type of the Pod condition.
pub const CONDITION: &str = "hutch.dev/LateEnv";
/// Reason while True: the Pod has no variables of a claim yet, and accepts them as if set at its start.
pub const POSSIBLE: &str = "Possible";
/// Reason while True: every new process of the Pod has the variables of [`crate::annotation::LATE_ENV`].
pub const IN_FORCE: &str = "InForce";
/// Reason while False: the Pod has the annotation, and at least one container has not applied it yet.
pub const PENDING: &str = "Pending";
