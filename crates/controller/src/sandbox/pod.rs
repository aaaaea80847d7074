//! Pod of a running Sandbox: its construction, and updates of its labels and annotations.

use hutch_api::metadata::{is_reserved_annotation, is_reserved_label};
use hutch_api::{Sandbox, annotation, label, name_hash};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::plan::{Action, Part, Plan};
use super::volume::{foreign, may_adopt, unauthorised};
use super::{Located, Observed, memory, volume};
use crate::gateway::Gateway;
use crate::owner;
use crate::patch::{Strings, put, put_difference};
use crate::view::PodView;

/// Labels that the Pod gets from the Sandbox and not from the template.
const FROM_SANDBOX: [&str; 3] = [label::WARM_POOL_SANDBOX, label::TEMPLATE_REF_HASH, label::CREATED_BY];

/// Plans the Pod. Returns the desired annotation with the Pod's name, if known.
pub(super) fn plan(observed: &Observed, plan: &mut Plan) -> Option<Option<String>> {
    let sandbox = observed.sandbox.as_ref();
    let (pod, adopt) = match observed.locate() {
        Located::Missing | Located::Several(_) => {
            let mut pod = desired(sandbox, observed.pool_eviction, observed.gateway.as_deref());
            memory::begin(observed, &mut pod);
            let name = pod.name_any();
            plan.actions.push(Action::CreatePod(Box::new(pod)));
            return Some(Some(name));
        }
        Located::Owned(pod) => (pod, false),
        Located::Foreign(pod) => {
            if let Some(other) = owner::controller(pod.as_ref()) {
                let problem = foreign("pod", &pod.name_any(), &owner::described(other), &sandbox.name_any());
                plan.problems.push((Part::Pod, problem));
                return Some(None);
            }
            if !may_adopt(pod.labels(), &sandbox.name_any()) {
                plan.problems.push((Part::Pod, unauthorised("pod", &pod.name_any())));
                return None;
            }
            (pod, true)
        }
    };
    if pod.metadata.deletion_timestamp.is_none() {
        let mut patch = metadata_patch(sandbox, &pod, observed.pool_eviction);
        if adopt {
            let mut owners = pod.owner_references().to_vec();
            owners.push(owner::reference(sandbox));
            put(&mut patch, &["metadata", "ownerReferences"], json!(owners));
            plan.actions.push(Action::PatchPod(pod.name_any(), Value::Object(patch)));
        } else if !patch.is_empty() {
            plan.actions.push(Action::SyncPod(pod.name_any(), Value::Object(patch)));
        }
    }
    Some(Some(pod.name_any()))
}

