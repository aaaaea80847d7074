//! Binding of a claim to its Sandbox.

use hutch_api::SandboxClaim;

/// Returns the name of the Sandbox in the claim's status, if there is one.
pub(crate) fn bound_name(claim: &SandboxClaim) -> Option<&str> {
    let sandbox = claim.status.as_ref()?.sandbox.as_ref()?;
    sandbox.name.as_deref().filter(|name| !name.is_empty())
}

/// Returns whether the claim waits for a Sandbox.
pub(crate) fn is_unbound(claim: &SandboxClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none() && bound_name(claim).is_none()
}
