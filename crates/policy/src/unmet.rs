//! Conditions because of which a level denies.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::expression::Moment;
use crate::request::Request;
use crate::rule::{EgressRule, Holds};

/// Maximum parts that a message names, and maximum characters of a condition in it.
const NAMED: usize = 3;
const TEXT: usize = 160;

/// Condition because of which a level denies what its rule covers. Its parts come from the text of the policy: no value of a
/// request is among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmet {
    /// Name of the rule.
    pub rule: String,
    /// Text of the condition, or its beginning.
    pub condition: String,
    /// State of the condition.
    pub state: ConditionState,
}

/// State of a condition that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionState {
    /// It is false.
    False,
    /// It has no value. With the parts of variables that it takes and that do not exist.
    NoValue(Vec<String>),
}

impl fmt::Display for Unmet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unmet { rule, condition, state } = self;
        write!(formatter, "the condition {condition:?} of rule {rule:?} ")?;
        let missing = match state {
            ConditionState::False => return formatter.write_str("is false"),
            ConditionState::NoValue(missing) => missing,
        };
        formatter.write_str("has no value")?;
        let named = missing[..missing.len().min(NAMED)].join(", ");
        match missing.len() {
            0 => formatter
                .write_str(": a value in it has another type than the condition needs, or is too large"),
            1 => write!(formatter, ": {named} is missing"),
            _ => write!(formatter, ": {named} are missing"),
        }
    }
}

impl EgressRule {
    /// Returns the condition of the rule, if it has one that does not hold. Without a request, as for a connection.
    pub(crate) fn unmet(&self, moment: &Moment<'_>, request: Option<&Request<'_>>) -> Option<Unmet> {
        let when = self.when.as_ref()?;
        let state = match self.holds(moment, request) {
            Holds::Yes => return None,
            Holds::No => ConditionState::False,
            Holds::Unknown => ConditionState::NoValue(when.missing(moment, request)),
        };
        Some(Unmet { rule: self.name.clone(), condition: beginning(when.text()), state })
    }
}

/// Returns the first of these by the name of its rule, so that the order of the list does not show.
pub(crate) fn first(unmet: impl Iterator<Item = Unmet>) -> Option<Unmet> {
    unmet.min_by(|one, other| one.rule.cmp(&other.rule))
}

fn beginning(text: &str) -> String {
    match text.char_indices().nth(TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
