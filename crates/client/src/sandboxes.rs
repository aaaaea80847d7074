//! Finds Sandboxes, their Pods and containers, and changes their mode.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hutch_api::state::{KEEPS_MEMORY, MEMORY_NOT_KEPT};
use hutch_api::{OperatingMode, Sandbox, SandboxClaim, annotation, condition, pod_name};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::wait::{Cause, Step};
use crate::{Error, Name, Obstacle, Wait, obstacle};

/// Interval between two checks of a Pod that is ending.
const ENDING_POLL: Duration = Duration::from_millis(100);
/// Checks of a failed mount after which the wait ends.
const MOUNT_CHECKS: u32 = 2;
/// State of an object without conditions.
pub(crate) const UNOBSERVED: &str = "the controller has not reconciled it yet";

/// Sandboxes and SandboxClaims of one namespace.
#[derive(Clone)]
pub struct Sandboxes {
    pub(crate) client: Client,
    pub(crate) pods: Api<Pod>,
    sandboxes: Api<Sandbox>,
    claims: Api<SandboxClaim>,
    pub(crate) namespace: String,
}

/// A container of a Sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the Sandbox.
    pub sandbox: String,
    /// Name of the Pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
}

impl Sandboxes {
    /// Returns the Sandboxes of a namespace. A client that retries delays the answer 503, which is that of a container
    /// that is not running.
    pub fn new(client: Client, namespace: &str) -> Sandboxes {
        Sandboxes {
            pods: Api::namespaced(client.clone(), namespace),
            sandboxes: Api::namespaced(client.clone(), namespace),
            claims: Api::namespaced(client.clone(), namespace),
            client,
            namespace: namespace.to_owned(),
        }
    }

    /// Returns the Sandbox that a name means, in any state. Waits until a claim is bound.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the claim is not bound in time.
    pub async fn find(&self, name: &Name, wait: &mut Wait<'_>) -> Result<Sandbox, Error> {
        let (kind, text) = match name {
            Name::Sandbox(text) => ("Sandbox", text),
            Name::Claim(text) => ("SandboxClaim", text),
            Name::Either(text) => ("Sandbox or SandboxClaim", text),
        };
        if !matches!(name, Name::Claim(_))
            && let Some(sandbox) = self.sandboxes.get_opt(text).await?
        {
            return Ok(sandbox);
        }
        if matches!(name, Name::Sandbox(_)) || self.claims.get_opt(text).await?.is_none() {
            return Err(Error::NotFound { kind, name: text.clone(), namespace: self.namespace.clone() });
        }
        let sandbox = wait.until(&self.claims, ("claim", text, "bound"), bound, async || None).await?;
        let found = self.sandboxes.get_opt(&sandbox).await?;
        found.ok_or_else(|| Error::Unbound { claim: text.clone(), sandbox })
    }

    /// Returns a container of a Sandbox, once the Sandbox is ready; with a time limit of zero, at once. `resume` resumes a
    /// suspended Sandbox first. See [`Sandboxes::container`].
    ///
    /// # Errors
    /// The Sandbox does not exist, is not ready in time, or has no such container.
    pub async fn target(
        &self,
        name: &Name,
        container: Option<&str>,
        resume: bool,
        wait: &mut Wait<'_>,
    ) -> Result<Target, Error> {
        let mut sandbox = self.find(name, wait).await?;
        let name = sandbox.name_any();
        if resume && mode(&sandbox) == OperatingMode::Suspended {
            sandbox = self.set_mode(&name, OperatingMode::Running).await?;
        }
        if wait.is_zero() {
            if let Step::Never(obstacle) = ready(&sandbox) {
                return Err(Error::Blocked { kind: "sandbox", name, obstacle });
            }
        } else {
            sandbox = self.ready(&sandbox, wait).await?;
            // While the Pod from before a suspension ends, and the next one starts, the condition can be that of the first.
            while !self.has_ready_pod(&sandbox).await? && !wait.is_over() {
                tokio::time::sleep(ENDING_POLL).await;
                sandbox = self.ready(&sandbox, wait).await?;
            }
        }
        self.container(&sandbox, container).await
    }

