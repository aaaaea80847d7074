//! Lists of conditions.

use hutch_api::condition::{READY, TRUE};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The condition of that type.
pub(crate) fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether there is a Ready condition that is True.
pub(crate) fn is_ready(conditions: Option<&Vec<Condition>>) -> bool {
    conditions.and_then(|list| find(list, READY)).is_some_and(|ready| ready.status == TRUE)
}

/// What a condition is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Verdict {
    pub(crate) fn new(status: &str, reason: &str, message: impl Into<String>) -> Self {
        Verdict { status: status.to_owned(), reason: reason.to_owned(), message: message.into() }
    }
}

/// Sets a condition in its place, or at the end. The time changes only with the status.
pub(crate) fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    verdict: Verdict,
    generation: Option<i64>,
    now: Timestamp,
) {
    let Verdict { status, reason, message } = verdict;
    let at = conditions.iter().position(|condition| condition.type_ == kind);
    let since = at.map(|at| &conditions[at]).filter(|known| known.status == status);
    let condition = Condition {
        last_transition_time: since.map_or_else(|| Time(now), |known| known.last_transition_time.clone()),
        message,
        observed_generation: generation,
        reason,
        status,
        type_: kind.to_owned(),
    };
    match at {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

/// Removes the condition of that type.
pub(crate) fn remove(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|condition| condition.type_ != kind);
}

/// Seconds are the finest that a condition's time keeps; finer ones would differ from what comes back.
pub(crate) fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
