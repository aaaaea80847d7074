//! Variables that a running Pod is given: what its node says about them.

/// Type of the Pod condition.
pub const CONDITION: &str = "hutch.dev/LateEnv";
/// Its reason while it is True: the Pod has no variables of a claim, and would take them as if it had been started so.
pub const POSSIBLE: &str = "Possible";
/// Its reason while it is True: every process that starts in the Pod has the variables of [`crate::annotation::LATE_ENV`].
pub const IN_FORCE: &str = "InForce";
/// Its reason while it is False: the Pod has the annotation, and some container does not follow it yet.
pub const PENDING: &str = "Pending";
