//! ReplicaSets and ReplicationControllers: as many Pods of one template as wanted.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::try_join_all;
use hutch_api::Read;
use hutch_reconcile::controller::Controller;
use hutch_reconcile::key::Key;
use hutch_reconcile::outcome::Outcome;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Selector;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::claim::Claimant;
use super::family::{Family, Selecting};
use super::{delete_pods, drive, ownership, pod, template};
use crate::Error;
use crate::error::gone_is_fine;
use crate::reader::Reader;

/// Maximum Pods created or deleted in one reconcile; the next one continues.
const BATCH: usize = 50;

/// A kind that keeps a number of Pods. ReplicationControllers have the status of ReplicaSets.
pub(crate) trait Replicated: Selecting + Resource<Scope = NamespaceResourceScope> {
    /// Returns the desired state.
    fn desired(&self) -> Desired;
    /// Returns the status as JSON.
    fn status(&self) -> Value;
}

/// Desired state of a kind that keeps a number of Pods.
#[derive(Debug, Default)]
pub(crate) struct Desired {
    replicas: Option<i32>,
    min_ready_seconds: Option<i32>,
    template: PodTemplateSpec,
}

impl Selecting for ReplicaSet {
    fn selector(&self) -> Option<Selector> {
        ownership::selector(self.spec.as_ref()?.selector.clone())
    }
}

impl Replicated for ReplicaSet {
    fn desired(&self) -> Desired {
        let spec = self.spec.clone().unwrap_or_default();
        let template = spec.template.unwrap_or_default();
        Desired { replicas: spec.replicas, min_ready_seconds: spec.min_ready_seconds, template }
    }

    fn status(&self) -> Value {
        json!(self.status)
    }
}

impl Selecting for ReplicationController {
    fn selector(&self) -> Option<Selector> {
        let labels = self.spec.as_ref()?.selector.clone().filter(|labels| !labels.is_empty())?;
        Some(labels.into_iter().collect())
    }
}

impl Replicated for ReplicationController {
    fn desired(&self) -> Desired {
        let spec = self.spec.clone().unwrap_or_default();
        let template = spec.template.unwrap_or_default();
        Desired { replicas: spec.replicas, min_ready_seconds: spec.min_ready_seconds, template }
    }

    fn status(&self) -> Value {
        json!(self.status)
    }
}

struct Context<K> {
    reader: Arc<Reader>,
    family: Arc<Family<K>>,
}

/// Reconciles ReplicaSets or ReplicationControllers until dropped.
pub(crate) async fn run<K: Replicated>(reader: Arc<Reader>) -> Result<(), Error> {
    let sets: Api<Read<K>> = Api::all(reader.client().clone());
    let pods: Api<Read<Pod>> = Api::all(reader.client().clone());
    let controller = Controller::new(sets);
    let family = Family::new(controller.objects());
    let context = Arc::new(Context { reader, family: family.clone() });
    let controller = controller.watches(pods, watcher::Config::default(), move |pod| family.of(pod));
    drive(controller, reconcile::<K>, context).await
}

/// Actions for a ReplicaSet.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    create: usize,
    delete: Vec<(String, Option<String>)>,
    status: ReplicaSetStatus,
    /// Seconds until a ready Pod counts as available.
    look_again: Option<u64>,
}

fn plan<K: Replicated>(set: &K, mut pods: Vec<Pod>, now: Timestamp) -> Plan {
    let Desired { replicas, min_ready_seconds, template } = set.desired();
    let wanted = usize::try_from(replicas.unwrap_or(1)).unwrap_or(0);
    pods.retain(pod::is_active);
    let min_ready = min_ready_seconds.unwrap_or(0);
    let waits: Vec<_> = pods.iter().filter_map(|pod| pod::until_available(pod, min_ready, now)).collect();
    let labels = template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default();
    let labelled = |pod: &&Pod| labels.iter().all(|(name, value)| pod.labels().get(name) == Some(value));
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let status = ReplicaSetStatus {
        replicas: count(pods.len()),
        fully_labeled_replicas: Some(count(pods.iter().filter(labelled).count())),
        ready_replicas: Some(count(waits.len())),
        available_replicas: Some(count(waits.iter().filter(|wait| wait.is_zero()).count())),
        observed_generation: set.meta().generation,
        ..ReplicaSetStatus::default()
    };
    let look_again =
        waits.iter().filter(|wait| !wait.is_zero()).map(|wait| wait.as_secs().unsigned_abs() + 1).min();
    let mut plan = Plan { status, look_again, ..Plan::default() };
    if set.meta().deletion_timestamp.is_some() {
        return plan;
    }
    plan.create = wanted.saturating_sub(pods.len()).min(BATCH);
    // Those that are of least use go first: not ready, then young.
    pods.sort_by_key(|pod| {
        (pod::is_ready(pod), std::cmp::Reverse(pod.creation_timestamp().map(|time| time.0)))
    });
    let surplus = pods.len().saturating_sub(wanted).min(BATCH);
    plan.delete = pods[..surplus].iter().map(|pod| (pod.name_any(), pod.uid())).collect();
    plan
}

