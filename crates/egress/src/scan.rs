//! Scans what leaves a sandbox and what enters it, by the field `scanner` of its levels.
//!
//! Of all levels with a scanner the strictest action counts for each finding. What is blocked leaves no trace in the memory of
//! earlier messages, so that the next message is not judged by it.

mod elsewhere;
mod frames;
mod memory;
mod message;
mod stream;

use http::HeaderMap;
use http::header;
use hutch_policy::{Destination, Host, Level, Mode, Moment, ScanAction, ScannerRules, scanners};
use hutch_scan::{At, Credentials as Exact, Direction, Finding, Fingerprint, Kind, Location, State};
use hutch_screen::{Acting, Found, strictest};
use std::borrow::Borrow;
use std::collections::HashSet;
use std::sync::Arc;

use crate::credentials::{Issued, Set};
use crate::refusal::Reason;

pub(crate) use frames::Frames;
pub(crate) use hutch_screen::scanner;
pub(crate) use memory::{Conversations, Memory, SharedTalk};
pub(crate) use message::{compression, is_events, is_message};
pub(crate) use stream::{Passing, Watched};

/// Headers whose values have a fixed form, which was checked.
const PLAIN: [header::HeaderName; 4] =
    [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION];
/// Headers of answers that are not scanned either: they have a fixed form, or are to be sent back to the server.
const OF_ANSWERS: [header::HeaderName; 3] = [header::DATE, header::SEC_WEBSOCKET_ACCEPT, header::SET_COOKIE];
/// Bytes that are scanned on the thread that serves connections. More are scanned on another one: hostile bytes can take 100
/// times as long as others.
const AT_ONCE: usize = 4 << 10;
/// Maximum headers that are also scanned as one text.
const JOINED: usize = 20;

/// Reports whether bytes are scanned on the thread that serves connections: they are few, and do not begin like compressed ones,
/// which are 64 times as many when they are decompressed.
pub(crate) fn is_quick(bytes: &[u8]) -> bool {
    bytes.len() <= AT_ONCE && hutch_scan::magic(bytes).is_none()
}

/// Actions of the levels of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    acting: Vec<Acting>,
    /// Host of the destination.
    host: Option<Host>,
    /// Placeholders of credentials, which are worth nothing.
    placeholders: Vec<Fingerprint>,
    /// Values of credentials, which may not leave.
    exact: Option<Arc<Exact>>,
    /// Findings of those that may go to the destination.
    permitted: HashSet<String>,
}

/// Outcome for a text.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// It is refused.
    pub(crate) blocked: Option<Found>,
    /// These are replaced.
    pub(crate) redacted: Vec<Finding>,
    /// These are recorded, and pass, as they are or replaced.
    pub(crate) passed: Vec<Reason>,
}

impl Judged {
    fn add(&mut self, other: Judged) {
        self.blocked = self.blocked.take().or(other.blocked);
        self.redacted.extend(other.redacted);
        self.passed.extend(other.passed);
    }
}

