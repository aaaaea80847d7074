//! The end of a Pod that used too much of the disk: nothing of it stays but its object, which says why.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use rustix::process::Signal;
use serde_json::json;

use super::plan::{Phase, RestartPolicy, plan};
use super::prepare::restored_from;
use super::state::{Ended, Life, State};
use super::status::{Facts, status};
use super::{Outcome, Worker, prepare, wait_for_end};
use crate::container::KILLED;
use crate::live::Live;
use crate::shared::Shared;

const REASON: &str = "Evicted";
/// Wait before a write that failed is tried again.
const WRITE_RETRY: Duration = Duration::from_millis(500);

impl Worker {
    /// The status of the Pod when its containers are killed.
    pub(super) fn evicted_status(&mut self, message: &str) -> PodStatus {
        let (pod_ip, now) = (self.address.to_string(), Timestamp::now());
        let previous = self.written.as_ref().or(self.pod.status.as_ref()).and_then(|s| s.conditions.clone());
        let facts = Facts {
            pod_ip: Some(&pod_ip),
            previous: previous.as_deref().unwrap_or(&[]),
            restored: self.restored.as_deref(),
            anew: self.anew.as_deref(),
            ..Facts::of(&self.pod, self.start_time, now)
        };
        evicted(&mut self.states, message, &facts)
    }
}

fn evicted(states: &mut [State], message: &str, facts: &Facts<'_>) -> PodStatus {
    for state in states.iter_mut() {
        if let Life::Running { since } = state.life {
            let (signal, reason) = (Some(Signal::KILL.as_raw()), "Error".to_owned());
            let started = Some(since);
            state.end(Ended { code: KILLED, signal, reason, message: None, started, at: facts.now });
        }
    }
    let mut plan = plan(states, RestartPolicy::Never, facts.now);
    plan.phase = Phase::Failed;
    let mut status = status(states, &plan, facts);
    status.reason = Some(REASON.into());
    status.message = Some(message.to_owned());
    status.conditions.get_or_insert_default().push(PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some("TerminationByKubelet".into()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(Timestamp::from_second(facts.now.as_second()).unwrap_or(facts.now))),
        ..PodCondition::default()
    });
    status
}

/// Removes the folders of a Pod whose containers have ended, writes its status, and waits until it is deleted.
pub(super) async fn evict(node: &Arc<Shared>, live: &Arc<Live>, status: &PodStatus) -> Outcome {
    let message = status.message.clone().unwrap_or_default();
    tracing::warn!(pod = live.id.name, namespace = live.id.namespace, message, "evicted a pod");
    node.events.warning(&live.pod(), REASON, message);
    live.clear();
    node.capacity.release(&live.id.uid);
    node.remove_folders(&live.uid).await;
    let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(node.client.clone(), &live.id.namespace);
    let change = json!({"metadata": {"uid": live.id.uid}, "status": status});
    loop {
        match api.patch_status(&live.id.name, &PatchParams::default(), &Patch::Merge(&change)).await {
            Ok(_) => break,
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => break,
            Err(error) => {
                tracing::debug!(pod = live.id.name, %error, "failed to write the status of an evicted pod")
            }
        }
        tokio::select! {
            () = node.shutdown.wait() => return Outcome::Stopping,
            () = tokio::time::sleep(WRITE_RETRY) => {}
        }
    }
    live.eviction_done();
    wait_for_end(node, live, &mut live.updates.subscribe()).await
}

/// The same for a Pod none of whose containers has started.
pub(super) async fn evict_waiting(node: &Arc<Shared>, live: &Arc<Live>, message: String) -> Outcome {
    let pod = live.pod();
    let mut states = prepare::states(&pod.spec.clone().unwrap_or_default()).1;
    let now = Timestamp::now();
    let start_time = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    let restored = restored_from(&pod);
    let facts = Facts { restored: restored.as_deref(), ..Facts::of(&pod, start_time.unwrap_or(now), now) };
    let status = evicted(&mut states, &message, &facts);
    evict(node, live, &status).await
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::super::state::Role;
    use super::*;

    #[test]
    fn status_of_an_evicted_pod_is_failed_and_says_why() {
        let now = Timestamp::from_second(9).unwrap();
        let mut states =
            vec![State::new("c", Role::Main, "hutch/host"), State::new("d", Role::Main, "hutch/host")];
        states[0].run(Timestamp::from_second(2).unwrap());
        let pod = Pod::default();
        let facts = Facts::of(&pod, now, now);
        let status = evicted(&mut states, "too much", &facts);
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(
            (status.reason.as_deref(), status.message.as_deref()),
            (Some("Evicted"), Some("too much"))
        );
        let containers = status.container_statuses.unwrap();
        let ended = containers[0].state.as_ref().and_then(|state| state.terminated.as_ref()).unwrap();
        assert_eq!((ended.exit_code, ended.signal), (137, Some(9)));
        let conditions = status.conditions.unwrap();
        let of = |kind: &str| conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.clone());
        assert_eq!(of("Ready").as_deref(), Some("False"));
        assert_eq!(of("DisruptionTarget").as_deref(), Some("True"));
    }
}
