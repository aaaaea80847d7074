//! PodDisruptionBudgets: how many of their Pods are healthy, and how many may be evicted now.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use hutch_api::{OperatingMode, Read, Sandbox, owner};
use hutch_reconcile::controller::{Controller, Object};
use hutch_reconcile::key::Key;
use hutch_reconcile::outcome::Outcome;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{NamespaceResourceScope, Selector, SelectorExt};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::Error;
use crate::error::gone_is_fine;
use crate::members::Members;
use crate::reader::Reader;
use crate::workload::share::share;
use crate::workload::{drive, pod};

/// Time after which an evicted Pod that still exists counts as healthy again.
const DELETION: SignedDuration = SignedDuration::from_secs(120);
const ALLOWED: &str = "DisruptionAllowed";

/// Reconciles PodDisruptionBudgets until dropped.
pub(crate) async fn run(reader: Arc<Reader>) -> Result<(), Error> {
    let budgets: Api<Read<PodDisruptionBudget>> = Api::all(reader.client().clone());
    let pods: Api<Read<Pod>> = Api::all(reader.client().clone());
    let controller = Controller::new(budgets);
    let members = Members::new(controller.objects(), selects);
    let controller = controller.watches(pods, watcher::Config::default(), move |pod| members.of(pod));
    drive(controller, reconcile, reader).await
}

/// The selector of a budget. An empty one selects all Pods of the namespace, a missing one none.
fn selector(budget: &PodDisruptionBudget) -> Option<Selector> {
    Selector::try_from(budget.spec.as_ref()?.selector.clone()?).ok()
}

fn selects(budget: &PodDisruptionBudget, pod: &Read<Pod>) -> bool {
    budget.namespace() == pod.namespace()
        && selector(budget).is_some_and(|selector| selector.matches(pod.labels()))
}

async fn reconcile(Key { namespace, name }: Key, reader: Arc<Reader>) -> Result<Outcome, Error> {
    let what = format!("PodDisruptionBudget {namespace}/{name}");
    let budgets: Api<Read<PodDisruptionBudget>> = Api::namespaced(reader.client().clone(), &namespace);
    let Some(budget) = reader.get(&budgets, &name, &what).await? else { return Ok(Outcome::Settled) };
    let pods = match selector(&budget) {
        Some(selector) => {
            let pods: Api<Read<Pod>> = Api::namespaced(reader.client().clone(), &namespace);
            let selected = ListParams::default().labels_from(&selector);
            reader.list(&pods, &selected, &format!("Pods of {what}")).await?
        }
        None => Vec::new(),
    };
    let counted = match count(&reader, &namespace, &budget, &pods).await {
        Ok(counted) => counted,
        Err(Uncounted::Read(error)) => return Err(error),
        Err(Uncounted::NoScale(why)) => Counted::Failed(why),
    };
    let now = Timestamp::now();
    let (disrupted, again) = disrupted(&budget, &pods, now);
    let next = status(&budget, &pods, &counted, disrupted, now);
    if budget.status.as_ref() != Some(&next) {
        let patch = patch(&budget, &next);
        let answer = budgets.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        gone_is_fine(answer).map_err(Error::write(format!("status of {what}")))?;
    }
    Ok(again.map_or(Outcome::Settled, Outcome::Again))
}

/// Expected Pods of a budget, and how many of them must be healthy.
#[derive(Debug, PartialEq)]
enum Counted {
    Known {
        expected: i32,
        desired: i32,
    },
    /// Why they are unknown: nothing may be evicted.
    Failed(String),
}

enum Uncounted {
    Read(Error),
    NoScale(String),
}

async fn count(
    reader: &Reader,
    namespace: &str,
    budget: &PodDisruptionBudget,
    pods: &[Pod],
) -> Result<Counted, Uncounted> {
    let spec = budget.spec.clone().unwrap_or_default();
    let needs_scale =
        spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)));
    let expected = if needs_scale {
        scale(reader, namespace, pods).await?
    } else {
        i32::try_from(pods.len()).unwrap_or(i32::MAX)
    };
    Ok(Counted::Known { expected, desired: desired(&spec, expected) })
}

