//! Actions for a StatefulSet: Pods to create and delete, and the status.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::super::pod;
use super::super::share::share;
use super::{History, REVISION_LABEL, Version};

/// Maximum Pods created in one reconcile; the events of these Pods request the next one.
const BATCH: usize = 50;

/// Actions for a StatefulSet.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Numbers and templates of Pods.
    pub(super) create: Vec<(i32, Version)>,
    pub(super) delete: Vec<(String, Option<String>)>,
    pub(super) status: StatefulSetStatus,
    /// Seconds until a ready Pod counts as available.
    pub(super) look_again: Option<u64>,
}

/// The state of a set's Pods.
struct View<'a> {
    pods: BTreeMap<i32, &'a Pod>,
    /// First number, and the one after the last.
    first: i32,
    last: i32,
    min_ready: i32,
    now: Timestamp,
}

impl View<'_> {
    /// Returns whether a Pod runs and has been ready for long enough.
    fn is_available(&self, pod: &Pod) -> bool {
        pod::is_active(pod)
            && pod::until_available(pod, self.min_ready, self.now).is_some_and(|wait| wait.is_zero())
    }
}

fn target(pod: &Pod) -> (String, Option<String>) {
    (pod.name_any(), pod.uid())
}

pub(super) fn plan(set: &StatefulSet, history: &History, pods: &[Pod], now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let first = spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0);
    let view = View {
        pods: pods.iter().filter_map(|pod| Some((number(set, pod)?, pod))).collect(),
        first,
        last: first.saturating_add(spec.replicas.unwrap_or(1).max(0)),
        min_ready: spec.min_ready_seconds.unwrap_or(0),
        now,
    };
    let (status, look_again) = status(set, &view, history);
    let mut plan = Plan { status, look_again, ..Plan::default() };
    let parallel = spec.pod_management_policy.as_deref() == Some("Parallel");
    let strategy = spec.update_strategy.unwrap_or_default();
    let partition = partition(&strategy);
    for number in first..view.last {
        match view.pods.get(&number) {
            None => {
                let is_current = partition.is_some_and(|partition| number < first.saturating_add(partition));
                let version = if is_current { &history.current } else { &history.update };
                plan.create.push((number, version.clone()));
                if plan.create.len() >= BATCH {
                    return plan;
                }
            }
            Some(pod) if pod::has_ended(pod) && !pod::is_deleting(pod) => plan.delete.push(target(pod)),
            Some(pod) if view.is_available(pod) => continue,
            Some(_) => {}
        }
        if !parallel {
            // Each waits for the one before it.
            return plan;
        }
    }
    let is_waiting = shrink(&view, parallel, &mut plan.delete);
    if !is_waiting && let Some(partition) = partition {
        update(&view, &strategy, partition, &history.update.name, &mut plan.delete);
    }
    plan
}

/// First number of a rolling update, counted from the first Pod; `None` if Pods are only replaced when a client deletes them.
fn partition(strategy: &StatefulSetUpdateStrategy) -> Option<i32> {
    if strategy.type_.as_deref() == Some("OnDelete") {
        return None;
    }
    Some(strategy.rolling_update.as_ref().and_then(|rolling| rolling.partition).unwrap_or(0))
}

/// Deletes Pods beyond the wanted number, from the top; in order, each when the one above it is gone and none below it is
/// unavailable. Returns whether the rest has to wait.
fn shrink(view: &View<'_>, parallel: bool, delete: &mut Vec<(String, Option<String>)>) -> bool {
    let surplus: Vec<&Pod> = view
        .pods
        .iter()
        .rev()
        .filter(|(number, _)| !(view.first..view.last).contains(*number))
        .map(|(_, pod)| *pod)
        .collect();
    let lowest_unavailable = surplus.iter().rposition(|pod| !view.is_available(pod));
    for (at, pod) in surplus.iter().enumerate() {
        let waits = !view.is_available(pod) && lowest_unavailable != Some(at);
        if !pod::is_deleting(pod) && (parallel || !waits) {
            delete.push(target(pod));
        }
        if !parallel {
            return true;
        }
    }
    false
}

