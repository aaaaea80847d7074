//! Destinations that the policies of a Pod close because they disagree whether TLS ends at the proxy.

use std::collections::BTreeSet;
use std::sync::Arc;

use hutch_policy::{Facts, Level, Moment, Session, conflicts};
use jiff::Timestamp;

/// Maximum destinations that are named.
const NAMED: usize = 3;

/// Destinations that the levels of a Pod close, found anew only after a change of these or of the facts about it.
#[derive(Debug, Default)]
pub struct Conflicts {
    levels: Vec<Arc<Level>>,
    facts: Facts,
    found: BTreeSet<String>,
}

impl Conflicts {
    /// Reason of the condition of a Pod with such destinations.
    pub const REASON: &str = "Conflict";

    /// Takes the levels of a Pod and the facts about it. Returns the part of its condition's message; `None` without conflicts.
    pub fn update(&mut self, levels: &[Arc<Level>], facts: &Facts, now: Timestamp) -> Option<String> {
        let same = levels.len() == self.levels.len()
            && levels.iter().zip(&self.levels).all(|(new, old)| Arc::ptr_eq(new, old));
        if !same || *facts != self.facts {
            let moment = Moment { facts, session: Session::default(), seconds: now.as_second() };
            self.found = conflicts(levels, &moment, NAMED);
            (self.levels, self.facts) = (levels.to_vec(), facts.clone());
        }
        let named = self.found.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        (!named.is_empty()).then(|| {
            format!(
                "denied, because TLS may not end at the proxy for one rule (`tls: Passthrough`) and must for another rule, \
                 a scanner or a credential: {named}"
            )
        })
    }
}
