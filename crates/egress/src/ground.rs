//! Policy and rule by which something is decided.

use hutch_policy::{Decision, Mode, Opinion};
use serde::{Deserialize, Serialize};

/// Level and rule that decide.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ground {
    /// Name of the level; empty if none decides.
    pub level: String,
    /// Name of the rule; `None` if none decides.
    pub rule: Option<String>,
}

impl Ground {
    /// Returns the first of these opinions that allows, of the levels that decide.
    pub(crate) fn first(opinions: &[Opinion<'_>]) -> Option<Ground> {
        let allows = |opinion: &&Opinion<'_>| {
            opinion.decision == Decision::Allow && opinion.level.mode == Mode::Enforce
        };
        let opinion = opinions.iter().find(allows)?;
        Some(Ground { level: opinion.level.name.clone(), rule: opinion.rule.map(str::to_owned) })
    }

    /// Returns the name of the level, if one decides.
    pub(crate) fn level(&self) -> Option<&str> {
        Some(self.level.as_str()).filter(|level| !level.is_empty())
    }
}
