//! Variables of a claim for a Sandbox whose Pod is already running, where the node supports that. Pure.
//!
//! The patch that adopts the Sandbox writes them into its Pod template, as if it had been created for the claim, and into
//! an annotation that is copied to the Pod. The node passes them to every process that starts from then on, and reports
//! so in a condition. The claim becomes Ready after that.

use hutch_api::{ClaimEnvVar, Sandbox, annotation, late_env};
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Map, Value, json};

use super::observe::Observed;
use super::refusal::Refusal;
use super::{create, env, variables};
use crate::patch::put;
use crate::view::PodView;

/// Maximum size of the variables of a running Pod: its node sends all of them with each start of a process.
const MOST_BYTES: usize = 64 << 10;
/// Prefix of the variables that a runtime reads when it starts. For a running one they come too late.
const READ_AT_START: &str = "SANDBOX";

/// Returns whether the claim's variables allow a pooled Sandbox. They are refused as they would be for a Sandbox of the
/// claim's own.
pub(super) fn allows_pool(observed: &Observed) -> Result<bool, Refusal> {
    let wanted = variables(&observed.claim);
    if wanted.is_empty() {
        return Ok(true);
    }
    let template = observed.template.as_deref().ok_or_else(|| create::no_template(observed))?;
    let mut pod = PodSpec::clone(&template.spec.pod_template.spec);
    env::inject(&mut pod, wanted, env::policy(template))?;
    Ok(may_come_late(&pod, wanted))
}

/// Returns false for variables that are invalid, or for a container that has ended: they need a Sandbox of the claim's
/// own.
fn may_come_late(pod: &PodSpec, wanted: &[ClaimEnvVar]) -> bool {
    let target = |variable: &ClaimEnvVar| {
        let name = variable.container_name.as_deref().unwrap_or_default();
        name.is_empty() || pod.containers.iter().any(|container| container.name == name)
    };
    let valid = |variable: &ClaimEnvVar| {
        let ClaimEnvVar { name, value, .. } = variable;
        !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
    };
    let bytes: usize = wanted.iter().map(|variable| variable.name.len() + variable.value.len()).sum();
    bytes <= MOST_BYTES
        && wanted.iter().all(|it| target(it) && valid(it) && !it.name.starts_with(READ_AT_START))
}

/// Adds the claim's variables to the patch that adopts the Sandbox.
pub(super) fn put_variables(
    patch: &mut Map<String, Value>,
    observed: &Observed,
    sandbox: &Sandbox,
) -> Result<(), Refusal> {
    let (wanted, Some(template)) = (variables(&observed.claim), &observed.template) else { return Ok(()) };
    if wanted.is_empty() || !observed.late_env {
        return Ok(());
    }
    let mut pod = PodSpec::clone(&sandbox.spec.pod_template.spec);
    env::inject(&mut pod, wanted, env::policy(template))?;
    put(patch, &["spec", "podTemplate", "spec", "containers"], json!(pod.containers));
    put(patch, &["metadata", "annotations", annotation::LATE_ENV], json!(wanted).to_string().into());
    Ok(())
}

/// Returns whether the Pod reports that the variables of its annotation are in force.
pub(crate) fn is_in_force(pod: &PodView) -> bool {
    reason(pod) == Some(late_env::IN_FORCE)
}

/// Returns the reason of the Pod's condition about late variables.
pub(super) fn reason(pod: &PodView) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let late = conditions.iter().find(|it| it.type_ == late_env::CONDITION && it.status == "True")?;
    late.reason.as_deref()
}
