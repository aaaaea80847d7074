//! Rules and facts by which a sandbox is decided.

use std::sync::Arc;

use hutch_policy::{Decision, Destination, EgressRule, Facts, Level};

use crate::credentials::Set;

/// Levels of a sandbox.
pub(crate) type Levels = Arc<[Arc<Level>]>;

/// Rules and facts by which a sandbox is decided.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    pub(crate) levels: Levels,
    pub(crate) facts: Arc<Facts>,
    pub(crate) credentials: Arc<Set>,
}

impl Rules {
    /// Returns true if others decide in the same way about a destination.
    pub(super) fn are_alike(&self, others: &Rules, destination: &Destination) -> bool {
        let alike = |(one, other): (&Arc<Level>, &Arc<Level>)| {
            Arc::ptr_eq(one, other) || are_alike(one, other, destination)
        };
        self.facts == others.facts
            && self.credentials.of(destination).eq(others.credentials.of(destination))
            && self.levels.len() == others.levels.len()
            && self.levels.iter().zip(others.levels.iter()).all(alike)
    }
}

/// Returns true if two levels decide in the same way about a destination.
fn are_alike(one: &Level, other: &Level, destination: &Destination) -> bool {
    fn rules<'a>(level: &'a Level, of: &'a Destination) -> impl Iterator<Item = &'a EgressRule> {
        let rules = level.egress.iter().flat_map(|egress| &egress.rules);
        // A name may lead to any address.
        let closes = level.is_network_policy();
        let closes = move |rule: &EgressRule| closes || rule.decision == Decision::Deny;
        rules.filter(move |rule| rule.matches(of) || (!rule.cidrs.is_empty() && closes(rule)))
    }
    one.authority == other.authority
        && one.name == other.name
        && one.mode == other.mode
        && one.scanner == other.scanner
        && one.egress.is_some() == other.egress.is_some()
        && rules(one, destination).eq(rules(other, destination))
}
