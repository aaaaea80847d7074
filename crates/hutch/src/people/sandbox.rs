//! Finds the Sandbox that a person names, and its Pod and container.

use std::time::Duration;

use anyhow::{Context, bail};
use hutch_api::{OperatingMode, Sandbox, SandboxClaim, annotation, condition, pod_name};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::api_error;
use super::wait::{Patience, Step};
use crate::cli::{Place, Readiness};
use crate::naming::Named;

/// How often a Pod that is ending is looked at.
const ENDING_POLL: Duration = Duration::from_millis(100);

/// The API, as to one namespace.
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) pods: Api<Pod>,
    pub(super) sandboxes: Api<Sandbox>,
    claims: Api<SandboxClaim>,
    namespace: String,
}

/// A container to do something in.
pub(super) struct Target {
    /// Name of the Sandbox.
    pub(super) sandbox: String,
    /// Name of the Pod.
    pub(super) pod: String,
    /// Name of the container.
    pub(super) container: String,
}

impl Cluster {
    pub(super) async fn connect(place: &Place) -> anyhow::Result<Cluster> {
        let mut config = crate::cluster::config(place.kubeconfig.as_deref()).await?;
        // A container that does not run is a 503, which a person wants to know at once.
        config.default_retry = false;
        let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let url = config.cluster_url.clone();
        let client = Client::try_from(config).with_context(|| format!("the API server {url}"))?;
        Ok(Cluster {
            pods: Api::namespaced(client.clone(), &namespace),
            sandboxes: Api::namespaced(client.clone(), &namespace),
            claims: Api::namespaced(client.clone(), &namespace),
            client,
            namespace,
        })
    }

    /// The Sandbox of that name, whatever it is doing. A claim is waited for until it has one.
    pub(super) async fn find(&self, named: &Named, patience: &mut Patience) -> anyhow::Result<Sandbox> {
        let (name, claim) = match named {
            Named::Sandbox(name) | Named::Either(name) => (name, None),
            Named::Claim(name) => (name, Some(name)),
        };
        let claim = match claim {
            Some(claim) => Some(claim),
            None => match self.sandboxes.get_opt(name).await.map_err(api_error)? {
                Some(sandbox) => return Ok(sandbox),
                None => Some(name).filter(|_| matches!(named, Named::Either(_))),
            },
        };
        let namespace = &self.namespace;
        let known = match claim {
            Some(claim) => self.claims.get_opt(claim).await.map_err(api_error)?.is_some(),
            None => false,
        };
        if !known {
            let kind = match named {
                Named::Sandbox(_) => "Sandbox",
                Named::Claim(_) => "SandboxClaim",
                Named::Either(_) => "Sandbox or SandboxClaim",
            };
            bail!(
                "no {kind} {name} in namespace {namespace}: `kubectl get sandboxes,sandboxclaims -n {namespace}` lists them"
            );
        }
        let sandbox = patience.until(&self.claims, ("claim", name, "bound"), bound).await?;
        let gone = || format!("claim {name} names sandbox {sandbox}, which is not there");
        self.sandboxes.get_opt(&sandbox).await.map_err(api_error)?.with_context(gone)
    }

    /// The container to do something in, once the Sandbox is ready.
    pub(super) async fn target(
        &self,
        named: &Named,
        container: Option<&str>,
        readiness: &Readiness,
    ) -> anyhow::Result<Target> {
        let mut patience = Patience::new(readiness.wait);
        let mut sandbox = self.find(named, &mut patience).await?;
        let name = sandbox.name_any();
        if readiness.resume && mode(&sandbox) == OperatingMode::Suspended {
            sandbox = self.set_mode(&name, OperatingMode::Running).await?;
        }
        if readiness.wait.is_zero() {
            if let Step::Never(why) = ready(&sandbox) {
                bail!("sandbox {name}: {why}");
            }
        } else {
            sandbox = patience.until(&self.sandboxes, ("sandbox", &name, "ready"), ready).await?;
            // Resumed while the Pod of before is still ending: what is ready is that one, until the next is.
            while self.is_ending(&sandbox).await? && Instant::now() < patience.end {
                tokio::time::sleep(ENDING_POLL).await;
                sandbox = patience.until(&self.sandboxes, ("sandbox", &name, "ready"), ready).await?;
            }
        }
        self.container(&sandbox, container).await
    }

