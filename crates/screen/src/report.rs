//! Reports of findings in output: lines of the log, and what an audit log records.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hutch_policy::{Door, ScanAction};

use crate::found::Found;

/// Maximum rules and actions of one output that are counted.
const COUNTED: usize = 1000;
/// Further findings of a rule after which their number is recorded. Then ten times as many.
const FURTHER: u32 = 10;

/// Where output comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Namespace and name of the Pod.
    pub pod: Arc<str>,
    /// Container, or port; empty if it is not known.
    pub part: Arc<str>,
}

/// Finding in output, for an audit log.
#[derive(Debug, Clone, Copy)]
pub struct Sighting<'a> {
    /// Where the output comes from.
    pub origin: &'a Origin,
    /// Way of the output.
    pub door: Door,
    /// The finding, or the first one of several.
    pub found: &'a Found,
    /// Action of the policies.
    pub action: ScanAction,
    /// Number of further findings of the same rule in the same output, with the same action. `None` for the first one.
    pub further: Option<u32>,
}

/// Audit log that receives findings in output.
pub trait Findings: Send + Sync + 'static {
    /// Records a finding, without waiting.
    fn record(&self, sighting: &Sighting<'_>);
}

/// Audit log, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Recorder(pub(crate) Option<Arc<dyn Findings>>);

impl fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Recorder").field(&self.0.is_some()).finish()
    }
}

/// Findings of one output: the first one of a rule is recorded, and the number of further ones as it grows and at the end.
#[derive(Debug)]
pub(crate) struct Tally {
    recorder: Recorder,
    origin: Origin,
    door: Door,
    rules: BTreeMap<(String, ScanAction), Counted>,
}

#[derive(Debug)]
struct Counted {
    found: Found,
    /// Further findings that are not recorded yet, and their number that is.
    waiting: u32,
    next: u32,
}

impl Tally {
    pub(crate) fn new(recorder: Recorder, origin: Origin, door: Door) -> Tally {
        Tally { recorder, origin, door, rules: BTreeMap::new() }
    }

    /// Counts a finding.
    pub(crate) fn add(&mut self, found: &Found, action: ScanAction) {
        if self.recorder.0.is_none() {
            return;
        }
        let key = (found.rule.clone(), action);
        if let Some(counted) = self.rules.get_mut(&key) {
            counted.waiting = counted.waiting.saturating_add(1);
            if counted.waiting >= counted.next {
                counted.next = counted.next.saturating_mul(10);
                let further = std::mem::take(&mut counted.waiting);
                let found = counted.found.clone();
                self.record(&found, action, Some(further));
            }
            return;
        }
        if self.rules.len() < COUNTED {
            self.record(found, action, None);
            self.rules.insert(key, Counted { found: found.clone(), waiting: 0, next: FURTHER });
        }
    }

    /// Records the numbers that are not recorded yet.
    fn end(&mut self) {
        for ((_, action), counted) in std::mem::take(&mut self.rules) {
            if counted.waiting > 0 {
                self.record(&counted.found, action, Some(counted.waiting));
            }
        }
    }

    fn record(&self, found: &Found, action: ScanAction, further: Option<u32>) {
        if let Some(log) = &self.recorder.0 {
            let (origin, door) = (&self.origin, self.door);
            log.record(&Sighting { origin, door, found, action, further });
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes a finding to the log of the program.
pub(crate) fn report(origin: &Origin, door: Door, found: &Found, action: ScanAction) {
    let decision = match action {
        ScanAction::Log => "observe",
        ScanAction::Redact => "redact",
        ScanAction::Block => "deny",
    };
    let finding = serde_json::to_string(found).unwrap_or_default();
    let (pod, part, door) = (&*origin.pod, &*origin.part, door.name());
    tracing::warn!(decision, pod, part, door, policy = &*found.policy, %finding, "the scanner found something");
}
