//! Chooses a Sandbox of a pool, and builds the patch that assigns it to a claim. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use hutch_api::metadata::is_reserved_label;
use hutch_api::{
    PodMetadata, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotation, label, name_hash,
};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use super::{attributes, metadata, record};
use crate::condition;
use crate::owner;
use crate::patch::{Strings, put, put_difference};

/// Returns whether the claim may adopt the Sandbox: it belongs to the claim's pool and is not being deleted.
pub(super) fn is_candidate(sandbox: &Sandbox, claim: &SandboxClaim) -> bool {
    let pool = owner::extension(sandbox, "SandboxWarmPool");
    sandbox.metadata.deletion_timestamp.is_none()
        && sandbox.labels().contains_key(label::WARM_POOL_SANDBOX)
        && sandbox.labels().contains_key(label::TEMPLATE_REF_HASH)
        // Policies apply by it. A Sandbox that only looks like one of the pool lacks it.
        && sandbox.annotations().contains_key(annotation::TEMPLATE_REF)
        && pool.is_some_and(|pool| pool.name == claim.spec.warm_pool_ref.name)
        && sandbox.metadata.namespace == claim.metadata.namespace
}

/// Returns whether this pool, and not an object of its name, controls the Sandbox, and the Sandbox is from the template of the
/// pool. Who creates Sandboxes writes any owner, and the policies for a template stay those of the template that made it.
pub(super) fn is_of_pool(sandbox: &Sandbox, pool: Option<&SandboxWarmPool>) -> bool {
    let Some(pool) = pool else { return true };
    let owner = owner::extension(sandbox, "SandboxWarmPool");
    let template = sandbox.annotations().get(annotation::TEMPLATE_REF);
    owner.is_some_and(|owner| Some(&owner.uid) == pool.metadata.uid.as_ref())
        && template == Some(&pool.spec.sandbox_template_ref.name)
}

/// Returns whether the Sandbox has an address.
pub(super) fn has_address(sandbox: &Sandbox) -> bool {
    let addresses = sandbox.status.as_ref().and_then(|status| status.pod_ips.as_ref());
    addresses.is_some_and(|addresses| !addresses.is_empty())
}

/// Result of choosing from the candidates of a pool.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Pick {
    /// The best candidate.
    Take(Arc<Sandbox>),
    /// No candidate has an address yet.
    Pending,
    /// There are no candidates.
    Nothing,
}

/// Picks a Ready Sandbox, else one that at least has an address. Among equals it prefers the node with most Sandboxes of
/// the pool, so that nodes stay evenly filled, and there the oldest.
pub(super) fn pick(candidates: Vec<Arc<Sandbox>>) -> Pick {
    let mut by_node: BTreeMap<&str, usize> = BTreeMap::new();
    for sandbox in &candidates {
        *by_node.entry(node(sandbox)).or_default() += 1;
    }
    // Sandboxes on a known node come first.
    by_node.insert("", 0);
    let ready = |sandbox: &Sandbox| {
        condition::is_ready(sandbox.status.as_ref().and_then(|status| status.conditions.as_ref()))
    };
    let none = if candidates.is_empty() { Pick::Nothing } else { Pick::Pending };
    let usable = candidates.iter().filter(|sandbox| has_address(sandbox));
    let best = usable.min_by_key(|&sandbox| {
        let on_node = by_node.get(node(sandbox)).copied().unwrap_or_default();
        let created = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (!ready(sandbox), std::cmp::Reverse(on_node), created, sandbox.metadata.name.as_deref())
    });
    best.cloned().map_or(none, Pick::Take)
}

fn node(sandbox: &Sandbox) -> &str {
    let node = sandbox.status.as_ref().and_then(|status| status.node_name.as_deref());
    node.unwrap_or_default()
}

/// Builds the patch that assigns the Sandbox to the claim. It names the version that was observed, so only the first of
/// several claims succeeds. The Pod's spec does not change, except for [`super::late_env`]: the Pod keeps running.
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
    annotations.extend(attributes(claim));
    let mut patch = Map::new();
    put(&mut patch, &["metadata", "resourceVersion"], json!(sandbox.resource_version()));
    put(&mut patch, &["metadata", "ownerReferences"], json!([owner::reference(claim)]));
    put_difference(&mut patch, &["metadata", "labels"], Some(sandbox.labels()), &labels);
    put_difference(&mut patch, &["metadata", "annotations"], Some(sandbox.annotations()), &annotations);
    let pod = metadata::desired(claim, template, &sandbox.spec.pod_template.metadata)?;
    put_pod_metadata(&mut patch, sandbox, &pod);
    Ok(Value::Object(patch))
}

/// Returns the patch of the metadata that a bound Sandbox lacks of its claim and template, if any.
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
    put_launch_type(&mut labels, sandbox, claim);
    let mut patch = Map::new();
    put_difference(&mut patch, &["metadata", "labels"], Some(sandbox.labels()), &labels);
    let pod = metadata::desired(claim, Some(template), &PodMetadata::default())?;
    put_pod_metadata(&mut patch, sandbox, &pod);
    Ok((!patch.is_empty()).then_some(Value::Object(patch)))
}

/// Returns the same patch without the parts that need the template.
pub(super) fn alignment_without_template(sandbox: &Sandbox, claim: &SandboxClaim) -> Option<Value> {
    let mut labels = sandbox.labels().clone();
    put_launch_type(&mut labels, sandbox, claim);
    let mut patch = Map::new();
    put_difference(&mut patch, &["metadata", "labels"], Some(sandbox.labels()), &labels);
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Adds a missing launch type. A Sandbox came from a pool if its name differs from the claim's, or is recorded.
fn put_launch_type(labels: &mut Strings, sandbox: &Sandbox, claim: &SandboxClaim) {
    let name = sandbox.name_any();
    let warm = name != claim.name_any() || record(claim) == Some(&name);
    let launch = if warm { label::LAUNCH_WARM } else { label::LAUNCH_COLD };
    labels.entry(label::LAUNCH_TYPE.into()).or_insert_with(|| launch.into());
}

/// Adds the difference of the Pod metadata. Keys of the project's own domains stay: another controller may have written
/// them.
fn put_pod_metadata(patch: &mut Map<String, Value>, sandbox: &Sandbox, wanted: &PodMetadata) {
    let current = &sandbox.spec.pod_template.metadata;
    let path = |key: &'static str| ["spec", "podTemplate", "metadata", key];
    let mut labels = current.labels.clone().unwrap_or_default();
    labels.retain(|key, _| !is_reserved_label(key));
    put_difference(patch, &path("labels"), Some(&labels), &wanted.labels.clone().unwrap_or_default());
    let annotations = wanted.annotations.clone().unwrap_or_default();
    if annotations.is_empty() && current.annotations.as_ref().is_some_and(|known| !known.is_empty()) {
        // Null and not an empty map, which would be an additional state.
        put(patch, &path("annotations"), Value::Null);
        return;
    }
    put_difference(patch, &path("annotations"), current.annotations.as_ref(), &annotations);
}
