//! StatefulSets: Pods with numbers, each with its own volumes.

use std::collections::BTreeMap;
use std::sync::Arc;

use hutch_api::Read;
use hutch_reconcile::controller::Controller;
use hutch_reconcile::key::Key;
use hutch_reconcile::outcome::Outcome;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::template::fingerprint;
use super::{delete_pods, drive, ownership, pod, template};
use crate::Error;
use crate::error::{existing_is_fine, gone_is_fine};
use crate::reader::Reader;

const REVISION_LABEL: &str = "controller-revision-hash";
const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// Reconciles StatefulSets until dropped.
pub(crate) async fn run(reader: Arc<Reader>) -> Result<(), Error> {
    let sets: Api<Read<StatefulSet>> = Api::all(reader.client().clone());
    let pods: Api<Read<Pod>> = Api::all(reader.client().clone());
    drive(Controller::new(sets).owns(pods, watcher::Config::default()), reconcile, reader).await
}

/// Actions for a StatefulSet.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    create: Vec<i32>,
    delete: Vec<(String, Option<String>)>,
    status: StatefulSetStatus,
    /// Seconds until a ready Pod counts as available.
    look_again: Option<u64>,
}

fn revision(set: &StatefulSet) -> String {
    let template = set.spec.clone().unwrap_or_default().template;
    format!("{}-{}", set.name_any(), fingerprint(&template, 0))
}

fn plan(set: &StatefulSet, pods: &[Pod], now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let first = spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0);
    let wanted = spec.replicas.unwrap_or(1).max(0);
    let update = revision(set);
    let by_number: BTreeMap<i32, &Pod> =
        pods.iter().filter_map(|pod| Some((number(set, pod)?, pod))).collect();
    let (status, look_again) = status(set, &by_number, &update, now);
    let mut plan = Plan { status, look_again, ..Plan::default() };
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let last = first.saturating_add(wanted);
    let parallel = spec.pod_management_policy.as_deref() == Some("Parallel");
    let target = |pod: &Pod| (pod.name_any(), pod.uid());
    for number in first..last {
        match by_number.get(&number) {
            None => plan.create.push(number),
            Some(pod) if pod::has_ended(pod) && !pod::is_deleting(pod) => plan.delete.push(target(pod)),
            Some(pod) if pod::is_active(pod) && pod::is_ready(pod) => continue,
            Some(_) => {}
        }
        if !parallel {
            // Each waits for the one before it.
            return plan;
        }
    }
    let surplus = by_number.iter().rev().filter(|(number, _)| !(first..last).contains(*number));
    for (_, pod) in surplus {
        if !pod::is_deleting(pod) {
            plan.delete.push(target(pod));
        }
        if !parallel {
            return plan;
        }
    }
    let strategy = spec.update_strategy.unwrap_or_default();
    if strategy.type_.as_deref() != Some("OnDelete") {
        let partition = strategy.rolling_update.and_then(|rolling| rolling.partition).unwrap_or(0);
        plan.delete
            .extend(next_update(&by_number, first.saturating_add(partition)..last, &update).map(target));
    }
    plan
}

/// The Pod to replace next: the highest of an earlier template, when all above it are ready.
fn next_update<'a>(
    pods: &BTreeMap<i32, &'a Pod>,
    range: std::ops::Range<i32>,
    update: &str,
) -> Option<&'a Pod> {
    for number in range.rev() {
        let pod = *pods.get(&number)?;
        if pod::is_deleting(pod) {
            return None;
        }
        if pod.labels().get(REVISION_LABEL).is_none_or(|label| label != update) {
            return Some(pod);
        }
        if !pod::is_ready(pod) {
            return None;
        }
    }
    None
}