    /// Waits until a Sandbox is ready.
    pub(crate) async fn ready(&self, sandbox: &Sandbox, wait: &mut Wait<'_>) -> Result<Sandbox, Error> {
        let (name, pod) = (sandbox.name_any(), pod_name(sandbox));
        let failed = AtomicU32::new(0);
        let explain = async || {
            let pod = self.pods.get_opt(pod).await.ok().flatten()?;
            match obstacle::of(&pod) {
                None if obstacle::is_created(&pod) => {
                    let cause = obstacle::failed_mount(&self.event_list(), &pod).await?;
                    // A Secret may be made right after its Pod.
                    let is_final = failed.fetch_add(1, Ordering::Relaxed) >= MOUNT_CHECKS;
                    Some(Cause { is_final, ..cause })
                }
                cause => cause,
            }
        };
        wait.until(&self.sandboxes, ("sandbox", &name, "ready"), ready, explain).await
    }

    /// Returns true if the Pod of a Sandbox is ready and is not being deleted.
    async fn has_ready_pod(&self, sandbox: &Sandbox) -> Result<bool, Error> {
        let pod = self.pods.get_opt(pod_name(sandbox)).await?;
        let is_usable = |pod: Pod| pod.metadata.deletion_timestamp.is_none() && condition::is_pod_ready(&pod);
        Ok(pod.is_some_and(is_usable))
    }

    /// Returns the container of that name; without a name the default container of the Pod, else its first.
    ///
    /// # Errors
    /// [`Error::NoPod`], [`Error::NoContainer`].
    pub async fn container(&self, sandbox: &Sandbox, name: Option<&str>) -> Result<Target, Error> {
        let (sandbox, pod) = (sandbox.name_any(), pod_name(sandbox).to_owned());
        let Some(object) = self.pods.get_opt(&pod).await? else {
            return Err(Error::NoPod { sandbox, pod, namespace: self.namespace.clone() });
        };
        let default = object.annotations().get(annotation::DEFAULT_CONTAINER).cloned();
        let spec = object.spec.unwrap_or_default();
        let containers = spec.containers.into_iter().chain(spec.init_containers.into_iter().flatten());
        let ephemeral = spec.ephemeral_containers.into_iter().flatten().map(|container| container.name);
        let containers: Vec<String> = containers.map(|container| container.name).chain(ephemeral).collect();
        let default = default.filter(|name| containers.contains(name));
        let container = name.map(str::to_owned).or(default).or_else(|| containers.first().cloned());
        let container = container.unwrap_or_default();
        if !containers.contains(&container) {
            return Err(Error::NoContainer { container, pod, containers });
        }
        Ok(Target { sandbox, pod, container })
    }

    /// Returns the Pod of a container.
    ///
    /// # Errors
    /// The API server refuses, or the Pod is gone.
    pub async fn pod(&self, target: &Target) -> Result<Pod, Error> {
        Ok(self.pods.get(&target.pod).await?)
    }

    /// Suspends a Sandbox: ends its Pod and keeps its volumes. Waits until it is suspended, unless the time limit is zero.
    ///
    /// # Errors
    /// The Sandbox does not exist, or is not suspended in time.
    pub async fn suspend(&self, name: &Name, wait: &mut Wait<'_>) -> Result<Sandbox, Error> {
        let sandbox = self.change(name, OperatingMode::Suspended, wait).await?;
        if wait.is_zero() {
            return Ok(sandbox);
        }
        let name = sandbox.name_any();
        wait.until(&self.sandboxes, ("sandbox", &name, "suspended"), suspended, async || None).await
    }