/// Deletes Pods of an earlier template, the highest first. It halts while as many Pods as allowed are unavailable.
fn update(
    view: &View<'_>,
    strategy: &StatefulSetUpdateStrategy,
    partition: i32,
    update: &str,
    delete: &mut Vec<(String, Option<String>)>,
) {
    let wanted = view.last - view.first;
    let available = view.pods.range(view.first..view.last).filter(|(_, pod)| view.is_available(pod)).count();
    let unavailable = usize::try_from(wanted).unwrap_or(0).saturating_sub(available);
    let allowed = max_unavailable(strategy, wanted).saturating_sub(unavailable);
    let least = view.first.saturating_add(partition.max(0)).min(view.last);
    let earlier = view.pods.range(least..view.last).rev().map(|(_, pod)| pod).filter(|pod| {
        !pod::is_deleting(pod) && pod.labels().get(REVISION_LABEL).is_none_or(|label| label != update)
    });
    delete.extend(earlier.take(allowed).map(|pod| target(pod)));
}

fn max_unavailable(strategy: &StatefulSetUpdateStrategy, replicas: i32) -> usize {
    let value = strategy.rolling_update.as_ref().and_then(|rolling| rolling.max_unavailable.as_ref());
    let number = value.and_then(|value| share(value, replicas, true)).unwrap_or(1);
    usize::try_from(number.max(1)).unwrap_or(1)
}

fn status(set: &StatefulSet, view: &View<'_>, history: &History) -> (StatefulSetStatus, Option<u64>) {
    let wanted = view.last - view.first;
    let active: Vec<&&Pod> = view.pods.values().filter(|pod| pod::is_active(pod)).collect();
    let waits: Vec<_> =
        active.iter().filter_map(|pod| pod::until_available(pod, view.min_ready, view.now)).collect();
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let of = |version: &Version| {
        let has = |pod: &&&&Pod| pod.labels().get(REVISION_LABEL) == Some(&version.name);
        count(active.iter().filter(has).count())
    };
    let (there, updated) = (count(active.len()), of(&history.update));
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.clone()).unwrap_or_default();
    // The update is over when all Pods are there, ready and of the new template.
    let over = partition(&strategy).is_some()
        && updated == wanted
        && there == wanted
        && count(waits.len()) == wanted;
    let current = if over { &history.update } else { &history.current };
    let status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: there,
        ready_replicas: Some(count(waits.len())),
        available_replicas: Some(count(waits.iter().filter(|wait| wait.is_zero()).count())),
        current_replicas: Some(of(current)),
        updated_replicas: Some(updated),
        current_revision: Some(current.name.clone()),
        update_revision: Some(history.update.name.clone()),
        collision_count: Some(history.collisions),
        ..StatefulSetStatus::default()
    };
    let look_again =
        waits.iter().filter(|wait| !wait.is_zero()).map(|wait| wait.as_secs().unsigned_abs() + 1).min();
    (status, look_again)
}

