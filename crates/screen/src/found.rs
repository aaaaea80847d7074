//! Findings of the scanner as they are reported: without the text that matched.

use std::fmt;

use hutch_scan::{At, Direction, Finding, Kind, Severity};
use serde::{Deserialize, Serialize};

/// Maximum characters of the name of a header or a tool.
const NAME: usize = 100;

/// A finding of the scanner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Id of the rule.
    pub rule: String,
    /// Kind of the rule.
    pub kind: Kind,
    /// Severity.
    pub severity: Severity,
    /// Direction of the bytes.
    pub direction: Direction,
    /// Part of the message.
    pub at: At,
    /// Name of the header or the tool; empty if the part has no name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Steps from the bytes to the text that matched, such as `base64 > gzip`; empty for the bytes themselves.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub view: String,
    /// Beginning of the SHA-256 of the text that matched.
    pub fingerprint: String,
    /// Policy whose action counts, which a line of the log has beside the finding; empty if something cannot be read.
    #[serde(skip)]
    pub policy: Box<str>,
}

impl Found {
    /// Returns a finding for which a policy has an action.
    pub fn new(direction: Direction, finding: &Finding, policy: &str) -> Found {
        Found {
            rule: finding.rule.clone(),
            kind: finding.kind,
            severity: finding.severity,
            direction,
            at: finding.at,
            name: plain(&finding.name),
            view: finding.view(),
            fingerprint: finding.fingerprint.to_string(),
            policy: policy.into(),
        }
    }

    /// Returns the finding that something cannot be read.
    pub fn unreadable(direction: Direction, at: At) -> Found {
        Found {
            rule: "too-complex".to_owned(),
            kind: Kind::TooComplex,
            severity: Severity::High,
            direction,
            at,
            name: String::new(),
            view: String::new(),
            fingerprint: String::new(),
            policy: Box::default(),
        }
    }
}

/// Returns a name that code inside chose, without what a terminal could interpret.
fn plain(name: &str) -> String {
    let plain = |c: &char| c.is_ascii_graphic() || *c == ' ';
    name.chars().take(NAME).map(|c| if plain(&c) { c } else { '?' }).collect()
}

fn part(at: At, direction: Direction) -> &'static str {
    match (at, direction) {
        (At::Url, _) => "URL",
        (At::Host, _) => "host name",
        (At::Header, _) => "header",
        (At::Body, Direction::Outbound) => "body",
        (At::Body, Direction::Inbound) => "body of the answer",
        (At::Frame, _) => "message",
        (At::ToolArgs, _) => "arguments",
        (At::ToolResult, _) => "result",
        (At::ToolDefinition, _) => "definition",
        (At::Output, _) => "output",
    }
}

impl fmt::Display for Found {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the scanner finds `{}` in the {}", self.rule, part(self.at, self.direction))?;
        if !self.name.is_empty() {
            write!(formatter, " {:?}", self.name)?;
        }
        if !self.view.is_empty() {
            write!(formatter, " ({})", self.view)?;
        }
        Ok(())
    }
}