/// Number of Pods that must be healthy.
fn desired(spec: &PodDisruptionBudgetSpec, expected: i32) -> i32 {
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => expected.saturating_sub(share(most, expected, true).unwrap_or(0)).max(0),
        (None, Some(least)) => share(least, expected, true).unwrap_or(expected),
        (None, None) => 0,
    }
}

/// Sum of the replicas that the controllers of the Pods should have.
async fn scale(reader: &Reader, namespace: &str, pods: &[Pod]) -> Result<i32, Uncounted> {
    let mut known: BTreeMap<Kind, Scales> = BTreeMap::new();
    let mut scales: BTreeMap<String, i32> = BTreeMap::new();
    for pod in pods {
        let Some(controller) = owner::controller(pod) else { continue };
        if scales.contains_key(&controller.uid) {
            continue;
        }
        let none = || Uncounted::NoScale(format!("found no controllers for pod {:?}", pod.name_any()));
        let kind = Kind::of(controller).ok_or_else(none)?;
        let all = match known.entry(kind) {
            Entry::Occupied(all) => all.into_mut(),
            Entry::Vacant(unknown) => {
                unknown.insert(kind.scales(reader, namespace).await.map_err(Uncounted::Read)?)
            }
        };
        let (uid, replicas) = all.get(&controller.uid).cloned().ok_or_else(none)?;
        scales.insert(controller.uid.clone(), 0);
        // ReplicaSets of one Deployment count once.
        scales.insert(uid, replicas);
    }
    Ok(scales.values().fold(0, |sum, replicas| sum.saturating_add(*replicas)))
}

/// UID and replicas of all controllers of a kind, or of the Deployments that control them, by UID of the controller.
type Scales = BTreeMap<String, (String, i32)>;

/// Kind of a controller of Pods.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    ReplicaSet,
    StatefulSet,
    ReplicationController,
    Sandbox,
}

impl Kind {
    fn of(owner: &OwnerReference) -> Option<Kind> {
        match (owner.api_version.as_str(), owner.kind.as_str()) {
            ("apps/v1", "ReplicaSet") => Some(Kind::ReplicaSet),
            ("apps/v1", "StatefulSet") => Some(Kind::StatefulSet),
            ("v1", "ReplicationController") => Some(Kind::ReplicationController),
            (version, "Sandbox") if version.split('/').next() == Some(hutch_api::GROUP) => {
                Some(Kind::Sandbox)
            }
            _ => None,
        }
    }

    /// Lists the controllers of this kind in a namespace.
    async fn scales(self, reader: &Reader, namespace: &str) -> Result<Scales, Error> {
        match self {
            Kind::ReplicaSet => {
                let deployments = scales(reader, namespace, |one: &Deployment| {
                    Some(counted(one, one.spec.as_ref().and_then(|s| s.replicas)))
                })
                .await?;
                scales(reader, namespace, |one: &ReplicaSet| {
                    match owner::controller(one).filter(|above| above.kind == "Deployment") {
                        Some(above) => deployments.get(&above.uid).cloned(),
                        None => Some(counted(one, one.spec.as_ref().and_then(|s| s.replicas))),
                    }
                })
                .await
            }
            Kind::StatefulSet => {
                scales(reader, namespace, |one: &StatefulSet| {
                    Some(counted(one, one.spec.as_ref().and_then(|s| s.replicas)))
                })
                .await
            }
            Kind::ReplicationController => {
                scales(reader, namespace, |one: &ReplicationController| {
                    Some(counted(one, one.spec.as_ref().and_then(|s| s.replicas)))
                })
                .await
            }
            Kind::Sandbox => {
                scales(reader, namespace, |one: &Sandbox| {
                    let is_suspended = one.spec.operating_mode == Some(OperatingMode::Suspended);
                    Some(counted(one, Some(i32::from(!is_suspended))))
                })
                .await
            }
        }
    }
}

