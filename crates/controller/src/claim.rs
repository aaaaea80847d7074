//! `SandboxClaim`: a request for one Sandbox, adopted from a warm pool or created for the claim.
//!
//! The Sandbox alone records which claim has it: in its owner reference, and in the label with the claim's uid. One patch
//! sets both, and the API server accepts only the first of two such patches. The claim's status repeats the name for
//! clients. So a claim costs two writes before it is Ready, and no crash between them can give one Sandbox to two
//! claims, or two Sandboxes to one claim.
//!
//! [`observe`] reads what is known into [`observe::Observed`]. [`plan`] decides, without I/O. [`apply`] carries it out.
//! The other modules build the objects, patches and conditions that these three need, without I/O.

mod adopt;
mod annotate;
mod apply;
mod create;
mod env;
mod expiry;
#[cfg(test)]
mod faults;
mod late_env;
mod metadata;
mod observe;
mod plan;
mod refusal;
mod status;
mod trace;
mod volumes;

use hutch_api::{ClaimEnvVar, SandboxClaim, annotation};
use kube::ResourceExt;

use crate::condition;

pub(crate) use apply::reconcile;
pub(crate) use late_env::is_in_force;

/// Returns the variables that the claim requests.
fn variables(claim: &SandboxClaim) -> &[ClaimEnvVar] {
    claim.spec.env.as_deref().unwrap_or_default()
}

/// Returns the attributes of the task and the creator, for conditions of policies. The Sandbox gets them with the claim.
fn attributes(claim: &SandboxClaim) -> impl Iterator<Item = (String, String)> {
    let is_one = |key: &str| key.starts_with(annotation::ATTRIBUTE) || key == annotation::USER;
    let attributes = claim.annotations().iter().filter(move |(key, _)| is_one(key));
    attributes.map(|(key, value)| (key.clone(), value.clone()))
}

/// Returns the assignment record of Agent Sandbox's own controller: an annotation, earlier a label of the same key.
fn record(claim: &SandboxClaim) -> Option<&str> {
    let key = annotation::SANDBOX_NAME;
    let name = claim.annotations().get(key).or_else(|| claim.labels().get(key))?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}

fn is_ready(claim: &SandboxClaim) -> bool {
    condition::is_ready(claim.status.as_ref().and_then(|status| status.conditions.as_ref()))
}

#[cfg(test)]
mod tests;
