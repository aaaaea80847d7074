//! A claim's variables for a Sandbox whose Pod runs already, where the node can give them.
//!
//! The patch that takes the Sandbox writes them into its Pod template, as if it had been made for the claim, and into an
//! annotation that the Pod gets too. Its node gives them to whatever starts in the Pod from then on and says so in a
//! condition; before that the claim is not Ready.

use hutch_api::{ClaimEnvVar, Sandbox, annotation, late_env, pod_name};
use k8s_openapi::api::core::v1::PodSpec;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use super::{Seen, create, env, variables};
use crate::condition;
use crate::key::Key;
use crate::patch::put;
use crate::view::PodView;
use crate::world::World;

/// Most bytes of variables that a running Pod is given: its node hands all of them over with each start of a process.
const MOST_BYTES: usize = 64 << 10;
/// Variables that begin so are read by a runtime when it starts, so for one that runs they come too late.
const READ_AT_START: &str = "SANDBOX";

/// Whether the claim may have a pooled Sandbox, as far as its variables go. They are refused as they would be for a
/// Sandbox of its own.
pub(super) fn allows_pool(seen: &Seen) -> Result<bool, Refusal> {
    let wanted = variables(&seen.claim);
    if wanted.is_empty() {
        return Ok(true);
    }
    let template = seen.template.as_deref().ok_or_else(|| create::no_template(seen))?;
    let mut pod = PodSpec::clone(&template.spec.pod_template.spec);
    env::inject(&mut pod, wanted, env::policy(template))?;
    Ok(may_come_late(&pod, wanted))
}

/// What is not valid, or is for a container that has run already, is left to a Sandbox of the claim's own.
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

/// Adds the claim's variables to the patch that takes the Sandbox.
pub(super) fn put_variables(
    patch: &mut Map<String, Value>,
    seen: &Seen,
    sandbox: &Sandbox,
) -> Result<(), Refusal> {
    let (wanted, Some(template)) = (variables(&seen.claim), &seen.template) else { return Ok(()) };
    if wanted.is_empty() || !seen.late_env {
        return Ok(());
    }
    let mut pod = PodSpec::clone(&sandbox.spec.pod_template.spec);
    env::inject(&mut pod, wanted, env::policy(template))?;
    put(patch, &["spec", "podTemplate", "spec", "containers"], json!(pod.containers));
    put(patch, &["metadata", "annotations", annotation::LATE_ENV], json!(wanted).to_string().into());
    Ok(())
}

/// Whether the Sandbox's Pod says that it can be given variables.
pub(super) fn is_possible(world: &World, sandbox: &Sandbox) -> bool {
    reason(world, sandbox).as_deref() == Some(late_env::POSSIBLE)
}

/// Whether the Sandbox would be Ready for its claim if its Pod had the claim's variables already.
pub(super) fn is_missing(world: &World, sandbox: &Sandbox) -> bool {
    world.config.late_env
        && sandbox.annotations().contains_key(annotation::LATE_ENV)
        && condition::is_ready(sandbox.status.as_ref().and_then(|status| status.conditions.as_ref()))
        && reason(world, sandbox).as_deref() != Some(late_env::IN_FORCE)
}

/// Whether the Pod says that the variables of its annotation are in force.
pub(crate) fn is_in_force(pod: &PodView) -> bool {
    told(pod) == Some(late_env::IN_FORCE)
}

fn reason(world: &World, sandbox: &Sandbox) -> Option<String> {
    let pod = world.pods.get(&Key::of(sandbox).beside(pod_name(sandbox)))?;
    told(&pod).map(str::to_owned)
}

fn told(pod: &PodView) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let said = conditions.iter().find(|said| said.type_ == late_env::CONDITION && said.status == "True")?;
    said.reason.as_deref()
}
