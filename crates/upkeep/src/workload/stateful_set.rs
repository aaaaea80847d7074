//! StatefulSets: Pods with numbers, each with its own volumes.

mod history;
mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;

use hutch_api::Read;
use hutch_reconcile::controller::Controller;
use hutch_reconcile::key::Key;
use hutch_reconcile::outcome::Outcome;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Selector;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::json;

use self::history::{History, Version};
use self::plan::{number, plan};
use super::claim::Claimant;
use super::family::{Family, Selecting};
use super::{delete_pods, drive, ownership, template};
use crate::Error;
use crate::error::{CONFLICT, existing_is_fine, gone_is_fine};
use crate::reader::Reader;

const REVISION_LABEL: &str = "controller-revision-hash";
const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
/// Reason of the Event about a Pod that could not be created.
const FAILED_CREATE: &str = "FailedCreate";
/// Revisions that are kept by default.
const HISTORY: i32 = 10;

struct Context {
    reader: Arc<Reader>,
    family: Arc<Family<StatefulSet>>,
}

impl Selecting for StatefulSet {
    fn selector(&self) -> Option<Selector> {
        ownership::selector(self.spec.as_ref()?.selector.clone())
    }
}

/// Reconciles StatefulSets until dropped.
pub(crate) async fn run(reader: Arc<Reader>) -> Result<(), Error> {
    let sets: Api<Read<StatefulSet>> = Api::all(reader.client().clone());
    let pods: Api<Read<Pod>> = Api::all(reader.client().clone());
    let controller = Controller::new(sets);
    let family = Family::new(controller.objects());
    let context = Arc::new(Context { reader, family: family.clone() });
    let controller = controller.watches(pods, watcher::Config::default(), move |pod| family.of(pod));
    drive(controller, reconcile, context).await
}

async fn reconcile(key: Key, context: Arc<Context>) -> Result<Outcome, Error> {
    let (reader, Key { namespace, name }) = (&*context.reader, &key);
    let what = format!("StatefulSet {namespace}/{name}");
    let client = || reader.client().clone();
    let sets: Api<Read<StatefulSet>> = Api::namespaced(client(), namespace);
    let Some(set) = reader.get(&sets, name, &what).await? else { return Ok(Outcome::Settled) };
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(Outcome::Settled);
    }
    let selector = ownership::usable(set.selector(), &what)?;
    let members = format!("Pods of {what}");
    let claimant = Claimant { reader, owner: &set, owners: &sets, what: &members };
    let is_member = |pod: &Read<Pod>| number(&set, pod).is_some();
    let owned = claimant.pods(&context.family, &key, &selector, |_| true, is_member).await?;
    let history = history::read(&claimant, namespace, &selector).await?;
    let plan = plan(&set, &history, &owned, Timestamp::now());
    // Also if Pods cannot be created.
    let live: BTreeSet<String> =
        owned.iter().filter_map(|pod| pod.labels().get(REVISION_LABEL).cloned()).collect();
    let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(HISTORY);
    let revisions: Api<ControllerRevision> = Api::namespaced(client(), namespace);
    let limit = usize::try_from(limit).unwrap_or(0);
    let truncated = history.truncate(&revisions, limit, &live, &what).await;
    let created = create_pods(reader, &set, namespace, &plan.create).await?;
    if created {
        let pods: Api<Pod> = Api::namespaced(client(), namespace);
        delete_pods(&pods, namespace, &plan.delete).await?;
    }
    if set.status.as_ref() != Some(&plan.status) {
        let patch = Patch::Merge(json!({"status": plan.status}));
        let answer = sets.patch_status(name, &PatchParams::default(), &patch).await;
        gone_is_fine(answer).map_err(Error::write(format!("status of {what}")))?;
    }
    truncated?;
    if !created {
        return Ok(Outcome::Failed);
    }
    let pause = plan.look_again.map(std::time::Duration::from_secs);
    Ok(pause.map_or(Outcome::Settled, Outcome::Again))
}

