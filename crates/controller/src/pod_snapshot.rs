//! GKE's API of Pod snapshots, for `hutch up`. A PodSnapshotManualTrigger makes a SandboxSnapshot whose name is the uid of the
//! trigger. Each of those has a PodSnapshot of its name, which shows its state: deleting one deletes the other.
//!
//! A SandboxSnapshot of a trigger has the annotation `podsnapshot.gke.io/origin-pod`, which no user writes. The next Pod of a
//! Sandbox begins with the newest one of it ([`newest`]).

#[cfg(test)]
mod tests;
mod trigger;
mod view;

use std::sync::Arc;

use hutch_api::Sandbox;
use hutch_api::condition::READY;
use hutch_api::state::{SandboxSnapshot, reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::condition;
use crate::context::{Context, origin_term};

pub(crate) use trigger::reconcile as reconcile_trigger;
pub(crate) use view::reconcile as reconcile_view;

/// Returns the newest snapshot that a trigger has made of the Sandbox. One whose image was lost counts: a Sandbox does not
/// silently begin with an older state.
pub(crate) fn newest(ctx: &Context, sandbox: &Sandbox) -> Option<Arc<SandboxSnapshot>> {
    let mut known = ctx.snapshots.find(&origin_term(&sandbox.uid()?));
    known.retain(|snapshot| snapshot.metadata.deletion_timestamp.is_none() && was_complete(snapshot));
    known.into_iter().max_by_key(|snapshot| snapshot.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

fn was_complete(snapshot: &SandboxSnapshot) -> bool {
    ready(snapshot).is_some_and(|ready| [reason::COMPLETED, reason::LOST].contains(&ready.reason.as_str()))
}

fn ready(snapshot: &SandboxSnapshot) -> Option<&Condition> {
    let conditions = snapshot.status.as_ref().and_then(|status| status.conditions.as_deref());
    condition::find(conditions.unwrap_or_default(), READY)
}
