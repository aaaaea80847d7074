//! Meaning of the state of a Pod for its owner.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

/// It has neither ended nor is it being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && !is_deleting(pod)
}

pub(crate) fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// All its containers have ended for good.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn ready_since(pod: &Pod) -> Option<Option<Timestamp>> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready =
        conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    Some(ready.last_transition_time.as_ref().map(|time| time.0))
}

/// Its condition `Ready` is true.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    ready_since(pod).is_some()
}

/// How much longer it must stay ready to count as available; `None` when it is not ready.
pub(crate) fn until_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<SignedDuration> {
    let since = ready_since(pod)?;
    let wanted = SignedDuration::from_secs(i64::from(min_ready_seconds));
    if wanted.is_zero() {
        return Some(SignedDuration::ZERO);
    }
    let ready_for = now.duration_since(since?);
    Some((wanted - ready_for).max(SignedDuration::ZERO))
}