    /// Whether the Pod of a Sandbox is being deleted, or gone.
    async fn is_ending(&self, sandbox: &Sandbox) -> anyhow::Result<bool> {
        let pod = self.pods.get_opt(pod_name(sandbox)).await.map_err(api_error)?;
        Ok(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
    }

    /// The container of that name, or the one that is meant without a name.
    pub(super) async fn container(&self, sandbox: &Sandbox, named: Option<&str>) -> anyhow::Result<Target> {
        let name = sandbox.name_any();
        let pod = pod_name(sandbox).to_owned();
        let Some(object) = self.pods.get_opt(&pod).await.map_err(api_error)? else {
            bail!(
                "sandbox {name} has no Pod {pod}: `kubectl describe sandbox {name} -n {}` tells why",
                self.namespace
            );
        };
        let spec = object.spec.clone().unwrap_or_default();
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let containers: Vec<&str> = containers.map(|container| container.name.as_str()).collect();
        let default = object.annotations().get(annotation::DEFAULT_CONTAINER).cloned();
        let default = default.filter(|name| containers.contains(&name.as_str()));
        let first = || containers.first().map(|&first| first.to_owned());
        let container = named.map(str::to_owned).or(default).or_else(first).unwrap_or_default();
        if !containers.contains(&container.as_str()) {
            bail!(
                "--container {container}: pod {pod} has no such container; it has {}",
                containers.join(", ")
            );
        }
        Ok(Target { sandbox: name, pod, container })
    }

    pub(super) async fn set_mode(&self, name: &str, mode: OperatingMode) -> anyhow::Result<Sandbox> {
        let patch = json!({"spec": {"operatingMode": mode}});
        self.sandboxes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(api_error)
    }
}

/// Whether it is to have a Pod.
pub(super) fn mode(sandbox: &Sandbox) -> OperatingMode {
    sandbox.spec.operating_mode.unwrap_or_default()
}

/// The condition of that type, if it is about the object as it is now.
pub(super) fn current<'a>(sandbox: &'a Sandbox, kind: &str) -> Option<&'a Condition> {
    let conditions = sandbox.status.as_ref()?.conditions.as_deref()?;
    let now = sandbox.metadata.generation.unwrap_or(0);
    conditions.iter().find(|c| c.type_ == kind && c.observed_generation.unwrap_or(now) >= now)
}

/// Whether a Sandbox can be used.
pub(super) fn ready(sandbox: &Sandbox) -> Step<Sandbox> {
    if sandbox.metadata.deletion_timestamp.is_some() {
        return Step::Never("it is being deleted".to_owned());
    }
    if mode(sandbox) == OperatingMode::Suspended {
        let name = sandbox.name_any();
        return Step::Never(format!("it is suspended; --resume or `hutch resume {name}` starts it again"));
    }
    let Some(ready) = current(sandbox, condition::READY) else {
        return Step::Wait("the controller has not looked at it yet".to_owned());
    };
    match ready.reason.as_str() {
        _ if ready.status == condition::TRUE => Step::Done(sandbox.clone()),
        condition::reason::SANDBOX_EXPIRED => {
            Step::Never(format!("{}; a later spec.shutdownTime brings it back", ready.message))
        }
        condition::reason::POD_SUCCEEDED | condition::reason::POD_FAILED => {
            Step::Never(format!("{}; `hutch suspend` and `hutch resume` start it anew", ready.message))
        }
        _ => Step::Wait(ready.message.clone()),
    }
}

/// Reasons for which a claim gets no Sandbox until somebody changes something.
const FINAL: [&str; 4] = [
    condition::reason::CLAIM_EXPIRED,
    condition::reason::INVALID_METADATA,
    condition::reason::ENV_VARS_INJECTION_REJECTED,
    condition::reason::VOLUME_CLAIM_TEMPLATES_ERROR,
];

fn bound(claim: &SandboxClaim) -> Step<String> {
    let status = claim.status.as_ref();
    let name = status.and_then(|status| status.sandbox.as_ref()?.name.clone());
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        return Step::Done(name);
    }
    let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    match conditions.iter().find(|c| c.type_ == condition::READY) {
        Some(ready) if FINAL.contains(&ready.reason.as_str()) => Step::Never(ready.message.clone()),
        Some(ready) => Step::Wait(ready.message.clone()),
        None => Step::Wait("the controller has not looked at it yet".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(mode: &str, generation: i64, ready: (&str, &str, i64)) -> Sandbox {
        let (status, reason, seen) = ready;
        serde_json::from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "a", "generation": generation},
            "spec": {"operatingMode": mode, "podTemplate": {"spec": {"containers": []}}},
            "status": {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": "m",
                "observedGeneration": seen, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap()
    }

    #[test]
    fn what_a_condition_said_of_an_earlier_spec_does_not_count() {
        let told = |sandbox: &Sandbox| match ready(sandbox) {
            Step::Done(_) => "done".to_owned(),
            Step::Wait(text) => format!("wait: {text}"),
            Step::Never(text) => format!("never: {text}"),
        };
        assert_eq!(told(&sandbox("Running", 2, ("True", "DependenciesReady", 2))), "done");
        assert!(told(&sandbox("Running", 2, ("True", "DependenciesReady", 1))).starts_with("wait"));
        assert!(told(&sandbox("Running", 2, ("False", "PodFailed", 1))).starts_with("wait"));
        assert!(told(&sandbox("Running", 2, ("False", "PodFailed", 2))).starts_with("never: m; "));
        assert!(told(&sandbox("Suspended", 2, ("True", "DependenciesReady", 2))).contains("--resume"));
    }

    #[test]
    fn a_claim_that_is_refused_is_not_waited_for() {
        let told = |reason: &str| {
            let claim: SandboxClaim = serde_json::from_value(json!({
                "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": "c"},
                "spec": {"warmPoolRef": {"name": "p"}},
                "status": {"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "m",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            }))
            .unwrap();
            match bound(&claim) {
                Step::Done(name) => name,
                Step::Wait(text) => format!("wait: {text}"),
                Step::Never(text) => format!("never: {text}"),
            }
        };
        for reason in FINAL {
            assert_eq!(told(reason), "never: m", "{reason}");
        }
        for reason in ["WarmPoolNotFound", "AdoptionConflict", "ReconcilerError", "SandboxNotReady"] {
            assert_eq!(told(reason), "wait: m", "{reason}");
        }
    }
}
