//! The Sandbox that is made for a claim when no pool has one. Pure.

use hutch_api::{Sandbox, SandboxSpec, annotation, label, name_hash};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::refusal::Refusal;
use super::{Seen, env, metadata, volumes};
use crate::blueprint::secure;
use crate::owner;
use crate::patch::Strings;

pub(super) fn desired(seen: &Seen) -> Result<Sandbox, Refusal> {
    let claim = seen.claim.as_ref();
    let pool_name = &claim.spec.warm_pool_ref.name;
    let template = match (&seen.template, &seen.pool, &seen.template_name) {
        (Some(template), _, _) => template.as_ref(),
        (None, Some(_), Some(name)) => return Err(Refusal::no_template(name)),
        _ => return Err(Refusal::no_pool(pool_name)),
    };
    let mut spec = SandboxSpec::from_blueprint(template.spec.blueprint());
    let own_volumes = claim.spec.volume_claim_templates.as_deref().unwrap_or_default();
    let policy = template.spec.volume_claim_templates_policy.unwrap_or_default();
    let merged = volumes::merge(spec.volumes(), own_volumes, policy)?;
    spec.volume_claim_templates = (!merged.is_empty()).then_some(merged);
    let variables = claim.spec.env.as_deref().unwrap_or_default();
    let policy = template.spec.env_vars_injection_policy.unwrap_or_default();
    env::inject(&mut spec.pod_template.spec, variables, policy)?;
    spec.pod_template.metadata = metadata::desired(claim, Some(template), &Default::default())?;
    secure(&mut spec.pod_template.spec, template);

    let mut labels = Strings::from([
        (label::CLAIM_UID.to_owned(), claim.uid().unwrap_or_default()),
        (label::LAUNCH_TYPE.to_owned(), label::LAUNCH_COLD.to_owned()),
        (label::TEMPLATE_REF_HASH.to_owned(), name_hash(&template.name_any())),
    ]);
    let mut annotations = Strings::from([(annotation::TEMPLATE_REF.to_owned(), template.name_any())]);
    if let Some(creator) = claim.labels().get(label::CREATED_BY) {
        labels.insert(label::CREATED_BY.into(), creator.clone());
    }
    if let Some(trace) = claim.annotations().get(annotation::TRACE_CONTEXT) {
        annotations.insert(annotation::TRACE_CONTEXT.into(), trace.clone());
    }
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
