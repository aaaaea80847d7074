//! Wakes Sandboxes through the Kubernetes API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_api::{OperatingMode, Sandbox, annotation};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::{Target, Wake};

/// Maximum number of concurrent wake requests to the API.
const QUESTIONS: usize = 16;
/// Maximum duration of one wake request.
const QUESTION_LIMIT: Duration = Duration::from_secs(10);
/// Maximum attempts after conflicts.
const TRIES: usize = 3;

/// Sets `spec.operatingMode` of a Sandbox that was suspended for being idle to `Running`.
pub struct ApiWake {
    client: Client,
    questions: Semaphore,
}

impl ApiWake {
    /// Creates a waker with this client, which needs permission to get and patch Sandboxes.
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
                    "annotations": {
                        annotation::ASLEEP_GENERATION: null,
                        // A Sandbox that still counts as ready would be suspended again at once.
                        annotation::LAST_ACTIVITY: format!("{:.3}", Timestamp::now()),
                    },
                },
                "spec": {"operatingMode": "Running"},
            });
            match api.patch(&target.id, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => return Ok(true),
                // A conflict: the Sandbox may be awake by now.
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

/// Returns true if a connection may wake the Sandbox: its annotation allows it, and it was suspended for
/// being idle with an unchanged spec since. A Sandbox that a user suspended stays suspended, and so does an
/// expired one.
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
    fn only_idle_suspended_sandboxes_are_woken() {
        let now = Duration::from_secs(1_800_000_000);
        assert!(may_be_woken(&sandbox(&[]), now));
        assert!(may_be_woken(&sandbox(&[("/spec.shutdownTime", json!("2027-02-01T00:00:00Z"))]), now));
        let of_template =
            ("/spec/podTemplate.metadata", json!({"annotations": {annotation::WAKE_ON_CONNECT: "true"}}));
        let own = |own: Value| ("/metadata.annotations", own);
        let slept = own(json!({annotation::ASLEEP_GENERATION: "7"}));
        assert!(may_be_woken(&sandbox(&[slept, of_template.clone()]), now));
        let refuses = own(json!({annotation::ASLEEP_GENERATION: "7", annotation::WAKE_ON_CONNECT: ""}));
        assert!(!may_be_woken(&sandbox(&[refuses, of_template]), now), "its own annotation takes precedence");
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
