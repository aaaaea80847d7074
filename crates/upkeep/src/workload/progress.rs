//! Progress of the rollout of a Deployment, as its condition `Progressing` has it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::deployment::condition;

const PROGRESSING: &str = "Progressing";
const COMPLETE: &str = "NewReplicaSetAvailable";
/// A deadline that stands for none, as in Kubernetes.
const NO_DEADLINE: i32 = i32::MAX;

/// Pods of a Deployment.
#[derive(Clone, Copy)]
pub(super) struct Counts {
    pub(super) all: i32,
    pub(super) updated: i32,
    pub(super) ready: i32,
    pub(super) available: i32,
}

impl Counts {
    fn of(deployment: &Deployment) -> Counts {
        let status = deployment.status.clone().unwrap_or_default();
        let number = |count: Option<i32>| count.unwrap_or(0);
        Counts {
            all: number(status.replicas),
            updated: number(status.updated_replicas),
            ready: number(status.ready_replicas),
            available: number(status.available_replicas),
        }
    }

    fn is_further_than(self, before: Counts) -> bool {
        self.updated > before.updated
            || self.all.saturating_sub(self.updated) < before.all.saturating_sub(before.updated)
            || self.ready > before.ready
            || self.available > before.available
    }
}

/// Returns the condition of a Deployment whose new ReplicaSet has this name, and the time until its deadline if that can pass.
pub(super) fn progress(
    deployment: &Deployment,
    set: &str,
    (counts, complete): (Counts, bool),
    now: Timestamp,
) -> (DeploymentCondition, Option<Duration>) {
    let conditions =
        deployment.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let made = |status, reason, message| condition(&conditions, PROGRESSING, status, reason, message, now);
    let spec = deployment.spec.as_ref();
    if spec.is_some_and(|spec| spec.paused == Some(true)) {
        return (made("Unknown", "DeploymentPaused", "Deployment is paused".to_owned()), None);
    }
    if complete {
        let message = format!("ReplicaSet \"{set}\" has successfully progressed.");
        return (made("True", COMPLETE, message), None);
    }
    let old = conditions.iter().find(|condition| condition.type_ == PROGRESSING);
    let about_set = |old: &&DeploymentCondition| {
        old.message.as_ref().is_some_and(|message| message.contains(&format!("\"{set}\"")))
    };
    let was_complete = old.is_some_and(|old| old.reason.as_deref() == Some(COMPLETE));
    let old = old
        .filter(about_set)
        .filter(|_| !counts.is_further_than(Counts::of(deployment)))
        .filter(|_| !was_complete || counts.all == counts.updated);
    let deadline = spec.and_then(|spec| spec.progress_deadline_seconds).filter(|most| *most != NO_DEADLINE);
    let deadline = deadline.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    let Some(old) = old else {
        let mut begun = made("True", "ReplicaSetUpdated", format!("ReplicaSet \"{set}\" is progressing."));
        begun.last_update_time = Some(Time(now));
        return (begun, deadline);
    };
    let (Some(deadline), Some(since), false) = (deadline, &old.last_update_time, was_complete) else {
        return (old.clone(), None);
    };
    let passed = Duration::try_from(now.duration_since(since.0)).unwrap_or_default();
    match deadline.checked_sub(passed).filter(|left| !left.is_zero()) {
        _ if old.status == "False" => (old.clone(), None),
        Some(left) => (old.clone(), Some(left)),
        None => {
            let message = format!("ReplicaSet \"{set}\" has timed out progressing.");
            (made("False", "ProgressDeadlineExceeded", message), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NEW: Counts = Counts { all: 2, updated: 1, ready: 1, available: 1 };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    /// A Deployment with this condition, and with the Pods [`NEW`].
    fn with(condition: Option<DeploymentCondition>) -> Deployment {
        let mut deployment: Deployment = serde_json::from_value(json!({
            "spec": {"selector": {}, "template": {}, "progressDeadlineSeconds": 10},
            "status": {"replicas": 2, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1},
        }))
        .unwrap();
        deployment.status.as_mut().unwrap().conditions = Some(condition.into_iter().collect());
        deployment
    }

    fn reason(condition: &DeploymentCondition) -> (&str, &str) {
        (&condition.status, condition.reason.as_deref().unwrap())
    }

    #[test]
    fn rollout_without_progress_exceeds_its_deadline_until_it_progresses() {
        let (begun, left) = progress(&with(None), "a", (NEW, false), at(0));
        assert_eq!((reason(&begun), left), (("True", "ReplicaSetUpdated"), Some(Duration::from_secs(10))));
        let (same, left) = progress(&with(Some(begun.clone())), "a", (NEW, false), at(4));
        assert_eq!((&same, left), (&begun, Some(Duration::from_secs(6))));
        let (late, left) = progress(&with(Some(begun.clone())), "a", (NEW, false), at(10));
        assert_eq!((reason(&late), left), (("False", "ProgressDeadlineExceeded"), None));
        assert_eq!(progress(&with(Some(late.clone())), "a", (NEW, false), at(99)), (late.clone(), None));
        let further = Counts { ready: 2, ..NEW };
        let (again, left) = progress(&with(Some(late)), "a", (further, false), at(99));
        assert_eq!((reason(&again), left), (("True", "ReplicaSetUpdated"), Some(Duration::from_secs(10))));
        assert_eq!(again.last_update_time, Some(Time(at(99))));
        // Another template begins anew.
        let (other, _) = progress(&with(Some(begun)), "b", (NEW, false), at(99));
        assert_eq!(reason(&other), ("True", "ReplicaSetUpdated"));
    }

    #[test]
    fn finished_rollout_stays_so_and_a_paused_one_has_no_deadline() {
        let all = Counts { all: 2, updated: 2, ready: 1, available: 1 };
        let (done, _) = progress(&with(None), "a", (all, true), at(0));
        let mut deployment = with(Some(done.clone()));
        let status = deployment.status.as_mut().unwrap();
        (status.updated_replicas, status.ready_replicas) = (Some(2), Some(2));
        assert_eq!(progress(&deployment, "a", (all, false), at(99)), (done, None), "a Pod that fails later");
        deployment.spec.as_mut().unwrap().paused = Some(true);
        let (paused, left) = progress(&deployment, "a", (all, false), at(99));
        assert_eq!((reason(&paused), left), (("Unknown", "DeploymentPaused"), None));
        let mut resumed = with(Some(paused));
        resumed.spec.as_mut().unwrap().progress_deadline_seconds = Some(NO_DEADLINE);
        let (resumed, left) = progress(&resumed, "a", (all, false), at(999));
        assert_eq!((reason(&resumed), left), (("True", "ReplicaSetUpdated"), None));
    }
}