async fn reconcile<K: Replicated>(key: Key, context: Arc<Context<K>>) -> Result<Outcome, Error> {
    let (Context { reader, .. }, Key { namespace, name }) = (&*context, &key);
    let what = format!("{} {namespace}/{name}", K::kind(&()));
    let sets: Api<Read<K>> = Api::namespaced(reader.client().clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(reader.client().clone(), namespace);
    let Some(set) = reader.get(&sets, name, &what).await? else { return Ok(Outcome::Settled) };
    let owned = owned_pods(&context, &key, &sets, &set).await?;
    let plan = plan(&set, owned, Timestamp::now());

    let template = set.desired().template;
    let owner = ownership::controlled_by(&set)?;
    let creations = (0..plan.create).map(|_| {
        let generated = ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() };
        let pod = template::pod(&template, namespace, owner.clone(), generated);
        let pods = pods.clone();
        async move { pods.create(&PostParams::default(), &pod).await }
    });
    try_join_all(creations).await.map_err(Error::write(format!("a Pod of {what}")))?;
    delete_pods(&pods, namespace, &plan.delete).await?;
    if set.status() != json!(plan.status) {
        let patch = Patch::Merge(json!({"status": plan.status}));
        let answer = sets.patch_status(name, &PatchParams::default(), &patch).await;
        gone_is_fine(answer).map_err(Error::write(format!("status of {what}")))?;
    }
    let pause = plan.look_again.map(std::time::Duration::from_secs);
    Ok(pause.map_or(Outcome::Settled, Outcome::Again))
}

/// The Pods of a set after adoption and release. Those that have ended are neither adopted nor released.
async fn owned_pods<K: Replicated>(
    context: &Context<K>,
    key: &Key,
    sets: &Api<Read<K>>,
    set: &K,
) -> Result<Vec<Pod>, Error> {
    let what = format!("Pods of {} {}", K::kind(&()), key.name);
    let selector = ownership::usable(set.selector(), &what)?;
    let claimant = Claimant { reader: &context.reader, owner: set, owners: sets, what: &what };
    let is_candidate = |pod: &Read<Pod>| match pod {
        Read::Object(pod) => !pod::has_ended(pod),
        Read::Unreadable(_) => true,
    };
    claimant.pods(&context.family, key, &selector, is_candidate, |_| true).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(replicas: i32, min_ready_seconds: i32) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "generation": 4},
            "spec": {"replicas": replicas, "minReadySeconds": min_ready_seconds, "selector": {}},
        }))
        .unwrap()
    }

    fn pod(name: &str, phase: &str, ready: bool, age: &str) -> Pod {
        let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" },
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": age},
            "status": {"phase": phase, "conditions": [condition]},
        }))
        .unwrap()
    }

    const OLD: &str = "2026-01-01T00:00:00Z";
    const YOUNG: &str = "2026-01-01T00:01:00Z";

    fn at(seconds: i64) -> Timestamp {
        OLD.parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(seconds)
    }

    #[test]
    fn missing_pods_are_created_and_ended_ones_replaced() {
        let pods = vec![pod("a", "Running", true, OLD), pod("b", "Failed", false, OLD)];
        let plan = plan(&set(3, 0), pods, at(0));
        assert_eq!((plan.create, plan.delete.len()), (2, 0));
        assert_eq!((plan.status.replicas, plan.status.ready_replicas), (1, Some(1)));
        assert_eq!(plan.status.observed_generation, Some(4));
    }

    #[test]
    fn surplus_goes_by_use() {
        let pods = vec![
            pod("old", "Running", true, OLD),
            pod("young", "Running", true, YOUNG),
            pod("unready", "Running", false, OLD),
        ];
        let names = |plan: Plan| plan.delete.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(plan(&set(1, 0), pods.clone(), at(0))), ["unready", "young"]);
        assert_eq!(names(plan(&set(0, 0), pods, at(0))).len(), 3);
    }

    #[test]
    fn a_ready_pod_is_available_after_its_time() {
        let pods = || vec![pod("a", "Running", true, OLD)];
        let early = plan(&set(1, 10), pods(), at(4));
        assert_eq!((early.status.available_replicas, early.look_again), (Some(0), Some(7)));
        let late = plan(&set(1, 10), pods(), at(10));
        assert_eq!((late.status.available_replicas, late.look_again), (Some(1), None));
    }

    #[test]
    fn a_set_that_is_being_deleted_makes_nothing() {
        let mut set = set(3, 0);
        set.metadata.deletion_timestamp = serde_json::from_value(json!(OLD)).unwrap();
        let plan = plan(&set, vec![], at(0));
        assert_eq!((plan.create, plan.delete.len()), (0, 0));
    }
}
