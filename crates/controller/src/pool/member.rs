//! One Sandbox of a pool: how it is made, and what it is to the pool.

use hutch_api::condition::{FALSE, POD_SCHEDULED, reason};
use hutch_api::{Sandbox, SandboxSpec, SandboxTemplate, SandboxWarmPool, annotation, label, name_hash};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::blueprint::{Hashes, secure};
use crate::condition;
use crate::owner;
use crate::patch::Strings;

/// A new member of the pool.
pub(super) fn desired(
    pool: &SandboxWarmPool,
    template: &SandboxTemplate,
    hashes: &Hashes,
    evict: bool,
) -> Sandbox {
    let pool_name = pool.name_any();
    let common = [
        (label::WARM_POOL_SANDBOX, name_hash(&pool_name)),
        (label::TEMPLATE_REF_HASH, name_hash(&template.name_any())),
        (label::POD_TEMPLATE_HASH, hashes.pod_template.clone()),
        (label::TEMPLATE_HASH, hashes.blueprint.clone()),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    let mut labels = Strings::from(common.clone());
    labels.insert(label::LAUNCH_TYPE.into(), label::LAUNCH_WARM.into());
    labels.insert(label::CREATED_BY.into(), "controller".into());

    let mut spec = SandboxSpec::from_blueprint(template.spec.blueprint());
    secure(&mut spec.pod_template.spec, template);
    spec.pod_template.metadata.labels.get_or_insert_default().extend(common);
    if evict {
        let annotations = spec.pod_template.metadata.annotations.get_or_insert_default();
        annotations.entry(annotation::SAFE_TO_EVICT.into()).or_insert_with(|| "true".into());
    }
    let annotations = Strings::from([(annotation::TEMPLATE_REF.to_owned(), template.name_any())]);
    let metadata = ObjectMeta {
        generate_name: Some(format!("{pool_name}-")),
        namespace: pool.namespace(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![owner::reference(pool)]),
        ..ObjectMeta::default()
    };
    Sandbox { metadata, spec, status: None }
}

/// How a member is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Ready,
    /// Not Ready, and may still become so; the time that it has left for that.
    Starting(SignedDuration),
    /// Had its time, but no node has room for it: a new one would fare no better.
    Unschedulable,
    /// Had its time.
    Stuck,
}

pub(super) fn health(sandbox: &Sandbox, grace: SignedDuration, now: Timestamp) -> Health {
    let conditions = sandbox.status.as_ref().and_then(|status| status.conditions.as_ref());
    if condition::is_ready(conditions) {
        return Health::Ready;
    }
    let created = sandbox.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let left = grace - now.duration_since(created);
    if left.is_positive() {
        return Health::Starting(left);
    }
    let scheduled = conditions.and_then(|list| condition::find(list, POD_SCHEDULED));
    let unschedulable =
        scheduled.is_some_and(|found| found.status == FALSE && found.reason == reason::UNSCHEDULABLE);
    if unschedulable { Health::Unschedulable } else { Health::Stuck }
}
