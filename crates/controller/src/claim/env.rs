//! `env` of a claim: literal variables for a container of the template. Pure.

use hutch_api::condition::reason;
use hutch_api::{ClaimEnvVar, EnvVarsInjectionPolicy, SandboxTemplate};
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec};

use super::refusal::Refusal;

pub(super) fn policy(template: &SandboxTemplate) -> EnvVarsInjectionPolicy {
    template.spec.env_vars_injection_policy.unwrap_or_default()
}

pub(super) fn inject(
    pod: &mut PodSpec,
    env: &[ClaimEnvVar],
    policy: EnvVarsInjectionPolicy,
) -> Result<(), Refusal> {
    if !env.is_empty() && policy == EnvVarsInjectionPolicy::Disallowed {
        return Err(rejected("environment variable injection is not allowed by the template policy"));
    }
    for variable in env {
        let container = target(pod, variable)?;
        if policy == EnvVarsInjectionPolicy::Allowed
            && container.env_from.as_ref().is_some_and(|from| !from.is_empty())
        {
            return Err(rejected(&format!(
                "container {:?} uses EnvFrom sources; Allowed policy cannot safely prevent overriding EnvFrom-provided variables",
                container.name
            )));
        }
        let value =
            EnvVar { name: variable.name.clone(), value: Some(variable.value.clone()), value_from: None };
        let list = container.env.get_or_insert_default();
        match list.iter_mut().find(|known| known.name == variable.name) {
            Some(_) if policy == EnvVarsInjectionPolicy::Allowed => {
                return Err(Refusal::error(format!(
                    "environment variable override is not allowed by the template policy for variable {:?}",
                    variable.name
                )));
            }
            Some(known) => *known = value,
            None => list.push(value),
        }
    }
    Ok(())
}

fn rejected(problem: &str) -> Refusal {
    let text = format!("environment variable injection rejected: {problem}");
    Refusal::terminal(reason::ENV_VARS_INJECTION_REJECTED, text)
}

/// Returns the container that the variable names; the first one when it names none.
fn target<'a>(pod: &'a mut PodSpec, variable: &ClaimEnvVar) -> Result<&'a mut Container, Refusal> {
    let wanted = variable.container_name.as_deref().unwrap_or_default();
    let inits = pod.init_containers.iter_mut().flatten().filter(|_| !wanted.is_empty());
    pod.containers
        .iter_mut()
        .chain(inits)
        .find(|container| wanted.is_empty() || container.name == wanted)
        .ok_or_else(|| {
            Refusal::error(format!(
                "target container {wanted:?} not found in template for environment variable {:?}",
                variable.name
            ))
        })
}