/// The number in a Pod's name, when the rest is the set's name.
pub(super) fn number(set: &StatefulSet, pod: &impl ResourceExt) -> Option<i32> {
    let name = pod.name_any();
    let digits = name.strip_prefix(&set.name_any())?.strip_prefix('-')?;
    digits.parse().ok().filter(|number: &i32| number.to_string() == digits)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{history, numbered_pod};
    use super::*;
    use serde_json::json;

    pub(in super::super) fn set(replicas: i32, policy: &str) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "uid": "u"},
            "spec": {
                "replicas": replicas, "podManagementPolicy": policy, "serviceName": "svc", "selector": {},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
            },
        }))
        .unwrap()
    }

    pub(in super::super) fn version(set: &StatefulSet) -> Version {
        Version { name: history::name(set, 0), template: set.spec.clone().unwrap().template }
    }

    /// The plan for a set that had the template of `before`.
    fn planned(before: &StatefulSet, set: &StatefulSet, pods: &[Pod]) -> Plan {
        plan(set, &History::of(version(before), version(set)), pods, Timestamp::UNIX_EPOCH)
    }

    fn pod(set: &StatefulSet, number: i32, ready: bool) -> Pod {
        let mut pod = numbered_pod(set, &version(set), "n", number).unwrap();
        let status = if ready { "True" } else { "False" };
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": status}]});
        pod.status = serde_json::from_value(status).unwrap();
        pod
    }

    fn names(plan: &Plan) -> Vec<&str> {
        plan.delete.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn pods_come_one_after_the_other_by_default() {
        let ordered = set(3, "OrderedReady");
        let created = |set: &StatefulSet, pods: &[Pod]| {
            planned(set, set, pods).create.into_iter().map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(created(&ordered, &[]), [0]);
        assert!(created(&ordered, &[pod(&ordered, 0, false)]).is_empty());
        assert_eq!(created(&ordered, &[pod(&ordered, 0, true)]), [1]);
        assert_eq!(created(&ordered, &[pod(&ordered, 0, true), pod(&ordered, 2, true)]), [1]);
        assert_eq!(created(&set(3, "Parallel"), &[]), [0, 1, 2]);
    }

    #[test]
    fn a_huge_set_creates_some_pods_at_a_time() {
        let huge = set(i32::MAX, "Parallel");
        assert_eq!(planned(&huge, &huge, &[]).create.len(), BATCH);
        let pods: Vec<Pod> = (0..3).map(|number| pod(&huge, number, true)).collect();
        let mut delete = Vec::new();
        let view = View {
            pods: (0..3).zip(&pods).collect(),
            first: 0,
            last: i32::MAX,
            min_ready: 0,
            now: Timestamp::UNIX_EPOCH,
        };
        update(&view, &StatefulSetUpdateStrategy::default(), 0, "other", &mut delete);
        assert!(delete.is_empty());
    }

    #[test]
    fn any_share_of_unavailable_pods_can_be_counted() {
        let mut set = set(i32::MAX, "Parallel");
        let mut most = |value: serde_json::Value| {
            rolling(&mut set, json!({"maxUnavailable": value}));
            let strategy = set.spec.clone().unwrap().update_strategy.unwrap();
            max_unavailable(&strategy, i32::MAX)
        };
        assert_eq!(most(json!("9223372036854775807%")), 1);
        assert_eq!(most(json!("200%")), i32::MAX as usize);
        assert_eq!(most(json!(i32::MIN)), 1);
    }

    #[test]
    fn surplus_goes_from_the_top() {
        let one = set(1, "OrderedReady");
        let pods: Vec<Pod> = (0..3).map(|n| pod(&one, n, true)).collect();
        assert_eq!(names(&planned(&one, &one, &pods)), ["s-2"]);
        let none = set(0, "Parallel");
        assert_eq!(names(&planned(&none, &none, &pods)), ["s-2", "s-1", "s-0"]);
    }

    /// The same set with another template.
    fn changed(set: &StatefulSet) -> StatefulSet {
        let mut after = set.clone();
        let template = &mut after.spec.as_mut().unwrap().template;
        template.metadata.as_mut().unwrap().labels.as_mut().unwrap().insert("a".into(), "c".into());
        after
    }

    fn rolling(set: &mut StatefulSet, rolling: serde_json::Value) {
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
        set.spec.as_mut().unwrap().update_strategy = serde_json::from_value(strategy).unwrap();
    }

    #[test]
    fn a_new_template_replaces_the_highest_first_and_waits_for_it() {
        let before = set(2, "OrderedReady");
        let after = changed(&before);
        let plan = |pods: &[Pod]| planned(&before, &after, pods);
        assert_eq!(names(&plan(&[pod(&before, 0, true), pod(&before, 1, true)])), ["s-1"]);
        assert!(plan(&[pod(&before, 0, true), pod(&after, 1, false)]).delete.is_empty());
        assert_eq!(names(&plan(&[pod(&before, 0, true), pod(&after, 1, true)])), ["s-0"]);
        let done = plan(&[pod(&after, 0, true), pod(&after, 1, true)]);
        assert_eq!((done.delete.len(), done.status.updated_replicas), (0, Some(2)));
        assert_eq!(done.status.current_revision, done.status.update_revision);
    }

    #[test]
    fn pod_below_the_partition_is_created_with_the_current_template() {
        let before = set(3, "Parallel");
        let mut after = changed(&before);
        rolling(&mut after, json!({"partition": 2}));
        let created = planned(&before, &after, &[pod(&before, 1, true)]).create;
        assert_eq!(created, [(0, version(&before)), (2, version(&after))]);
        // What is below the partition is not replaced, and the update does not end.
        let pods = [pod(&before, 0, true), pod(&before, 1, true), pod(&after, 2, true)];
        let half = planned(&before, &after, &pods);
        assert!(half.delete.is_empty());
        assert_eq!((half.status.current_replicas, half.status.updated_replicas), (Some(2), Some(1)));
        assert_eq!(half.status.current_revision, Some(version(&before).name));
        assert_eq!(half.status.update_revision, Some(version(&after).name));
    }

    #[test]
    fn a_rolling_update_halts_on_any_unavailable_pod() {
        for policy in ["Parallel", "OrderedReady"] {
            let before = set(3, policy);
            let after = changed(&before);
            let unready = [pod(&before, 0, false), pod(&before, 1, true), pod(&before, 2, true)];
            assert!(planned(&before, &after, &unready).delete.is_empty(), "{policy}");
            let mut patient = after.clone();
            patient.spec.as_mut().unwrap().min_ready_seconds = Some(10);
            let young = [pod(&before, 0, true), pod(&before, 1, true), pod(&after, 2, true)];
            assert!(planned(&before, &patient, &young).delete.is_empty(), "{policy}");
        }
        let before = set(3, "Parallel");
        let mut after = changed(&before);
        rolling(&mut after, json!({"maxUnavailable": 2}));
        let pods = [pod(&before, 0, true), pod(&before, 1, true), pod(&before, 2, true)];
        assert_eq!(names(&planned(&before, &after, &pods)), ["s-2", "s-1"]);
        let pods = [pod(&before, 0, true), pod(&before, 1, true), pod(&after, 2, false)];
        assert_eq!(names(&planned(&before, &after, &pods)), ["s-1"]);
    }

    #[test]
    fn a_set_in_order_shrinks_no_further_than_an_unavailable_pod() {
        let one = set(1, "OrderedReady");
        let of = |ready: [bool; 3]| -> Vec<Pod> {
            ready.into_iter().zip(0..).map(|(ready, n)| pod(&one, n, ready)).collect()
        };
        assert_eq!(names(&planned(&one, &one, &of([true, true, false]))), ["s-2"]);
        assert!(planned(&one, &one, &of([true, false, false])).delete.is_empty());
        assert!(planned(&one, &one, &of([false, true, true])).delete.is_empty());
    }

    #[test]
    fn pods_are_replaced_by_their_deletion_only_if_configured() {
        let before = set(1, "OrderedReady");
        let mut after = changed(&before);
        let strategy = json!({"type": "OnDelete"});
        after.spec.as_mut().unwrap().update_strategy = serde_json::from_value(strategy).unwrap();
        assert!(planned(&before, &after, &[pod(&before, 0, true)]).delete.is_empty());
        assert_eq!(planned(&before, &after, &[]).create, [(0, version(&after))]);
    }

    #[test]
    fn an_ended_pod_makes_room_for_its_successor() {
        let one = set(1, "OrderedReady");
        let mut ended = pod(&one, 0, false);
        ended.status.as_mut().unwrap().phase = Some("Failed".into());
        assert_eq!(names(&planned(&one, &one, &[ended])), ["s-0"]);
    }
}