fn status(
    set: &StatefulSet,
    pods: &BTreeMap<i32, &Pod>,
    update: &str,
    now: Timestamp,
) -> (StatefulSetStatus, Option<u64>) {
    let spec = set.spec.as_ref();
    let min_ready = spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let wanted = spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let active: Vec<&&Pod> = pods.values().filter(|pod| pod::is_active(pod)).collect();
    let waits: Vec<_> = active.iter().filter_map(|pod| pod::until_available(pod, min_ready, now)).collect();
    let updated = |pod: &&&&Pod| pod.labels().get(REVISION_LABEL).is_some_and(|label| label == update);
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let (there, updated) = (count(active.len()), count(active.iter().filter(updated).count()));
    let before = set.status.as_ref().and_then(|status| status.current_revision.clone());
    // The update is over when all Pods are there, ready and of the new template.
    let over = updated == wanted && there == wanted && count(waits.len()) == wanted;
    let current = before.filter(|_| !over).unwrap_or_else(|| update.to_owned());
    let of_current = if current == update { updated } else { there - updated };
    let status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: there,
        ready_replicas: Some(count(waits.len())),
        available_replicas: Some(count(waits.iter().filter(|wait| wait.is_zero()).count())),
        current_replicas: Some(of_current),
        updated_replicas: Some(updated),
        current_revision: Some(current),
        update_revision: Some(update.to_owned()),
        collision_count: Some(0),
        ..StatefulSetStatus::default()
    };
    let look_again =
        waits.iter().filter(|wait| !wait.is_zero()).map(|wait| wait.as_secs().unsigned_abs() + 1).min();
    (status, look_again)
}

/// The number in a Pod's name, when the rest is the set's name.
fn number(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let name = pod.name_any();
    let digits = name.strip_prefix(&set.name_any())?.strip_prefix('-')?;
    digits.parse().ok().filter(|number: &i32| number.to_string() == digits)
}

async fn reconcile(Key { namespace, name }: Key, reader: Arc<Reader>) -> Result<Outcome, Error> {
    let what = format!("StatefulSet {namespace}/{name}");
    let client = || reader.client().clone();
    let sets: Api<Read<StatefulSet>> = Api::namespaced(client(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client(), &namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client(), &namespace);
    let Some(set) = reader.get(&sets, &name, &what).await? else { return Ok(Outcome::Settled) };
    let selector = ownership::selector(set.spec.as_ref().map(|spec| spec.selector.clone()), &what)?;
    let found: Api<Read<Pod>> = Api::namespaced(client(), &namespace);
    let selected = ListParams::default().labels_from(&selector);
    let owned = reader.owned(&found, &selected, &set, &format!("Pods of {what}")).await?;
    let plan = plan(&set, &owned, Timestamp::now());
    for number in &plan.create {
        for claim in volume_claims(&set, &namespace, *number) {
            let answer = claims.create(&PostParams::default(), &claim).await;
            existing_is_fine(answer).map_err(Error::write(format!("volume claim of {what}")))?;
        }
        let pod = numbered_pod(&set, &namespace, *number)?;
        // A conflict may be a Pod of that name that is still ending; the next reconcile shows.
        pods.create(&PostParams::default(), &pod).await.map_err(Error::write(format!("Pod of {what}")))?;
    }
    delete_pods(&pods, &namespace, &plan.delete).await?;
    if set.status.as_ref() != Some(&plan.status) {
        let patch = Patch::Merge(json!({"status": plan.status}));
        let answer = sets.patch_status(&name, &PatchParams::default(), &patch).await;
        gone_is_fine(answer).map_err(Error::write(format!("status of {what}")))?;
    }
    let pause = plan.look_again.map(std::time::Duration::from_secs);
    Ok(pause.map_or(Outcome::Settled, Outcome::Again))
}

fn claim_name(template: &PersistentVolumeClaim, set: &StatefulSet, number: i32) -> String {
    format!("{}-{}-{number}", template.name_any(), set.name_any())
}

/// The claims of one Pod. They outlive it and the set: they have no owner.
fn volume_claims(set: &StatefulSet, namespace: &str, number: i32) -> Vec<PersistentVolumeClaim> {
    let spec = set.spec.clone().unwrap_or_default();
    let labels = spec.selector.match_labels.unwrap_or_default();
    let claim = |template: PersistentVolumeClaim| PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim_name(&template, set, number)),
            namespace: Some(namespace.to_owned()),
            labels: Some(template.labels().clone().into_iter().chain(labels.clone()).collect()),
            annotations: template.metadata.annotations.clone(),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    };
    spec.volume_claim_templates.unwrap_or_default().into_iter().map(claim).collect()
}