/// Builds the Pod.
fn desired(sandbox: &Sandbox, pool_eviction: bool, gateway: Option<&Gateway>) -> Pod {
    let (labels, user_labels) = labels(sandbox);
    let (mut annotations, user_annotations) = annotations(sandbox, pool_eviction);
    for (key, list) in
        [(annotation::PROPAGATED_LABELS, user_labels), (annotation::PROPAGATED_ANNOTATIONS, user_annotations)]
    {
        if !list.is_empty() {
            annotations.insert(key.into(), list);
        }
    }
    let mut spec = PodSpec::clone(&sandbox.spec.pod_template.spec);
    let templates = sandbox.spec.volumes();
    if !templates.is_empty() {
        let volumes = spec.volumes.get_or_insert_default();
        volumes.retain(|volume| !templates.iter().any(|template| template.name() == volume.name));
        volumes.extend(templates.iter().map(|template| Volume {
            name: template.name().to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: volume::name(template, &sandbox.name_any()),
                read_only: None,
            }),
            ..Volume::default()
        }));
    }
    if let Some(gateway) = gateway {
        gateway.lead(&mut spec, sandbox);
    }
    Pod {
        metadata: ObjectMeta {
            name: sandbox.metadata.name.clone(),
            namespace: sandbox.namespace(),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: Some(vec![owner::reference(sandbox)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// Returns true if the Pod gets the label by which the NetworkPolicy of a template selects it.
pub(super) fn has_template(sandbox: &Sandbox) -> bool {
    labels(sandbox).0.contains_key(label::TEMPLATE_REF_HASH)
}

/// Returns all labels that the controller sets on the Pod, and the user's keys among them, joined.
fn labels(sandbox: &Sandbox) -> (Strings, String) {
    let template = sandbox.spec.pod_template.metadata.labels.iter().flatten();
    let mut labels: Strings =
        template.filter(|(key, _)| !is_reserved_label(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let user = joined(labels.keys());
    labels.insert(label::SANDBOX_NAME_HASH.into(), name_hash(&sandbox.name_any()));
    let owner = owner::controller(sandbox).filter(|owner| owner::is_of_extensions(owner));
    for key in FROM_SANDBOX {
        let wanted = match key {
            label::WARM_POOL_SANDBOX => owner.is_some_and(|owner| owner.kind == "SandboxWarmPool"),
            label::TEMPLATE_REF_HASH => owner.is_some(),
            _ => true,
        };
        if let Some(value) = sandbox.labels().get(key).filter(|value| wanted && !value.is_empty()) {
            let value = if key == label::CREATED_BY { label::normalised_creator(value) } else { value };
            labels.insert(key.into(), value.to_owned());
        }
    }
    (labels, user)
}

/// Returns the Pod's annotations from the user and the pool, and their keys, joined.
fn annotations(sandbox: &Sandbox, pool_eviction: bool) -> (Strings, String) {
    let template = sandbox.spec.pod_template.metadata.annotations.iter().flatten();
    let mut annotations: Strings = template
        // A new Pod gets the snapshot with which it begins, which may be another one.
        .filter(|(key, _)| !is_reserved_annotation(key) && *key != annotation::RESTORE_FROM)
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    // The kubelet sees only the Pod.
    let read = [
        annotation::IDLE_AFTER,
        annotation::PAGE_OUT_AFTER,
        annotation::SUSPEND_AFTER,
        annotation::AFTER_RESTORE,
        annotation::SHARES_GENERATORS,
        annotation::RESTORE_POLICY,
        annotation::RESTORE_AGAIN,
    ];
    for key in read {
        annotations.extend(sandbox.annotations().get(key).map(|said| (key.to_owned(), said.clone())));
    }
    // A pooled Pod can be evicted without harm. An adopted one loses the mark with its owner.
    if pool_eviction && owner::extension(sandbox, "SandboxWarmPool").is_some() {
        annotations.entry(annotation::SAFE_TO_EVICT.into()).or_insert_with(|| "true".into());
    }
    let user = joined(annotations.keys());
    if let Some(variables) = sandbox.annotations().get(annotation::LATE_ENV) {
        annotations.insert(annotation::LATE_ENV.into(), variables.clone());
    }
    (annotations, user)
}

/// Returns the patch of missing labels and annotations; those of other writers stay.
fn metadata_patch(sandbox: &Sandbox, pod: &PodView, pool_eviction: bool) -> Map<String, Value> {
    let mut patch = Map::new();
    let listed = |key: &str| pod.annotations().get(key).map(String::as_str).unwrap_or_default();

    let (wanted, user_labels) = labels(sandbox);
    let mut labels = pod.labels().clone();
    for key in listed(annotation::PROPAGATED_LABELS).split(',').filter(|key| *key != label::SANDBOX_NAME_HASH)
    {
        labels.remove(key);
    }
    for key in FROM_SANDBOX {
        labels.remove(key);
    }
    labels.extend(wanted);
    put_difference(&mut patch, &["metadata", "labels"], Some(pod.labels()), &labels);

    let (wanted, user_annotations) = annotations(sandbox, pool_eviction);
    let mut annotations = pod.annotations().clone();
    let lists = [annotation::PROPAGATED_LABELS, annotation::PROPAGATED_ANNOTATIONS];
    for key in listed(annotation::PROPAGATED_ANNOTATIONS).split(',').filter(|key| !lists.contains(key)) {
        annotations.remove(key);
    }
    annotations.extend(wanted);
    for (key, list) in lists.into_iter().zip([user_labels, user_annotations]) {
        if listed(key) != list {
            annotations.insert(key.into(), list);
        }
    }
    put_difference(&mut patch, &["metadata", "annotations"], Some(pod.annotations()), &annotations);
    patch
}

fn joined<'a>(keys: impl Iterator<Item = &'a String>) -> String {
    keys.map(String::as_str).collect::<Vec<_>>().join(",")
}
