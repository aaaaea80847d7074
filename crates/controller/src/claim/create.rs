//! Builds the Sandbox that is created for a claim. Pure.

use std::sync::Arc;

use hutch_api::{Sandbox, SandboxSpec, annotation, label, name_hash};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::observe::Observed;
use super::refusal::Refusal;
use super::{attributes, env, metadata, variables, volumes};
use crate::blueprint::secure;
use crate::owner;
use crate::patch::Strings;

pub(super) fn desired(observed: &Observed) -> Result<Sandbox, Refusal> {
    let claim = observed.claim.as_ref();
    let template = observed.template.as_deref().ok_or_else(|| no_template(observed))?;
    let mut spec = SandboxSpec::from_blueprint(template.spec.blueprint());
    let own_volumes = claim.spec.volume_claim_templates.as_deref().unwrap_or_default();
    let policy = template.spec.volume_claim_templates_policy.unwrap_or_default();
    let merged = volumes::merge(spec.volumes(), own_volumes, policy)?;
    spec.volume_claim_templates = (!merged.is_empty()).then_some(merged);
    let pod = Arc::make_mut(&mut spec.pod_template.spec);
    env::inject(pod, variables(claim), env::policy(template))?;
    secure(pod, template);
    spec.pod_template.metadata = metadata::desired(claim, Some(template), &Default::default())?;

    let mut labels = Strings::from([
        (label::CLAIM_UID.to_owned(), claim.uid().unwrap_or_default()),
        (label::TEMPLATE_REF_HASH.to_owned(), name_hash(&template.name_any())),
    ]);
    let creator = claim.labels().get(label::CREATED_BY);
    labels.extend(creator.map(|creator| (label::CREATED_BY.to_owned(), creator.clone())));
    spec.pod_template.metadata.labels.get_or_insert_default().extend(labels.clone());
    labels.insert(label::LAUNCH_TYPE.into(), label::LAUNCH_COLD.into());
    // The annotation with the Pod's name, which is the Sandbox's, saves a write later.
    let mut annotations = Strings::from([
        (annotation::TEMPLATE_REF.to_owned(), template.name_any()),
        (annotation::POD_NAME.to_owned(), claim.name_any()),
    ]);
    for key in [annotation::TRACE_CONTEXT, annotation::POLICIES] {
        annotations.extend(claim.annotations().get(key).map(|value| (key.to_owned(), value.clone())));
    }
    annotations.extend(attributes(claim));
    let metadata = ObjectMeta {
        name: claim.metadata.name.clone(),
        namespace: claim.namespace(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![owner::reference(claim)]),
        ..ObjectMeta::default()
    };
    Ok(Sandbox { metadata, spec, status: None })
}

/// Returns the refusal that names the missing link between the claim and its template.
pub(super) fn no_template(observed: &Observed) -> Refusal {
    match (&observed.pool, &observed.template_name) {
        (Some(_), Some(name)) => Refusal::no_template(name),
        _ => Refusal::no_pool(&observed.claim.spec.warm_pool_ref.name),
    }
}
