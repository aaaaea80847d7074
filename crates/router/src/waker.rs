//! Wakes Sandboxes through the Kubernetes API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_api::{OperatingMode, Sandbox, annotation};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::{Target, Wake};

/// Wakings asked of the API at once.
const QUESTIONS: usize = 16;
/// How long the API may take for one.
const QUESTION_LIMIT: Duration = Duration::from_secs(10);
/// Tries when somebody else writes at the same time.
const TRIES: usize = 3;

/// Sets `spec.operatingMode` of a Sandbox that was put to sleep to `Running`.
pub struct ApiWake {
    client: Client,
    questions: Semaphore,
}

impl ApiWake {
    /// One that asks by this client, which must be allowed to get and patch Sandboxes.
    pub fn new(client: Client) -> ApiWake {
        ApiWake { client, questions: Semaphore::new(QUESTIONS) }
    }

    async fn ask(&self, target: &Target) -> Result<bool, kube::Error> {
        let api = Api::<Sandbox>::namespaced(self.client.clone(), &target.namespace);
        for _ in 0..TRIES {
            let Some(sandbox) = api.get_opt(&target.id).await? else { return Ok(false) };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            if target.uid.is_some() && target.uid != sandbox.metadata.uid || !may_be_woken(&sandbox, now) {
                return Ok(false);
            }
            let patch = json!({
                "metadata": {
                    "resourceVersion": sandbox.metadata.resource_version,
                    "annotations": {annotation::ASLEEP_GENERATION: null},
                },
                "spec": {"operatingMode": "Running"},
            });
            match api.patch(&target.id, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => return Ok(true),
                // Somebody wrote since: perhaps it is awake by now.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Wake for ApiWake {
    fn wake<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<bool, String>> {
        async move {
            let _turn = self.questions.acquire().await;
            match tokio::time::timeout(QUESTION_LIMIT, self.ask(target)).await {
                Ok(Ok(woken)) => Ok(woken),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {QUESTION_LIMIT:?}")),
            }
        }
        .boxed()
    }
}

/// Whether a connection may wake it: it wants that, and it was put to sleep for being idle and nobody has changed what
/// it should be since. A Sandbox that a user suspended stays so, and so does one whose time is up.
fn may_be_woken(sandbox: &Sandbox, now: Duration) -> bool {
    let metadata = &sandbox.metadata;
    let says = |key: &str| sandbox.annotations().get(key).map(String::as_str);
    let of_template = sandbox.spec.pod_template.metadata.annotations.as_ref();
    let of_template = of_template.and_then(|all| all.get(annotation::WAKE_ON_CONNECT)).map(String::as_str);
    let wants = says(annotation::WAKE_ON_CONNECT).or(of_template) == Some("true");
    let generation = metadata.generation.map(|generation| generation.to_string());
    let since_idle = generation.is_some() && says(annotation::ASLEEP_GENERATION) == generation.as_deref();
    let suspended = sandbox.spec.operating_mode == Some(OperatingMode::Suspended);
    let end = sandbox.spec.shutdown_time.as_ref().map(|time| time.0.as_second());
    let over = end.is_some_and(|end| end <= i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let pooled = sandbox.owner_references().iter().any(|owner| owner.kind == "SandboxWarmPool");
    wants && since_idle && suspended && !over && !pooled && metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn sandbox(changes: &[(&str, Value)]) -> Sandbox {
        let mut object = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "generation": 7, "ownerReferences": [],
                "annotations": {annotation::WAKE_ON_CONNECT: "true", annotation::ASLEEP_GENERATION: "7"}},
            "spec": {"operatingMode": "Suspended", "podTemplate": {"spec": {"containers": []}}},
        });
        for (pointer, value) in changes {
            let (parent, key) = pointer.rsplit_once('.').unwrap();
            object.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_one_that_fell_asleep_and_wants_it_is_woken() {
        let now = Duration::from_secs(1_800_000_000);
        assert!(may_be_woken(&sandbox(&[]), now));
        assert!(may_be_woken(&sandbox(&[("/spec.shutdownTime", json!("2027-02-01T00:00:00Z"))]), now));
        let of_template =
            ("/spec/podTemplate.metadata", json!({"annotations": {annotation::WAKE_ON_CONNECT: "true"}}));
        let own = |own: Value| ("/metadata.annotations", own);
        let slept = own(json!({annotation::ASLEEP_GENERATION: "7"}));
        assert!(may_be_woken(&sandbox(&[slept, of_template.clone()]), now));
        let refuses = own(json!({annotation::ASLEEP_GENERATION: "7", annotation::WAKE_ON_CONNECT: ""}));
        assert!(!may_be_woken(&sandbox(&[refuses, of_template]), now), "its own come first");
        for (what, change) in [
            ("not wanted", ("/metadata.annotations", json!({annotation::ASLEEP_GENERATION: "7"}))),
            ("suspended by a user", ("/metadata.annotations", json!({annotation::WAKE_ON_CONNECT: "true"}))),
            ("suspended by a user since", ("/metadata.generation", json!(8))),
            ("awake", ("/spec.operatingMode", json!("Running"))),
            ("expired", ("/spec.shutdownTime", json!("2027-01-01T00:00:00Z"))),
            ("being deleted", ("/metadata.deletionTimestamp", json!("2026-01-01T00:00:00Z"))),
            (
                "pooled",
                (
                    "/metadata.ownerReferences",
                    json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "p"}]),
                ),
            ),
        ] {
            assert!(!may_be_woken(&sandbox(&[change]), now), "{what}");
        }
    }
}
