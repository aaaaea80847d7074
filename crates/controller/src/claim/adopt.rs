//! Taking a Sandbox from the pool: which one, and with what patch. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use hutch_api::{PodMetadata, Sandbox, SandboxClaim, SandboxTemplate, annotation, label, name_hash};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::metadata;
use super::refusal::Refusal;
use crate::condition;
use crate::owner;
use crate::patch::{put, put_difference};

/// Whether the claim may take the Sandbox: it is a member of the claim's pool and on its way nowhere else.
pub(super) fn is_candidate(sandbox: &Sandbox, claim: &SandboxClaim) -> bool {
    let pool = owner::extension_controller(sandbox, "SandboxWarmPool");
    sandbox.metadata.deletion_timestamp.is_none()
        && sandbox.labels().contains_key(label::WARM_POOL_SANDBOX)
        && sandbox.labels().contains_key(label::TEMPLATE_REF_HASH)
        && pool.is_some_and(|pool| pool.name == claim.spec.warm_pool_ref.name)
        && sandbox.metadata.namespace == claim.metadata.namespace
}

/// Whether the Sandbox has an address.
pub(super) fn has_address(sandbox: &Sandbox) -> bool {
    let addresses = sandbox.status.as_ref().and_then(|status| status.pod_ips.as_ref());
    addresses.is_some_and(|addresses| !addresses.is_empty())
}

/// What the pool has to offer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Pick {
    /// The best one.
    Take(Arc<Sandbox>),
    /// None yet, but some are about to get an address.
    Pending,
    /// None.
    Nothing,
}

/// A Ready one if there is one, else one that at least has an address. Among equals: from the node that has most, so
/// that nodes stay evenly filled, and there the oldest.
pub(super) fn pick(mut candidates: Vec<Arc<Sandbox>>) -> Pick {
    let node = |sandbox: &Sandbox| sandbox.status.as_ref().and_then(|status| status.node_name.clone());
    let ready = |sandbox: &Sandbox| {
        condition::is_ready(sandbox.status.as_ref().and_then(|status| status.conditions.as_ref()))
    };
    let total = candidates.len();
    candidates.retain(|sandbox| has_address(sandbox));
    if candidates.is_empty() {
        return if total == 0 { Pick::Nothing } else { Pick::Pending };
    }
    let mut by_node: HashMap<Option<String>, usize> = HashMap::new();
    for sandbox in &candidates {
        *by_node.entry(node(sandbox)).or_default() += 1;
    }
    let best = candidates.into_iter().min_by_key(|sandbox| {
        let node = node(sandbox);
        // Those that a node runs come before those of which no node is known.
        let crowd = if node.is_some() { by_node.get(&node).copied().unwrap_or_default() } else { 0 };
        let created = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (!ready(sandbox), std::cmp::Reverse(crowd), created, sandbox.name_any())
    });
    best.map_or(Pick::Nothing, Pick::Take)
}

/// The one patch that makes the Sandbox the claim's. It names the version that was seen, so of all who try only the
/// first succeeds. The Pod's spec stays as it is: the Pod runs on.
pub(super) fn patch(
    sandbox: &Sandbox,
    claim: &SandboxClaim,
    template: Option<&SandboxTemplate>,
) -> Result<Value, Refusal> {
    let mut labels = sandbox.labels().clone();
    for gone in [label::WARM_POOL_SANDBOX, label::POD_TEMPLATE_HASH, label::TEMPLATE_HASH, label::CREATED_BY]
    {
        labels.remove(gone);
    }
    labels.insert(label::LAUNCH_TYPE.into(), label::LAUNCH_WARM.into());
    labels.insert(label::CLAIM_UID.into(), claim.uid().unwrap_or_default());
    if let Some(creator) = claim.labels().get(label::CREATED_BY) {
        labels.insert(label::CREATED_BY.into(), creator.clone());
    }
    if let Some(template) = template {
        labels.insert(label::TEMPLATE_REF_HASH.into(), name_hash(&template.name_any()));
    }
    let mut annotations = sandbox.annotations().clone();
    annotations.insert(annotation::POD_NAME.into(), sandbox.name_any());
    if let Some(trace) = claim.annotations().get(annotation::TRACE_CONTEXT) {
        annotations.insert(annotation::TRACE_CONTEXT.into(), trace.clone());
    }
    let mut patch = Map::new();
    put(&mut patch, &["metadata", "resourceVersion"], json!(sandbox.resource_version()));
    put(&mut patch, &["metadata", "ownerReferences"], json!([owner::reference(claim)]));
    put_difference(&mut patch, &["metadata", "labels"], Some(sandbox.labels()), &labels);
    put_difference(&mut patch, &["metadata", "annotations"], Some(sandbox.annotations()), &annotations);
    let pod = metadata::desired(claim, template, &unpooled(sandbox))?;
    put_pod_metadata(&mut patch, sandbox, &pod);
    Ok(Value::Object(patch))
}

/// What a bound Sandbox lacks of the metadata that its claim and template want, nothing when it has all.
pub(super) fn alignment(
    sandbox: &Sandbox,
    claim: &SandboxClaim,
    template: &SandboxTemplate,
) -> Result<Option<Value>, Refusal> {
    let mut labels = sandbox.labels().clone();
    labels.insert(label::TEMPLATE_REF_HASH.into(), name_hash(&template.name_any()));
    match claim.labels().get(label::CREATED_BY) {
        Some(creator) => labels.insert(label::CREATED_BY.into(), creator.clone()),
        None => labels.remove(label::CREATED_BY),
    };
    let cold = sandbox.name_any() == claim.name_any();
    let launch = if cold { label::LAUNCH_COLD } else { label::LAUNCH_WARM };
    labels.entry(label::LAUNCH_TYPE.into()).or_insert_with(|| launch.into());
    let mut patch = Map::new();
    put_difference(&mut patch, &["metadata", "labels"], Some(sandbox.labels()), &labels);
    let pod = metadata::desired(claim, Some(template), &unpooled(sandbox))?;
    put_pod_metadata(&mut patch, sandbox, &pod);
    Ok((!patch.is_empty()).then_some(Value::Object(patch)))
}

fn put_pod_metadata(patch: &mut Map<String, Value>, sandbox: &Sandbox, wanted: &PodMetadata) {
    let current = &sandbox.spec.pod_template.metadata;
    for (key, current, wanted) in [
        ("labels", &current.labels, &wanted.labels),
        ("annotations", &current.annotations, &wanted.annotations),
    ] {
        let wanted = wanted.clone().unwrap_or_default();
        put_difference(patch, &["spec", "podTemplate", "metadata", key], current.as_ref(), &wanted);
    }
}

/// The Sandbox's own Pod metadata without the pool's marks: what stays when the template is gone.
fn unpooled(sandbox: &Sandbox) -> PodMetadata {
    let mut pod = sandbox.spec.pod_template.metadata.clone();
    for gone in [label::WARM_POOL_SANDBOX, label::POD_TEMPLATE_HASH, label::TEMPLATE_HASH] {
        if let Some(labels) = &mut pod.labels {
            labels.remove(gone);
        }
    }
    pod
}