impl Scan {
    /// Returns what the levels say about a destination, or about standard input and output; `None` if nothing is scanned.
    pub(crate) fn of<L: Borrow<Level>>(
        levels: &[L],
        destination: Option<(&Destination, &Moment<'_>)>,
    ) -> Option<Scan> {
        let acting: Vec<_> =
            scanners(levels, destination).map(|(level, rules)| Acting::of(level, rules)).collect();
        let host = destination.map(|(destination, _)| destination.host.clone());
        let (placeholders, exact, permitted) = (Vec::new(), None, HashSet::new());
        (!acting.is_empty()).then_some(Scan { acting, host, placeholders, exact, permitted })
    }

    /// Blocks the values of these credentials in what leaves, unless they may go to the destination, and ignores their
    /// placeholders.
    pub(crate) fn with_credentials(mut self, credentials: &Set, destination: Option<&Destination>) -> Scan {
        let fingerprint = |one: &Issued| Fingerprint::of(one.placeholder.as_bytes());
        self.placeholders = credentials.issued.iter().map(fingerprint).collect();
        self.exact = credentials.exact();
        let own = destination.into_iter().flat_map(|destination| credentials.redacted(destination));
        self.permitted = own.map(|one| format!("credential:{}", one.name)).collect();
        self
    }

    /// Returns the state of a new scan.
    fn state(&self, direction: Direction) -> State {
        let mut state = State::new(direction);
        if direction == Direction::Outbound {
            state.set_credentials(self.exact.clone());
        }
        state
    }

    /// Returns true if something that enters may be held back or changed.
    pub(crate) fn judges_inbound(&self) -> bool {
        let strict = |action| action > ScanAction::Log;
        self.enforcing().any(|rules| strict(rules.inbound) || strict(rules.injection))
    }

    /// Returns true if something may be replaced.
    pub(crate) fn redacts(&self, direction: Direction) -> bool {
        let of = |rules: &ScannerRules| match direction {
            Direction::Outbound => rules.outbound,
            Direction::Inbound => rules.inbound,
        };
        self.enforcing().any(|rules| of(rules) == ScanAction::Redact)
    }

    /// Returns true if what leaves must be refused when it cannot be read.
    pub(crate) fn blocks(&self, direction: Direction) -> bool {
        let of = |rules: &ScannerRules| match direction {
            Direction::Outbound => rules.outbound,
            Direction::Inbound => rules.inbound.max(rules.injection),
        };
        self.enforcing().any(|rules| of(rules) > ScanAction::Log)
    }

    /// Returns true if values of credentials must not leave, whatever the actions of the policies are.
    pub(crate) fn protects_values(&self, direction: Direction) -> bool {
        direction == Direction::Outbound && self.exact.is_some() && self.enforcing().next().is_some()
    }

    fn enforcing(&self) -> impl Iterator<Item = &ScannerRules> {
        self.acting.iter().filter(|one| one.mode == Mode::Enforce).map(|one| &one.rules)
    }

    /// Returns the strictest action for a finding, and the policy that has it; `None` if no level has one.
    fn action(&self, direction: Direction, finding: &Finding) -> Option<(ScanAction, &str)> {
        let host = match &self.host {
            Some(Host::Name(name)) => Some(name),
            _ => None,
        };
        strictest(&self.acting, finding, host, |rules| {
            Some(match (direction, finding.kind) {
                (Direction::Outbound, _) => rules.outbound,
                (Direction::Inbound, Kind::Secret | Kind::Credential | Kind::Pii | Kind::Financial) => {
                    rules.inbound
                }
                (Direction::Inbound, Kind::TooComplex) => rules.inbound.max(rules.injection),
                (Direction::Inbound, _) => rules.injection,
            })
        })
    }

    /// Blocks what cannot be replaced.
    pub(crate) fn refuse_redacted(&self, direction: Direction, mut judged: Judged) -> Judged {
        if let (None, Some(finding)) = (&judged.blocked, judged.redacted.first()) {
            judged.blocked = Some(self.found(direction, finding));
            judged.passed.retain(|reason| !matches!(reason, Reason::Redacted(_)));
        }
        judged
    }

    fn found(&self, direction: Direction, finding: &Finding) -> Found {
        let first = self.acting.first().map_or("", |one| &one.policy);
        let policy = self.action(direction, finding).map_or(first, |(_, policy)| policy);
        Found::new(direction, finding, policy)
    }

    /// Returns the records of what is replaced, one for each rule and value.
    fn replaced(&self, direction: Direction, findings: &[Finding]) -> Vec<Reason> {
        let mut seen = HashSet::new();
        let new = findings.iter().filter(|finding| seen.insert((&finding.rule, finding.fingerprint)));
        new.map(|finding| Reason::Redacted(self.found(direction, finding).into())).collect()
    }

    /// Decides about findings.
    pub(crate) fn judge(&self, direction: Direction, findings: Vec<Finding>) -> Judged {
        let mut judged = Judged::default();
        for finding in findings {
            if self.placeholders.contains(&finding.fingerprint) || self.permitted.contains(&finding.rule) {
                continue;
            }
            if finding.kind == Kind::Credential && self.enforcing().next().is_some() {
                // Whatever the actions of the policies are.
                judged.blocked.get_or_insert_with(|| self.found(direction, &finding));
                continue;
            }
            let Some((action, policy)) = self.action(direction, &finding) else { continue };
            match action {
                ScanAction::Log => {
                    judged.passed.push(Reason::FoundOnly(Found::new(direction, &finding, policy).into()));
                }
                ScanAction::Redact if finding.range.is_some() => judged.redacted.push(finding),
                ScanAction::Redact | ScanAction::Block => {
                    judged.blocked.get_or_insert_with(|| Found::new(direction, &finding, policy));
                }
            }
        }
        judged
    }

    /// Scans headers. What would be replaced is refused.
    pub(crate) fn headers(&self, direction: Direction, headers: &HeaderMap) -> Judged {
        let mut findings = Vec::new();
        let mut state = self.state(direction);
        let mut scan = |name: &str, text: &[u8]| {
            findings.extend(scanner().scan_whole(&mut state, &Location::named(At::Header, name), text));
        };
        let plain = match direction {
            Direction::Outbound => &PLAIN[..],
            Direction::Inbound => &[&PLAIN[..], &OF_ANSWERS].concat(),
        };
        for (name, value) in headers.iter().filter(|(name, _)| !plain.contains(name)) {
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
        self.refuse_redacted(direction, self.judge(direction, findings))
    }
}

#[cfg(test)]
mod tests;
