//! Scans what leaves a sandbox and what enters it, by the field `scanner` of its levels.
//!
//! Of all levels with a scanner the strictest action counts for each finding. What is blocked leaves no trace in the memory of
//! earlier messages, so that the next message is not judged by it.

mod frames;
mod memory;
mod message;
mod stream;

use std::borrow::Borrow;
use std::sync::OnceLock;

use http::HeaderMap;
use http::header;
use hutch_policy::{Destination, Level, Mode, ScanAction, ScanRules, ScannerRules, scanners};
use hutch_scan::{At, Direction, Finding, Fingerprint, Kind, Location, Scanner, Severity, State};

use crate::credentials::{Issued, Set};
use crate::finding::Found;

pub(crate) use frames::Frames;
pub(crate) use memory::{Memory, SharedTalk};
pub(crate) use message::{compression, is_events, is_message};
pub(crate) use stream::{Passing, Watched};

/// Headers whose values have a fixed form, or that a server sets to be sent back to it.
const PLAIN: [header::HeaderName; 8] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::DATE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_ACCEPT,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::SET_COOKIE,
];
/// Maximum headers that are also scanned as one text.
const JOINED: usize = 20;

/// Returns the rules of the scanner, which are read at the first use.
pub(crate) fn scanner() -> &'static Scanner {
    static SCANNER: OnceLock<Scanner> = OnceLock::new();
    SCANNER.get_or_init(Scanner::builtin)
}

/// Actions of the levels of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    rules: Vec<(Mode, ScannerRules)>,
    /// Placeholders of credentials, which are worth nothing.
    placeholders: Vec<Fingerprint>,
}

/// Outcome for a text.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// It is refused.
    pub(crate) blocked: Option<Found>,
    /// These are replaced.
    pub(crate) redacted: Vec<Finding>,
    /// These are recorded, and pass.
    pub(crate) logged: Vec<Found>,
}

impl Judged {
    /// Blocks what cannot be replaced.
    pub(crate) fn refuse_redacted(mut self, direction: Direction) -> Judged {
        if self.blocked.is_none() {
            self.blocked = self.redacted.first().map(|finding| Found::new(direction, finding));
        }
        self
    }

    fn add(&mut self, other: Judged) {
        self.blocked = self.blocked.take().or(other.blocked);
        self.redacted.extend(other.redacted);
        self.logged.extend(other.logged);
    }
}

impl Scan {
    /// Returns what the levels say about a destination, or about standard input and output; `None` if nothing is scanned.
    pub(crate) fn of<L: Borrow<Level>>(levels: &[L], destination: Option<&Destination>) -> Option<Scan> {
        let found: Vec<_> =
            scanners(levels, destination).map(|(level, rules)| (level.mode, rules.clone())).collect();
        (!found.is_empty()).then_some(Scan { rules: found, placeholders: Vec::new() })
    }

    /// Ignores the placeholders of these credentials.
    pub(crate) fn ignoring(mut self, credentials: &Set) -> Scan {
        let fingerprint = |one: &Issued| Fingerprint::of(one.placeholder.as_bytes());
        self.placeholders = credentials.0.iter().map(fingerprint).collect();
        self
    }

    /// Returns true if something that enters may be held back or changed.
    pub(crate) fn judges_inbound(&self) -> bool {
        let strict = |action| action > ScanAction::Log;
        let judges = |(mode, rules): &(Mode, ScannerRules)| {
            *mode == Mode::Enforce && (strict(rules.inbound) || strict(rules.injection))
        };
        self.rules.iter().any(judges)
    }

    /// Returns true if something may be replaced.
    pub(crate) fn redacts(&self, direction: Direction) -> bool {
        let of = |rules: &ScannerRules| match direction {
            Direction::Outbound => rules.outbound,
            Direction::Inbound => rules.inbound,
        };
        self.rules.iter().any(|(mode, rules)| *mode == Mode::Enforce && of(rules) == ScanAction::Redact)
    }

    /// Returns true if what leaves must be refused when it cannot be read.
    pub(crate) fn blocks(&self, direction: Direction) -> bool {
        let of = |rules: &ScannerRules| match direction {
            Direction::Outbound => rules.outbound,
            Direction::Inbound => rules.inbound.max(rules.injection),
        };
        self.rules.iter().any(|(mode, rules)| *mode == Mode::Enforce && of(rules) > ScanAction::Log)
    }

    /// Returns the strictest action for a finding; `None` if no level has one.
    fn action(&self, direction: Direction, finding: &Finding) -> Option<ScanAction> {
        if finding.severity == Severity::Low {
            return None;
        }
        let set = match finding.kind {
            Kind::Secret => Some(ScanRules::Secrets),
            Kind::Pii => Some(ScanRules::Pii),
            Kind::Financial => Some(ScanRules::Financial),
            Kind::Injection => Some(ScanRules::Injection),
            Kind::Shell => Some(ScanRules::Shell),
            Kind::Waf => Some(ScanRules::Waf),
            _ => None,
        };
        let having = self.rules.iter().filter(|(_, rules)| set.is_none_or(|set| rules.has(set)));
        let action = |rules: &ScannerRules| match (direction, finding.kind) {
            (Direction::Outbound, _) => rules.outbound,
            (Direction::Inbound, Kind::Secret | Kind::Credential | Kind::Pii | Kind::Financial) => {
                rules.inbound
            }
            (Direction::Inbound, _) => rules.injection,
        };
        having
            .map(|(mode, rules)| match mode {
                Mode::Enforce => action(rules),
                Mode::Observe => ScanAction::Log,
            })
            .max()
    }

    /// Decides about findings.
    pub(crate) fn judge(&self, direction: Direction, findings: Vec<Finding>) -> Judged {
        let mut judged = Judged::default();
        for finding in findings {
            if self.placeholders.contains(&finding.fingerprint) {
                continue;
            }
            match self.action(direction, &finding) {
                None => {}
                Some(ScanAction::Log) => judged.logged.push(Found::new(direction, &finding)),
                Some(ScanAction::Redact) if finding.range.is_some() => judged.redacted.push(finding),
                Some(ScanAction::Redact | ScanAction::Block) => {
                    judged.blocked.get_or_insert_with(|| Found::new(direction, &finding));
                }
            }
        }
        judged
    }

    /// Scans headers. What would be replaced is refused.
    pub(crate) fn headers(&self, direction: Direction, headers: &HeaderMap) -> Judged {
        let mut findings = Vec::new();
        let mut state = State::new(direction);
        let mut scan = |name: &str, text: &[u8]| {
            findings.extend(scanner().scan_whole(&mut state, &Location::named(At::Header, name), text));
        };
        for (name, value) in headers.iter().filter(|(name, _)| !PLAIN.contains(name)) {
            scan(name.as_str(), value.as_bytes());
        }
        if direction == Direction::Outbound {
            let own: Vec<_> = headers.iter().filter(|(name, _)| name.as_str().starts_with("x-")).collect();
            if (2..=JOINED).contains(&own.len()) {
                let text: Vec<u8> = own.iter().flat_map(|(_, value)| value.as_bytes()).copied().collect();
                scan("", &text);
            }
            let names: Vec<&str> =
                own.iter().map(|(name, _)| &name.as_str()[2..]).filter(|name| name.len() >= 16).collect();
            if !names.is_empty() {
                scan("", names.join("\n").as_bytes());
            }
        }
        self.judge(direction, findings).refuse_redacted(direction)
    }
}

#[cfg(test)]
mod tests;