/// Lists objects of a namespace. Those without a scale count as missing.
async fn scales<K>(
    reader: &Reader,
    namespace: &str,
    scale: impl Fn(&K) -> Option<(String, i32)>,
) -> Result<Scales, Error>
where
    K: Object + Resource<Scope = NamespaceResourceScope>,
{
    let all: Api<Read<K>> = Api::namespaced(reader.client().clone(), namespace);
    let what = format!("{} of namespace {namespace}", K::plural(&()));
    let found = reader.list(&all, &ListParams::default(), &what).await?;
    Ok(found.iter().filter_map(|one| Some((one.uid()?, scale(one)?))).collect())
}

/// UID and replicas of a controller, which are one by default.
fn counted(controller: &impl ResourceExt, replicas: Option<i32>) -> (String, i32) {
    (controller.uid().unwrap_or_default(), replicas.unwrap_or(1))
}

/// Evicted Pods that are not being deleted yet, and when to count again because one of them stays.
fn disrupted(
    budget: &PodDisruptionBudget,
    pods: &[Pod],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Option<std::time::Duration>) {
    let before = budget.status.as_ref().and_then(|status| status.disrupted_pods.clone()).unwrap_or_default();
    let there = |name: &String| pods.iter().any(|pod| pod.name_any() == *name && !pod::is_deleting(pod));
    let end = |time: &Time| time.0.checked_add(DELETION).unwrap_or(Timestamp::MAX);
    let kept: BTreeMap<String, Time> =
        before.into_iter().filter(|(name, time)| there(name) && end(time) >= now).collect();
    let next = kept.values().map(end).min();
    let again = next.map(|next| std::time::Duration::try_from(next.duration_since(now)).unwrap_or_default());
    (kept, again.map(|again| again + std::time::Duration::from_secs(1)))
}

fn status(
    budget: &PodDisruptionBudget,
    pods: &[Pod],
    counted: &Counted,
    disrupted: BTreeMap<String, Time>,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let before = budget.status.clone().unwrap_or_default();
    let generation = budget.metadata.generation;
    let (expected, desired) = match counted {
        Counted::Known { expected, desired } => (*expected, *desired),
        Counted::Failed(why) => {
            let condition = condition(&before, false, "SyncFailed", why, now);
            return PodDisruptionBudgetStatus {
                disruptions_allowed: Some(0),
                conditions: Some(vec![condition]),
                ..before
            };
        }
    };
    let is_healthy =
        |pod: &&Pod| !pod::is_deleting(pod) && !disrupted.contains_key(&pod.name_any()) && pod::is_ready(pod);
    let healthy = i32::try_from(pods.iter().filter(is_healthy).count()).unwrap_or(i32::MAX);
    let allowed = if expected > 0 { healthy.saturating_sub(desired).max(0) } else { 0 };
    let before = PodDisruptionBudgetStatus { observed_generation: generation, ..before };
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    let condition = condition(&before, allowed > 0, reason, "", now);
    PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: generation,
        conditions: Some(vec![condition]),
    }
}

fn condition(
    before: &PodDisruptionBudgetStatus,
    allowed: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Condition {
    let status = if allowed { "True" } else { "False" };
    let old = before.conditions.iter().flatten().find(|one| one.type_ == ALLOWED && one.status == status);
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        type_: ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: before.observed_generation,
        last_transition_time: old.map_or(Time(now), |old| old.last_transition_time.clone()),
    }
}

