//! Reads and changes lists of conditions.

use hutch_api::condition::{READY, TRUE};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Maximum length of a condition's message in bytes, by the published schema.
const MESSAGE_BYTES: usize = 32_768;

/// Returns the condition of that type.
pub(crate) fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Returns whether there is a Ready condition that is True.
pub(crate) fn is_ready(conditions: Option<&Vec<Condition>>) -> bool {
    conditions.and_then(|list| find(list, READY)).is_some_and(|ready| ready.status == TRUE)
}

/// Desired content of a condition.
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

/// Sets a condition in its place, or at the end. The transition time changes only with the status.
pub(crate) fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    verdict: Verdict,
    generation: Option<i64>,
    now: Timestamp,
) {
    let Verdict { status, reason, mut message } = verdict;
    // The server would refuse the whole status for its length.
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
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

/// Truncates to seconds, the resolution of a condition's time; a finer time would differ from the stored one.
pub(crate) fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Returns whether a reason from another component fits the published schema.
pub(crate) fn is_reason(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b',' | b':');
    let last = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= 1024
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && text.bytes().next_back().is_some_and(last)
        && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut conditions = Vec::new();
        let message = format!("x{}", "é".repeat(MESSAGE_BYTES));
        set(&mut conditions, READY, Verdict::new(TRUE, "R", message), None, Timestamp::UNIX_EPOCH);
        let kept = &conditions[0].message;
        assert_eq!(kept.len(), MESSAGE_BYTES - 1);
        assert!(kept.ends_with('é'));
    }

    #[test]
    fn reasons_by_the_schema() {
        for (text, fits) in [
            ("Unschedulable", true),
            ("A", true),
            ("A:b,c_d_", true),
            ("", false),
            ("1A", false),
            ("A-b", false),
            ("A:", false),
            ("not so", false),
        ] {
            assert_eq!(is_reason(text), fits, "{text:?}");
        }
    }
}