    /// Suspends a Sandbox as [`Sandboxes::suspend`] does, and keeps the memory of its processes. The annotation that says so
    /// stays, for later suspends.
    ///
    /// # Errors
    /// The API server has no snapshots; the Sandbox does not exist, is suspended without its memory, or is not suspended in
    /// time.
    pub async fn suspend_with_memory(&self, name: &Name, wait: &mut Wait<'_>) -> Result<Sandbox, Error> {
        if !self.has_snapshots().await? {
            return Err(Error::NoSnapshots);
        }
        let sandbox = self.find(name, wait).await?;
        let (name, keeps) = (sandbox.name_any(), sandbox.setting(annotation::SUSPEND_KEEPS));
        let sandbox = match mode(&sandbox) {
            OperatingMode::Suspended if keeps == Some(KEEPS_MEMORY) => sandbox,
            OperatingMode::Suspended => return Err(Error::NoMemory(name)),
            OperatingMode::Running => {
                let change = json!({
                    "metadata": {"annotations": {annotation::SUSPEND_KEEPS: KEEPS_MEMORY}},
                    "spec": {"operatingMode": OperatingMode::Suspended},
                });
                self.sandboxes.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await?
            }
        };
        if wait.is_zero() {
            return Ok(sandbox);
        }
        let sandbox =
            wait.until(&self.sandboxes, ("sandbox", &name, "suspended"), suspended, async || None).await?;
        match current(&sandbox, condition::SUSPENDED) {
            Some(suspended) if suspended.reason == condition::reason::MEMORY_NOT_KEPT => {
                Err(Error::MemoryLost(name))
            }
            _ => Ok(sandbox),
        }
    }

    /// Resumes a suspended Sandbox. Waits until it is ready, unless the time limit is zero.
    ///
    /// # Errors
    /// The Sandbox does not exist, or is not ready in time.
    pub async fn resume(&self, name: &Name, wait: &mut Wait<'_>) -> Result<Sandbox, Error> {
        let sandbox = self.change(name, OperatingMode::Running, wait).await?;
        if wait.is_zero() { Ok(sandbox) } else { self.ready(&sandbox, wait).await }
    }

    async fn change(
        &self,
        name: &Name,
        desired: OperatingMode,
        wait: &mut Wait<'_>,
    ) -> Result<Sandbox, Error> {
        let sandbox = self.find(name, wait).await?;
        if mode(&sandbox) == desired {
            Ok(sandbox)
        } else {
            self.set_mode(&sandbox.name_any(), desired).await
        }
    }

    pub(crate) fn sandbox_api(&self) -> Api<Sandbox> {
        self.sandboxes.clone()
    }

    pub(crate) fn event_list(&self) -> Api<Event> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn set_mode(&self, name: &str, mode: OperatingMode) -> Result<Sandbox, Error> {
        let patch = Patch::Merge(json!({"spec": {"operatingMode": mode}}));
        Ok(self.sandboxes.patch(name, &PatchParams::default(), &patch).await?)
    }
}

/// Returns the desired mode.
pub(crate) fn mode(sandbox: &Sandbox) -> OperatingMode {
    sandbox.spec.operating_mode.unwrap_or_default()
}

/// Returns the condition of that type if it was observed at the current generation.
fn current<'a>(sandbox: &'a Sandbox, kind: &str) -> Option<&'a Condition> {
    let conditions = sandbox.status.as_ref()?.conditions.as_deref()?;
    let now = sandbox.metadata.generation.unwrap_or(0);
    conditions.iter().find(|c| c.type_ == kind && c.observed_generation.unwrap_or(now) >= now)
}

fn ready(sandbox: &Sandbox) -> Step<Sandbox> {
    if sandbox.metadata.deletion_timestamp.is_some() {
        return Step::Never(Obstacle::Deleting);
    }
    if mode(sandbox) == OperatingMode::Suspended {
        return Step::Never(Obstacle::Suspended);
    }
    let Some(ready) = current(sandbox, condition::READY) else {
        return Step::Wait(UNOBSERVED.to_owned());
    };
    let message = ready.message.clone();
    match ready.reason.as_str() {
        _ if ready.status == condition::TRUE => Step::Done(sandbox.clone()),
        condition::reason::SANDBOX_EXPIRED => Step::Never(Obstacle::Expired(message)),
        condition::reason::POD_SUCCEEDED | condition::reason::POD_FAILED => {
            Step::Never(Obstacle::PodEnded(message))
        }
        _ if is_refused(ready) => Step::Never(Obstacle::Pod(message)),
        _ => Step::Wait(message),
    }
}

/// Returns true if the API server refuses what a controller makes.
fn is_refused(ready: &Condition) -> bool {
    ready.reason == condition::reason::RECONCILER_ERROR && obstacle::is_refusal(&ready.message)
}

