//! Volume claims of a Sandbox: created or adopted, never changed. They outlive the Pod and are deleted with the Sandbox.

use hutch_api::{VolumeClaimTemplate, label, name_hash};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::json;

use super::Observed;
use super::plan::{Action, Part, Plan};
use crate::owner;

/// Returns the name of a template's claim for a Sandbox.
pub(super) fn name(template: &VolumeClaimTemplate, sandbox: &str) -> String {
    format!("{}-{sandbox}", template.name())
}

/// Plans one write for each claim that needs it; the first conflict ends the list.
pub(super) fn plan(observed: &Observed, plan: &mut Plan) {
    let sandbox = observed.sandbox.as_ref();
    for (template, existing) in sandbox.spec.volumes().iter().zip(&observed.volumes) {
        let Some(claim) = existing else {
            plan.actions.push(Action::CreateVolume(Box::new(desired(observed, template))));
            continue;
        };
        if owner::is_controlled_by(claim.as_ref(), sandbox) {
            continue;
        }
        let name = claim.name_any();
        if let Some(other) = owner::controller(claim.as_ref()) {
            let problem = foreign("PVC", &name, &owner::described(other), &sandbox.name_any());
            plan.problems.push((Part::Volumes, problem));
            return;
        }
        if !may_adopt(claim.labels(), &sandbox.name_any()) {
            plan.problems.push((Part::Volumes, unauthorised("PVC", &name)));
            return;
        }
        let mut owners = claim.owner_references().to_vec();
        owners.push(owner::reference(sandbox));
        plan.actions.push(Action::PatchVolume(name, json!({"metadata": {"ownerReferences": owners}})));
    }
}

fn desired(observed: &Observed, template: &VolumeClaimTemplate) -> PersistentVolumeClaim {
    let sandbox = observed.sandbox.as_ref();
    let mut labels = template.metadata.labels.clone().unwrap_or_default();
    labels.insert(label::SANDBOX_NAME_HASH.into(), name_hash(&sandbox.name_any()));
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name(template, &sandbox.name_any())),
            namespace: sandbox.namespace(),
            labels: Some(labels),
            annotations: template.metadata.annotations.clone(),
            owner_references: Some(vec![owner::reference(sandbox)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    }
}

/// Returns whether the Sandbox of that name may adopt an object without a controller.
pub(super) fn may_adopt(labels: &std::collections::BTreeMap<String, String>, sandbox: &str) -> bool {
    labels.get(label::ADOPTABLE).is_some_and(|value| value == "true")
        || labels.get(label::SANDBOX_NAME_HASH).is_some_and(|hash| *hash == name_hash(sandbox))
}

/// Returns the message for an object with another owner.
pub(super) fn foreign(kind: &str, name: &str, owner: &str, sandbox: &str) -> String {
    format!("{kind} {name:?} is owned by {owner}, not by sandbox {sandbox:?}")
}

/// Returns the message for an object without an owner that does not permit its adoption.
pub(super) fn unauthorised(kind: &str, name: &str) -> String {
    format!(
        "cannot adopt unowned {kind} {name:?}: missing required pool authorization label ({:?}) or sandbox tracking label ({:?})",
        label::ADOPTABLE,
        label::SANDBOX_NAME_HASH
    )
}
