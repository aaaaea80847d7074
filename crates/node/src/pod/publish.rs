//! Telling the API server how a Pod is, in as few writes as it takes.

use std::time::Duration;

use hutch_api::state::restored_from;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::plan::{Phase, Plan};
use super::state::{Life, Role};
use super::status::{Facts, status};
use super::{Slot, Worker};

/// How long the news that a container runs may wait for the news that it is ready.
const EAGER: Duration = Duration::from_millis(150);
/// Wait before a write that failed is tried again.
const REWRITE_AFTER: Duration = Duration::from_millis(500);

impl Worker {
    /// Writes the status unless a container that has just begun is about to be ready: then both go in one write.
    pub(super) async fn publish_when_due(&mut self, plan: &Plan) {
        let about = |slot: &Slot, state: &super::State| {
            slot.running.is_some() && state.role == Role::Main && !state.ready && state.restarts == 0
        };
        let young = self.slots.iter().zip(&self.states).any(|(slot, state)| about(slot, state));
        let first = self.written.as_ref().is_none_or(|old| old.phase.as_deref() != Some("Running"));
        if young && first && plan.phase == Phase::Running {
            let since = *self.eager_until.get_or_insert_with(|| Instant::now() + EAGER);
            if Instant::now() < since {
                return;
            }
        }
        self.publish(plan).await;
        self.eager_until = None;
    }

    /// Writes the status if it has changed.
    pub(super) async fn publish(&mut self, plan: &Plan) {
        if self.rewrite_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let address = self.address.to_string();
        let previous = self.written.as_ref().or(self.pod.status.as_ref()).and_then(|s| s.conditions.clone());
        let facts = Facts {
            pod: &self.pod,
            pod_ip: Some(&address),
            start_time: self.start_time,
            now: Timestamp::now(),
            previous: previous.as_deref().unwrap_or(&[]),
            late_env: self.late_env(),
            enforced: self.live.enforced(),
            isolation: Some(self.choice.isolation(self.spec.runtime_class_name.as_deref())),
            frozen: self.frozen,
            restored: self.restored.as_deref(),
            anew: self.anew.as_deref(),
        };
        let new = status(&self.states, plan, &facts);
        if self.written.as_ref() == Some(&new) {
            return;
        }
        self.rewrite_at = None;
        match write(self, &new).await {
            Ok(()) => {
                if restored_from(new.conditions.as_deref().unwrap_or_default()).is_some() {
                    // From now on, what ends begins anew.
                    self.restoring = None;
                }
                self.written = Some(new);
            }
            // The watch will say that it is gone.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {
                self.written = Some(new)
            }
            Err(error) => {
                tracing::warn!(pod = self.live.id.name, %error, "a Pod's status was not written and is tried again");
                self.rewrite_at = Some(Instant::now() + REWRITE_AFTER);
            }
        }
    }

    /// Returns true if a container of the Pod runs.
    pub(super) fn anything_runs(&self) -> bool {
        self.states.iter().any(|s| matches!(s.life, Life::Running { .. } | Life::Starting))
    }
}

async fn write(worker: &Worker, status: &PodStatus) -> Result<(), kube::Error> {
    let id = &worker.live.id;
    let api: Api<Pod> = Api::namespaced(worker.node.client.clone(), &id.namespace);
    // The uid makes the write fail for a namesake.
    let change = json!({"metadata": {"uid": id.uid}, "status": status});
    api.patch_status(&id.name, &PatchParams::default(), &Patch::Merge(change)).await.map(drop)
}
