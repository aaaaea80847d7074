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
use crate::error::{existing_is_fine, gone_is_fine};
use crate::reader::Reader;

const REVISION_LABEL: &str = "controller-revision-hash";
const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
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
    let pods: Api<Pod> = Api::namespaced(client(), namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client(), namespace);
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
    for (number, version) in &plan.create {
        for claim in volume_claims(&set, namespace, *number) {
            let answer = claims.create(&PostParams::default(), &claim).await;
            existing_is_fine(answer).map_err(Error::write(format!("volume claim of {what}")))?;
        }
        let pod = numbered_pod(&set, version, namespace, *number)?;
        // A conflict may be a Pod of that name that is still ending; the next reconcile shows.
        pods.create(&PostParams::default(), &pod).await.map_err(Error::write(format!("Pod of {what}")))?;
    }
    delete_pods(&pods, namespace, &plan.delete).await?;
    if set.status.as_ref() != Some(&plan.status) {
        let patch = Patch::Merge(json!({"status": plan.status}));
        let answer = sets.patch_status(name, &PatchParams::default(), &patch).await;
        gone_is_fine(answer).map_err(Error::write(format!("status of {what}")))?;
    }
    let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(HISTORY);
    let live: BTreeSet<String> =
        owned.iter().filter_map(|pod| pod.labels().get(REVISION_LABEL).cloned()).collect();
    let revisions: Api<ControllerRevision> = Api::namespaced(client(), namespace);
    history.truncate(&revisions, usize::try_from(limit).unwrap_or(0), &live, &what).await?;
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
    use super::plan::tests::{set, version};
    use super::*;

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