/// Creates Pods with their claims; returns false if the API server refuses one.
async fn create_pods(
    reader: &Reader,
    set: &StatefulSet,
    namespace: &str,
    missing: &[(i32, Version)],
) -> Result<bool, Error> {
    let what = format!("StatefulSet {namespace}/{}", set.name_any());
    let pods: Api<Pod> = Api::namespaced(reader.client().clone(), namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(reader.client().clone(), namespace);
    for (number, version) in missing {
        for claim in volume_claims(set, namespace, *number) {
            let answer = claims.create(&PostParams::default(), &claim).await;
            existing_is_fine(answer).map_err(Error::write(format!("volume claim of {what}")))?;
        }
        let pod = numbered_pod(set, version, namespace, *number)?;
        match pods.create(&PostParams::default(), &pod).await {
            Ok(_) => {}
            Err(kube::Error::Api(refusal)) => {
                let name = pod.name_any();
                if refusal.code != CONFLICT || is_taken(&pods, &name).await? {
                    let text = format!(
                        "create Pod {name} in StatefulSet {} failed error: {}",
                        set.name_any(),
                        refusal.message
                    );
                    reader.warn(set, FAILED_CREATE, "Creating", text);
                }
                return Ok(false);
            }
            Err(error) => return Err(Error::write(format!("Pod of {what}"))(error)),
        }
    }
    reader.recovered(set, FAILED_CREATE);
    Ok(true)
}

/// Returns whether another Pod has the name and is not ending.
async fn is_taken(pods: &Api<Pod>, name: &str) -> Result<bool, Error> {
    let existing = pods.get_metadata_opt(name).await.map_err(Error::read(format!("Pod {name}")))?;
    Ok(existing.is_some_and(|existing| existing.metadata.deletion_timestamp.is_none()))
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

/// A Pod of a set by one of its templates.
fn numbered_pod(set: &StatefulSet, version: &Version, namespace: &str, number: i32) -> Result<Pod, Error> {
    let spec = set.spec.clone().unwrap_or_default();
    let name = format!("{}-{number}", set.name_any());
    let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let mut pod = template::pod(&version.template, namespace, ownership::controlled_by(set)?, metadata);
    pod.labels_mut().extend([
        (NAME_LABEL.to_owned(), name.clone()),
        (INDEX_LABEL.to_owned(), number.to_string()),
        (REVISION_LABEL.to_owned(), version.name.clone()),
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
    use hutch_testkit::wait::eventually;
    use k8s_openapi::api::core::v1::Event;
    use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
    use kube::api::ListParams;

    use super::plan::tests::{set, version};
    use super::*;
    use crate::reader::tests::reader;

    /// A set `s` of one Pod in an API server beside which no controller runs.
    async fn stored(history_limit: i32) -> (Arc<Context>, StatefulSet) {
        let reader = reader().await;
        let sets: Api<StatefulSet> = Api::default_namespaced(reader.client().clone());
        let set = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
            "replicas": 1, "serviceName": "s", "revisionHistoryLimit": history_limit,
            "selector": {"matchLabels": {"a": "b"}}, "template": template_of("1")}}));
        let set = sets.create(&PostParams::default(), &set.unwrap()).await.unwrap();
        let all: Api<Read<StatefulSet>> = Api::all(reader.client().clone());
        let family = Family::new(Controller::new(all).objects());
        (Arc::new(Context { reader, family }), set)
    }

    fn template_of(version: &str) -> serde_json::Value {
        json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": version}]}})
    }

    async fn reconciled(context: &Arc<Context>) -> (Outcome, StatefulSet) {
        let key = Key { namespace: "default".into(), name: "s".into() };
        let outcome = reconcile(key, context.clone()).await.unwrap();
        let sets: Api<StatefulSet> = Api::default_namespaced(context.reader.client().clone());
        (outcome, sets.get("s").await.unwrap())
    }

    /// Creates a Pod with the name of the set's first one.
    async fn take_name(context: &Context) {
        let pods: Api<Pod> = Api::default_namespaced(context.reader.client().clone());
        let pod = json!({"metadata": {"name": "s-0"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn taken_name_of_a_pod_is_reported_once_and_backs_off() {
        let (context, _) = stored(10).await;
        take_name(&context).await;
        for _ in 0..3 {
            let (outcome, set) = reconciled(&context).await;
            assert_eq!(outcome, Outcome::Failed);
            assert_eq!(set.status.unwrap().replicas, 0);
        }
        let client = || context.reader.client().clone();
        let events: Api<Event> = Api::default_namespaced(client());
        let listed = async || events.list(&ListParams::default()).await.unwrap().items;
        let found = eventually("an Event", async || listed().await.pop()).await;
        assert_eq!(found.reason.as_deref(), Some("FailedCreate"));
        let text = "create Pod s-0 in StatefulSet s failed error: pods \"s-0\" already exists";
        assert_eq!((found.message.as_deref(), found.type_.as_deref()), (Some(text), Some("Warning")));
        assert_eq!(listed().await.len(), 1);
        let pods: Api<Pod> = Api::default_namespaced(client());
        pods.delete("s-0", &kube::api::DeleteParams::default()).await.unwrap();
        assert_eq!(reconciled(&context).await.0, Outcome::Settled);
        assert!(pods.get("s-0").await.unwrap().labels().contains_key(REVISION_LABEL));
    }

    #[tokio::test]
    async fn earlier_revisions_are_deleted_also_if_no_pod_can_be_created() {
        let (context, _) = stored(0).await;
        take_name(&context).await;
        let sets: Api<StatefulSet> = Api::default_namespaced(context.reader.client().clone());
        for version in ["1", "2", "3"] {
            let patch = Patch::Merge(json!({"spec": {"template": template_of(version)}}));
            sets.patch("s", &PatchParams::default(), &patch).await.unwrap();
            assert_eq!(reconciled(&context).await.0, Outcome::Failed);
        }
        let revisions: Api<ControllerRevision> = Api::default_namespaced(context.reader.client().clone());
        let mut left: Vec<i64> = revisions
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .iter()
            .map(|one| one.revision)
            .collect();
        left.sort_unstable();
        assert_eq!(left, [1, 3], "the current one and that of the update");
    }

    #[tokio::test]
    async fn revision_with_the_same_template_is_no_collision() {
        for (same, collisions) in [(true, 0), (false, 1)] {
            let (context, set) = stored(10).await;
            let revisions: Api<ControllerRevision> = Api::default_namespaced(context.reader.client().clone());
            let mut revision = history::revision(&set, 1, 0).unwrap();
            // No list for the set contains it.
            revision.metadata.labels = None;
            revision.metadata.owner_references = None;
            if !same {
                revision.data = Some(RawExtension(json!({"spec": {}})));
            }
            let stored = revisions.create(&PostParams::default(), &revision).await.unwrap();
            let status = reconciled(&context).await.1.status.unwrap();
            assert_eq!(status.collision_count, Some(collisions));
            assert_eq!(status.update_revision == Some(stored.name_any()), same);
        }
    }

    #[test]
    fn a_pod_knows_its_number_and_its_volumes() {
        let one = set(1, "OrderedReady");
        let pod = numbered_pod(&one, &version(&one), "n", 0).unwrap();
        assert_eq!(number(&one, &pod), Some(0));
        let spec = pod.spec.unwrap();
        assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("s-0"), Some("svc")));
        let claim = spec.volumes.unwrap()[0].persistent_volume_claim.clone().unwrap();
        assert_eq!(claim.claim_name, "data-s-0");
        assert_eq!(volume_claims(&one, "n", 0)[0].name_any(), "data-s-0");
    }
}
