//! One Sandbox of a pool: its construction and its health.

use std::sync::Arc;

use hutch_api::condition::{FALSE, POD_SCHEDULED, reason};
use hutch_api::{Sandbox, SandboxSpec, SandboxTemplate, SandboxWarmPool, annotation, label, name_hash};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::blueprint::{Hashes, secure};
use crate::condition;
use crate::owner;
use crate::patch::Strings;
use crate::view::PodView;

/// Builds a pooled Sandbox without a name. The Pod template is the SandboxTemplate's own: the marks of a pooled Pod are
/// derived from the Sandbox's labels and owner, so that leaving the pool changes no spec.
pub(super) fn desired(pool: &SandboxWarmPool, template: &SandboxTemplate, hashes: &Hashes) -> Sandbox {
    let pool_name = pool.name_any();
    let labels = [
        (label::WARM_POOL_SANDBOX, name_hash(&pool_name)),
        (label::TEMPLATE_REF_HASH, name_hash(&template.name_any())),
        (label::POD_TEMPLATE_HASH, hashes.pod_template.clone()),
        (label::TEMPLATE_HASH, hashes.blueprint.clone()),
        (label::LAUNCH_TYPE, label::LAUNCH_WARM.to_owned()),
        (label::CREATED_BY, "controller".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    let mut spec = SandboxSpec::from_blueprint(template.spec.blueprint());
    secure(Arc::make_mut(&mut spec.pod_template.spec), template);
    let annotations = Strings::from([(annotation::TEMPLATE_REF.to_owned(), template.name_any())]);
    let metadata = ObjectMeta {
        generate_name: Some(format!("{pool_name}-")),
        namespace: pool.namespace(),
        labels: Some(Strings::from(labels)),
        annotations: Some(annotations),
        owner_references: Some(vec![owner::reference(pool)]),
        ..ObjectMeta::default()
    };
    Sandbox { metadata, spec, status: None }
}

/// Names the Sandbox. The annotation with the Pod's name, which is the same, saves a write later.
pub(super) fn named(member: &Sandbox, name: &str) -> Sandbox {
    let mut named = member.clone();
    named.metadata.name = Some(name.to_owned());
    named.annotations_mut().insert(annotation::POD_NAME.into(), name.to_owned());
    named
}

/// Health of a pooled Sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Ready,
    /// Not Ready, with the time that it has left to become so.
    Starting(SignedDuration),
    /// Not Ready in time because no node has room for it: a replacement would not either.
    Unschedulable,
    /// Not Ready in time.
    Stuck,
}

/// `age` is the time since this process created the Sandbox, if it did. Two clocks may differ by more than the grace
/// period, and a Sandbox that is too old from the start would be replaced without end.
pub(super) fn health(
    sandbox: &Sandbox,
    pod: Option<&PodView>,
    grace: SignedDuration,
    now: Timestamp,
    age: Option<SignedDuration>,
) -> Health {
    let conditions = sandbox.status.as_ref().and_then(|status| status.conditions.as_ref());
    if condition::is_ready(conditions) {
        return Health::Ready;
    }
    let created = sandbox.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let age = age.unwrap_or_else(|| now.duration_since(created));
    let left = grace.saturating_sub(age.max(SignedDuration::ZERO));
    if left.is_positive() {
        return Health::Starting(left);
    }
    let waits = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none() && finds_no_node(pod));
    if waits { Health::Unschedulable } else { Health::Stuck }
}

fn finds_no_node(pod: &PodView) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| {
        condition.type_ == POD_SCHEDULED
            && condition.status == FALSE
            && condition.reason.as_deref() == Some(reason::UNSCHEDULABLE)
    })
}
