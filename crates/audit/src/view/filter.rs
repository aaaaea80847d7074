//! Selection of events.

use std::collections::BTreeSet;

use super::View;
use crate::event::Kind;

/// Names a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// Its uid.
    Uid(String),
    /// `NAMESPACE/NAME`.
    Sandbox(String),
    /// `NAMESPACE/NAME` of its claim, and the sandboxes that the log names for it.
    Claim(String, BTreeSet<String>),
}

impl Selector {
    /// Learns the sandbox of a claim from an event.
    pub fn learn(&mut self, view: &View) {
        if let Selector::Claim(claim, sandboxes) = self
            && view.claim() == claim
            && !view.sandbox().is_empty()
        {
            sandboxes.insert(view.sandbox().to_owned());
        }
    }

    /// Returns true if an event is about the sandbox, or about its claim.
    pub fn selects(&self, view: &View) -> bool {
        match self {
            Selector::Uid(uid) => view.metadata.correlation_uid.as_ref() == Some(uid),
            Selector::Sandbox(name) => view.sandbox() == name,
            Selector::Claim(claim, sandboxes) => view.claim() == claim || sandboxes.contains(view.sandbox()),
        }
    }
}

/// Selects events.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Sandbox.
    pub sandbox: Option<Selector>,
    /// First time, in milliseconds since 1970.
    pub since: Option<u64>,
    /// Last time, in milliseconds since 1970.
    pub until: Option<u64>,
    /// Kinds; empty for all.
    pub kinds: Vec<Kind>,
    /// Name of the caller.
    pub user: Option<String>,
    /// Only what was refused.
    pub denied: bool,
    /// Only what changes something.
    pub writes: bool,
}

impl Filter {
    /// Returns true if an event is selected.
    pub fn selects(&self, view: &View) -> bool {
        self.sandbox.as_ref().is_none_or(|sandbox| sandbox.selects(view))
            && self.since.is_none_or(|since| view.time >= since)
            && self.until.is_none_or(|until| view.time <= until)
            && (self.kinds.is_empty() || view.kind().is_some_and(|kind| self.kinds.contains(&kind)))
            && self.user.as_ref().is_none_or(|user| view.actor.user.name.as_ref() == Some(user))
            && (!self.denied || view.is_denied())
            && (!self.writes || view.is_write())
    }
}