/// A patch to this status from the state that was read: an eviction may have taken a disruption since.
fn patch(budget: &PodDisruptionBudget, status: &PodDisruptionBudgetStatus) -> Value {
    let mut patch = json!(status);
    let before = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    for name in before.into_iter().flat_map(BTreeMap::keys) {
        if status.disrupted_pods.as_ref().is_none_or(|pods| !pods.contains_key(name)) {
            patch["disruptedPods"][name] = Value::Null;
        }
    }
    json!({"metadata": {"resourceVersion": budget.resource_version()}, "status": patch})
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use kube::Client;
    use kube::api::PostParams;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::reader::tests::reader;

    async fn create<K>(reader: &Reader, object: Value) -> K
    where
        K: Object + Resource<Scope = NamespaceResourceScope> + serde::Serialize + DeserializeOwned,
    {
        let all: Api<K> = Api::default_namespaced(reader.client().clone());
        all.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
    }

    /// Creates a ready Pod with this controller.
    async fn create_pod(
        reader: &Reader,
        name: &str,
        version: &str,
        kind: &str,
        owner: (&str, Option<String>),
    ) {
        let owner =
            json!({"apiVersion": version, "kind": kind, "name": owner.0, "uid": owner.1, "controller": true});
        let pod = json!({"metadata": {"name": name, "labels": {"a": "b"}, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        create::<Pod>(reader, pod).await;
        let pods: Api<Pod> = Api::default_namespaced(reader.client().clone());
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    }

    /// Reconciles the budget `b` and returns its status.
    async fn reconciled(reader: &Arc<Reader>) -> PodDisruptionBudgetStatus {
        let key = Key { namespace: "default".into(), name: "b".into() };
        reconcile(key, reader.clone()).await.unwrap();
        let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(reader.client().clone());
        budgets.get("b").await.unwrap().status.unwrap()
    }

    /// Creates a Sandbox and its ready Pod.
    async fn create_sandbox(reader: &Reader, name: &str, mode: &str) {
        let spec = json!({"operatingMode": mode,
            "podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
        let sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": name}, "spec": spec});
        let sandbox: Sandbox = create(reader, sandbox).await;
        create_pod(reader, name, "agents.x-k8s.io/v1beta1", "Sandbox", (name, sandbox.uid())).await;
    }

    fn most_unavailable(most: impl Into<Value>) -> Value {
        json!({"metadata": {"name": "b"},
            "spec": {"maxUnavailable": most.into(), "selector": {"matchLabels": {"a": "b"}}}})
    }

    #[tokio::test]
    async fn sandbox_counts_as_one_pod_unless_it_is_suspended() {
        let reader = reader().await;
        for (name, mode) in [("x", "Running"), ("y", "Running"), ("z", "Suspended")] {
            create_sandbox(&reader, name, mode).await;
        }
        create::<PodDisruptionBudget>(&reader, most_unavailable("50%")).await;
        let status = reconciled(&reader).await;
        assert_eq!((status.expected_pods, status.desired_healthy), (Some(2), Some(1)));
        assert_eq!(status.conditions.unwrap()[0].reason, "SufficientPods");
    }

    #[tokio::test]
    async fn controllers_are_listed_once_for_all_pods() {
        let reader = reader().await;
        for number in 0..5 {
            create_sandbox(&reader, &format!("s{number}"), "Running").await;
        }
        create::<PodDisruptionBudget>(&reader, most_unavailable(1)).await;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, client) = (requests.clone(), reader.client().clone());
        let counting = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            seen.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
            let client = client.clone();
            async move { client.send(request).await }
        });
        let (recorder, _writer) = hutch_reconcile::record::recorder(reader.client().clone(), "test");
        let counting = Arc::new(Reader::new(Client::new(counting, "default"), recorder));
        assert_eq!(reconciled(&counting).await.expected_pods, Some(5));
        let requests = requests.lock().unwrap();
        let sandboxes: Vec<_> = requests.iter().filter(|request| request.contains("/sandboxes")).collect();
        assert_eq!(sandboxes, ["GET /apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes"]);
    }

    #[tokio::test]
    async fn namesake_of_a_controller_does_not_count() {
        let reader = reader().await;
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"replicas": 3, "serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template});
        let set: StatefulSet = create(&reader, json!({"metadata": {"name": "s"}, "spec": spec})).await;
        create::<PodDisruptionBudget>(&reader, most_unavailable(1)).await;
        create_pod(&reader, "own", "apps/v1", "StatefulSet", ("s", set.uid())).await;
        assert_eq!(reconciled(&reader).await.expected_pods, Some(3));
        create_pod(&reader, "other", "apps/v1", "StatefulSet", ("s", Some("earlier".into()))).await;
        let status = reconciled(&reader).await;
        let condition = &status.conditions.unwrap()[0];
        assert_eq!((status.disruptions_allowed, condition.reason.as_str()), (Some(0), "SyncFailed"));
        assert_eq!(condition.message, "found no controllers for pod \"other\"");
    }

    fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
        let metadata = json!({"name": "b", "generation": 2, "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn pod(name: &str, ready: bool) -> Pod {
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({"metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn desired_pods_follow_the_numbers_and_percentages_of_a_budget() {
        let desired = |spec: Value, expected: i32| desired(&serde_json::from_value(spec).unwrap(), expected);
        assert_eq!(desired(json!({"minAvailable": 2}), 5), 2);
        assert_eq!(desired(json!({"minAvailable": "50%"}), 5), 3);
        assert_eq!(desired(json!({"maxUnavailable": 2}), 5), 3);
        assert_eq!(desired(json!({"maxUnavailable": "30%"}), 5), 3);
        assert_eq!(desired(json!({"maxUnavailable": 9}), 5), 0);
        assert_eq!(desired(json!({}), 5), 0);
        assert_eq!(desired(json!({"maxUnavailable": i32::MIN}), 5), i32::MAX);
        assert_eq!(desired(json!({"minAvailable": "9223372036854775807%"}), 5), 5);
    }

    #[test]
    fn healthy_pods_beyond_the_desired_ones_may_be_evicted() {
        let pods = [pod("a", true), pod("b", true), pod("c", false)];
        let budget =
            budget(json!({"minAvailable": 1}), json!({"disruptedPods": {"gone": "1970-01-01T00:00:00Z"}}));
        let counted = Counted::Known { expected: 3, desired: 1 };
        let (kept, again) = disrupted(&budget, &pods, at(10));
        assert!(kept.is_empty() && again.is_none());
        let found = status(&budget, &pods, &counted, kept, at(10));
        assert_eq!(
            (found.current_healthy, found.disruptions_allowed, found.expected_pods),
            (Some(2), Some(1), Some(3))
        );
        assert_eq!(found.conditions.as_ref().unwrap()[0].reason, "SufficientPods");
        assert_eq!(found.observed_generation, Some(2));
        assert_eq!(patch(&budget, &found)["status"]["disruptedPods"], json!({"gone": null}));
        // Once written, it is not written again.
        let written = PodDisruptionBudget { status: Some(found.clone()), ..budget };
        assert_eq!(status(&written, &pods, &counted, BTreeMap::new(), at(99)), found);
    }

    #[test]
    fn evicted_pod_is_not_healthy_until_it_stays_for_too_long() {
        let pods = [pod("a", true), pod("b", true)];
        let budget =
            budget(json!({"minAvailable": 1}), json!({"disruptedPods": {"a": "1970-01-01T00:00:00Z"}}));
        let counted = Counted::Known { expected: 2, desired: 1 };
        let (kept, again) = disrupted(&budget, &pods, at(20));
        assert_eq!(again, Some(std::time::Duration::from_secs(101)));
        assert_eq!(status(&budget, &pods, &counted, kept, at(20)).disruptions_allowed, Some(0));
        let (kept, again) = disrupted(&budget, &pods, at(121));
        assert!(kept.is_empty() && again.is_none());
    }

    #[test]
    fn nothing_may_be_evicted_while_the_pods_cannot_be_counted() {
        let budget =
            budget(json!({"maxUnavailable": 1}), json!({"disruptionsAllowed": 3, "currentHealthy": 3}));
        let failed = Counted::Failed("found no controllers for pod \"a\"".into());
        let found = status(&budget, &[], &failed, BTreeMap::new(), at(0));
        assert_eq!((found.disruptions_allowed, found.current_healthy), (Some(0), Some(3)));
        assert_eq!(found.conditions.unwrap()[0].reason, "SyncFailed");
    }
}