fn suspended(sandbox: &Sandbox) -> Step<Sandbox> {
    if mode(sandbox) != OperatingMode::Suspended {
        return Step::Never(Obstacle::Resumed);
    }
    let Some(suspended) = current(sandbox, condition::SUSPENDED) else {
        return Step::Wait(UNOBSERVED.to_owned());
    };
    if let Some(ready) =
        current(sandbox, condition::READY).filter(|ready| ready.message.contains(MEMORY_NOT_KEPT))
    {
        let remedy = format!("resume it, or set {} to \"files\"", annotation::SUSPEND_KEEPS);
        return Step::Never(Obstacle::Rejected(format!("{}; {remedy}", ready.message)));
    }
    let message = suspended.message.clone();
    match suspended.reason.as_str() {
        _ if suspended.status == condition::TRUE => Step::Done(sandbox.clone()),
        condition::reason::POD_NOT_OWNED => Step::Never(Obstacle::PodNotOwned(message)),
        _ => Step::Wait(message),
    }
}

/// Reasons for which a claim stays unbound until a client changes something.
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
        Some(ready) if FINAL.contains(&ready.reason.as_str()) || is_refused(ready) => {
            Step::Never(Obstacle::Rejected(ready.message.clone()))
        }
        Some(ready) => Step::Wait(ready.message.clone()),
        None => Step::Wait(UNOBSERVED.to_owned()),
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
    fn condition_of_an_earlier_generation_is_ignored() {
        let step = |sandbox: &Sandbox| match ready(sandbox) {
            Step::Done(_) => "done".to_owned(),
            Step::Wait(text) => format!("wait: {text}"),
            Step::Never(obstacle) => format!("never: {obstacle:?}"),
        };
        assert_eq!(step(&sandbox("Running", 2, ("True", "DependenciesReady", 2))), "done");
        assert!(step(&sandbox("Running", 2, ("True", "DependenciesReady", 1))).starts_with("wait"));
        assert!(step(&sandbox("Running", 2, ("False", "PodFailed", 1))).starts_with("wait"));
        assert!(
            step(&sandbox("Running", 2, ("False", "PodFailed", 2))).starts_with("never: PodEnded(\"m\")")
        );
        assert_eq!(step(&sandbox("Suspended", 2, ("True", "DependenciesReady", 2))), "never: Suspended");
    }

    #[test]
    fn refused_pod_ends_the_wait() {
        let step = |message: &str| {
            let mut sandbox = sandbox("Running", 1, ("False", "ReconcilerError", 1));
            let conditions = sandbox.status.as_mut().and_then(|s| s.conditions.as_mut()).unwrap();
            conditions[0].message = message.to_owned();
            matches!(ready(&sandbox), Step::Never(Obstacle::Pod(_)))
        };
        assert!(step("Error seen: pods \"a\" is forbidden: exceeded quota: q, requested: pods=1"));
        assert!(step("Error seen: pods \"a\" is forbidden: pod rejected: RuntimeClass \"x\" not found"));
        assert!(step("Error seen: Pod \"a\" is invalid: spec.containers: Required value"));
        assert!(step("Error seen: admission webhook \"a.b.c\" denied the request: no"));
        assert!(!step("Error seen: the connection ended"));
        assert!(!step("Error seen: pods \"a\" is forbidden: error looking up service account n/default"));
        assert!(!step("Error seen: pods \"a\" is forbidden: status unknown for quota: q, resources: pods"));
    }

    #[test]
    fn rejected_claim_ends_the_wait() {
        let step = |reason: &str, message: &str| {
            let claim: SandboxClaim = serde_json::from_value(json!({
                "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": "c"},
                "spec": {"warmPoolRef": {"name": "p"}},
                "status": {"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            }))
            .unwrap();
            match bound(&claim) {
                Step::Done(name) => name,
                Step::Wait(text) => format!("wait: {text}"),
                Step::Never(obstacle) => format!("never: {obstacle}"),
            }
        };
        for reason in FINAL {
            assert_eq!(step(reason, "m"), "never: m", "{reason}");
        }
        for reason in ["WarmPoolNotFound", "AdoptionConflict", "ReconcilerError", "SandboxNotReady"] {
            assert_eq!(step(reason, "m"), "wait: m", "{reason}");
        }
        let quota = "Error seen: sandboxes.agents.x-k8s.io \"c\" is forbidden: exceeded quota: q";
        assert_eq!(step("ReconcilerError", quota), format!("never: {quota}"));
    }
}