fn numbered_pod(set: &StatefulSet, namespace: &str, number: i32) -> Result<Pod, Error> {
    let spec = set.spec.clone().unwrap_or_default();
    let name = format!("{}-{number}", set.name_any());
    let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let mut pod = template::pod(&spec.template, namespace, ownership::controlled_by(set)?, metadata);
    pod.labels_mut().extend([
        (NAME_LABEL.to_owned(), name.clone()),
        (INDEX_LABEL.to_owned(), number.to_string()),
        (REVISION_LABEL.to_owned(), revision(set)),
    ]);
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(name);
    pod_spec.subdomain = spec.service_name;
    let volumes = pod_spec.volumes.get_or_insert_default();
    for template in spec.volume_claim_templates.unwrap_or_default() {
        let claim_name = claim_name(&template, set, number);
        let source = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
        // The set's claim takes the place of a volume of that name in the template.
        volumes.retain(|volume| volume.name != template.name_any());
        volumes.push(Volume {
            name: template.name_any(),
            persistent_volume_claim: Some(source),
            ..Volume::default()
        });
    }
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(replicas: i32, policy: &str) -> StatefulSet {
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

    fn pod(set: &StatefulSet, number: i32, ready: bool) -> Pod {
        let mut pod = numbered_pod(set, "n", number).unwrap();
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
        let created = |set: &StatefulSet, pods: &[Pod]| plan(set, pods, Timestamp::UNIX_EPOCH).create;
        assert_eq!(created(&ordered, &[]), [0]);
        assert!(created(&ordered, &[pod(&ordered, 0, false)]).is_empty());
        assert_eq!(created(&ordered, &[pod(&ordered, 0, true)]), [1]);
        assert_eq!(created(&ordered, &[pod(&ordered, 0, true), pod(&ordered, 2, true)]), [1]);
        assert_eq!(created(&set(3, "Parallel"), &[]), [0, 1, 2]);
    }

    #[test]
    fn surplus_goes_from_the_top() {
        let one = set(1, "OrderedReady");
        let pods: Vec<Pod> = (0..3).map(|n| pod(&one, n, true)).collect();
        assert_eq!(names(&plan(&one, &pods, Timestamp::UNIX_EPOCH)), ["s-2"]);
        let none = set(0, "Parallel");
        assert_eq!(names(&plan(&none, &pods, Timestamp::UNIX_EPOCH)), ["s-2", "s-1", "s-0"]);
    }

    #[test]
    fn a_new_template_replaces_the_highest_first_and_waits_for_it() {
        let before = set(2, "OrderedReady");
        let mut after = before.clone();
        after.spec.as_mut().unwrap().min_ready_seconds = Some(0);
        let template = &mut after.spec.as_mut().unwrap().template;
        template.metadata.as_mut().unwrap().labels.as_mut().unwrap().insert("a".into(), "c".into());
        let now = Timestamp::UNIX_EPOCH;
        let old = [pod(&before, 0, true), pod(&before, 1, true)];
        assert_eq!(names(&plan(&after, &old, now)), ["s-1"]);
        let half = [pod(&before, 0, true), pod(&after, 1, false)];
        assert!(plan(&after, &half, now).delete.is_empty());
        let half = [pod(&before, 0, true), pod(&after, 1, true)];
        assert_eq!(names(&plan(&after, &half, now)), ["s-0"]);
        let done = plan(&after, &[pod(&after, 0, true), pod(&after, 1, true)], now);
        assert_eq!((done.delete.len(), done.status.updated_replicas), (0, Some(2)));
        assert_eq!(done.status.current_revision, done.status.update_revision);
    }

    #[test]
    fn an_ended_pod_makes_room_for_its_successor() {
        let one = set(1, "OrderedReady");
        let mut ended = pod(&one, 0, false);
        ended.status.as_mut().unwrap().phase = Some("Failed".into());
        assert_eq!(names(&plan(&one, &[ended], Timestamp::UNIX_EPOCH)), ["s-0"]);
    }

    #[test]
    fn a_pod_knows_its_number_and_its_volumes() {
        let one = set(1, "OrderedReady");
        let pod = numbered_pod(&one, "n", 0).unwrap();
        assert_eq!(number(&one, &pod), Some(0));
        let spec = pod.spec.unwrap();
        assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("s-0"), Some("svc")));
        let claim = spec.volumes.unwrap()[0].persistent_volume_claim.clone().unwrap();
        assert_eq!(claim.claim_name, "data-s-0");
        assert_eq!(volume_claims(&one, "n", 0)[0].name_any(), "data-s-0");
    }
}
