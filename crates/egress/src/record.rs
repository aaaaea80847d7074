//! Records of decisions: one for each connection that is only passed on, and one for each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use hutch_policy::{Call, Destination};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;

use crate::ground::Ground;
use crate::refusal::{Denial, Reason};
use hutch_screen::Found;

/// Maximum characters of a text in a line.
const TEXT: usize = 512;
/// Maximum calls in a line.
const CALLS: usize = 8;
/// Maximum calls in a message, and maximum characters of each name of a method or a tool.
const NAMED: usize = 3;
const NAME: usize = 100;

/// Outcome of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is allowed.
    Allowed,
    /// It is refused.
    Denied,
    /// A level that only observes would have refused it.
    Observed,
    /// It is allowed, but the scanner has replaced a part of it.
    Redacted,
    /// It is allowed, but the destination cannot be reached.
    Failed,
}

impl Outcome {
    /// Returns true if the scanner or a level that only observes lets it pass.
    pub(crate) fn passes(self) -> bool {
        matches!(self, Outcome::Observed | Outcome::Redacted)
    }

    fn as_str(self) -> &'static str {
        match self {
            Outcome::Allowed => "allow",
            Outcome::Denied => "deny",
            Outcome::Observed => "observe",
            Outcome::Redacted => "redact",
            Outcome::Failed => "fail",
        }
    }
}

/// All outcomes, in their order.
const OUTCOMES: [Outcome; 5] =
    [Outcome::Allowed, Outcome::Denied, Outcome::Observed, Outcome::Redacted, Outcome::Failed];

/// A request that is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) destination: &'a Destination,
    pub(crate) method: &'a str,
    /// Without the query.
    pub(crate) path: &'a str,
    pub(crate) calls: &'a [Call],
}

/// A decision.
#[derive(Debug, Clone)]
pub struct Record<'a> {
    /// Outcome.
    pub outcome: Outcome,
    /// Host and port, as the client named them.
    pub destination: &'a str,
    /// Method of HTTP, of a request.
    pub method: Option<&'a str>,
    /// Path of a request, without its query.
    pub path: Option<&'a str>,
    /// Calls of JSON-RPC in its body, if a rule judges them.
    pub calls: &'a [Call],
    /// Level that decides.
    pub level: Option<&'a str>,
    /// Rule that decides.
    pub rule: Option<&'a str>,
    /// Reason, unless it is allowed.
    pub reason: Option<String>,
    /// Finding of the scanner.
    pub finding: Option<&'a Found>,
    /// Name of a credential that may not be used.
    pub credential: Option<&'a str>,
    /// Attempt to carry data out, which the scanner did not find.
    pub alarm: Option<Alarm>,
}

/// Attempt to carry data out by a way that no rule of the scanner describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Alarm {
    /// The placeholder of a credential stands where its value may not.
    MisplacedCredential,
    /// There are too many different names.
    TooManyNames,
}

/// A decision, for another process. Each text is bounded, and has no control characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// Outcome.
    pub outcome: Outcome,
    /// Host and port, as the sandbox named them.
    pub destination: String,
    /// Method of HTTP, of a request.
    pub method: Option<String>,
    /// Path of a request, without its query.
    pub path: Option<String>,
    /// Calls of JSON-RPC in its body, if a rule judges them.
    pub calls: Vec<String>,
    /// Level that decides.
    pub level: Option<String>,
    /// Rule that decides.
    pub rule: Option<String>,
    /// Reason, unless it is allowed.
    pub reason: Option<String>,
    /// Finding of the scanner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finding: Option<Box<Found>>,
    /// Name of a credential that may not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// Attempt to carry data out, which the scanner did not find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm: Option<Alarm>,
}

/// Receives each decision.
pub type Recorder = Arc<dyn Fn(&Record<'_>) + Send + Sync>;

impl<'a> Record<'a> {
    /// Returns the record of a refusal.
    pub(crate) fn refused(destination: &'a str, asked: Option<&Asked<'a>>, reason: &'a Reason) -> Record<'a> {
        let (level, rule) = match reason {
            Reason::Denied(Denial { level, rule, .. })
            | Reason::Name(Denial { level, rule, .. })
            | Reason::Observed(Denial { level, rule, .. })
            | Reason::ObservedName(Denial { level, rule, .. }) => {
                (Some(level.as_str()).filter(|level| !level.is_empty()), rule.as_deref())
            }
            Reason::Closed(_, by) => (by.level(), by.rule.as_deref()),
            Reason::Budget(level, _) => (Some(level.as_str()), None),
            _ => (reason.found().map(|found| &*found.policy).filter(|policy| !policy.is_empty()), None),
        };
        let finding = reason.found();
        let credential = match reason {
            Reason::Credential(name, _) => Some(name.as_str()),
            _ => None,
        };
        let alarm = match reason {
            Reason::Credential(..) => Some(Alarm::MisplacedCredential),
            Reason::Exhausted(_) => Some(Alarm::TooManyNames),
            _ => None,
        };
        let record = Record { finding, credential, alarm, ..Record::of(destination, asked) };
        Record { outcome: outcome(reason), level, rule, reason: Some(reason.to_string()), ..record }
    }

    /// Returns the record of what a ground allows.
    pub(crate) fn allowed(
        destination: &'a str,
        asked: Option<&Asked<'a>>,
        ground: Option<&'a Ground>,
    ) -> Record<'a> {
        let level = ground.and_then(Ground::level);
        let rule = ground.and_then(|ground| ground.rule.as_deref());
        Record { level, rule, ..Record::of(destination, asked) }
    }

    fn of(destination: &'a str, asked: Option<&Asked<'a>>) -> Record<'a> {
        Record {
            outcome: Outcome::Allowed,
            destination,
            method: asked.map(|asked| asked.method),
            path: asked.map(|asked| asked.path),
            calls: asked.map(|asked| asked.calls).unwrap_or_default(),
            level: None,
            rule: None,
            reason: None,
            finding: None,
            credential: None,
            alarm: None,
        }
    }

    /// Returns the record for another process.
    pub(crate) fn decided(&self) -> Decided {
        let text = |text: Option<&str>| text.map(plain);
        Decided {
            outcome: self.outcome,
            destination: plain(self.destination),
            method: text(self.method),
            path: text(self.path),
            calls: self.calls.iter().take(CALLS).map(|call| plain(&shown(call))).collect(),
            level: text(self.level),
            rule: text(self.rule),
            reason: text(self.reason.as_deref()),
            finding: self.finding.cloned().map(Box::new),
            credential: text(self.credential),
            alarm: self.alarm,
        }
    }

    /// Returns the record as one line of JSON, with the time of now. Each text is bounded, and has no control characters.
    pub fn line(&self) -> String {
        self.line_at(OffsetDateTime::now_utc())
    }

    fn line_at(&self, time: OffsetDateTime) -> String {
        let mut fields = Map::new();
        let mut add = |name: &str, text: Option<&str>| {
            if let Some(text) = text {
                fields.insert(name.to_owned(), Value::String(plain(text)));
            }
        };
        add("time", Some(&timestamp(time)));
        add("decision", Some(self.outcome.as_str()));
        add("destination", Some(self.destination));
        add("method", self.method);
        add("path", self.path);
        add("policy", self.level);
        add("rule", self.rule);
        add("reason", self.reason.as_deref());
        if !self.calls.is_empty() {
            let calls = self.calls.iter().take(CALLS).map(|call| Value::String(plain(&shown(call))));
            fields.insert("calls".to_owned(), calls.collect());
        }
        if let Some(Ok(finding)) = self.finding.map(serde_json::to_value) {
            fields.insert("finding".to_owned(), finding);
        }
        Value::Object(fields).to_string()
    }
}

/// Returns the outcome that a reason stands for.
pub(crate) fn outcome(reason: &Reason) -> Outcome {
    match reason {
        Reason::Observed(_) | Reason::ObservedName(_) | Reason::FoundOnly(_) => Outcome::Observed,
        Reason::Redacted(_) => Outcome::Redacted,
        Reason::Unreachable(_) => Outcome::Failed,
        _ => Outcome::Denied,
    }
}

/// Returns the method and the tool of a call.
fn shown(call: &Call) -> String {
    match (&call.method, &call.tool) {
        (Some(method), Some(tool)) => format!("{method} {tool}"),
        (Some(method), None) => method.clone(),
        (None, _) => "answer".to_owned(),
    }
}

/// Returns the methods and tools of calls, for a message: of a batch, the first few.
pub(crate) fn named(calls: &[Call]) -> String {
    let one = |call: &Call| match (&call.method, &call.tool) {
        (Some(method), Some(tool)) => format!("{} {}", quoted(method), quoted(tool)),
        (Some(method), None) => quoted(method),
        (None, _) => "an answer".to_owned(),
    };
    let mut names: Vec<String> = calls.iter().take(NAMED).map(one).collect();
    if let Some(more) = calls.len().checked_sub(NAMED).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

/// Returns a name as it stands in a message. One that could be taken for other parts of the message is quoted and escaped.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let cut: String = name.chars().take(NAME).collect();
    let more = if cut.len() < name.len() { "..." } else { "" };
    match !cut.is_empty() && cut.chars().all(plain) {
        true => cut + more,
        false => format!("{cut:?}{more}"),
    }
}

/// Returns the text with control characters escaped, and others that a terminal could interpret.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for character in text.chars().take(TEXT) {
        let invisible =
            matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match character.is_control() || invisible {
            true => plain.extend(character.escape_unicode()),
            false => plain.push(character),
        }
    }
    plain
}

/// Returns a time as RFC 3339 writes it.
fn timestamp(time: OffsetDateTime) -> String {
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second, milli) = time.to_hms_milli();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Counters of everything that a process serves.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    connections: [AtomicU64; OUTCOMES.len()],
    requests: [AtomicU64; OUTCOMES.len()],
    sent: AtomicU64,
    received: AtomicU64,
    open: AtomicI64,
    full: AtomicU64,
}

/// An open connection, which is counted until this is dropped.
pub(crate) struct Open<'a>(&'a Counters);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Counters {
    pub(crate) fn count(&self, outcome: Outcome, is_request: bool) {
        let counters = if is_request { &self.requests } else { &self.connections };
        counters[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns a number that changes with each request, and with bytes of either direction.
    pub(crate) fn passed(&self) -> u64 {
        let all = self.requests.iter().chain([&self.sent, &self.received]);
        all.fold(0, |sum, counter| sum.wrapping_add(counter.load(Ordering::Relaxed)))
    }

    /// Counts a connection for which there was no descriptor.
    pub(crate) fn full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) -> Open<'_> {
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(self)
    }

    /// Returns the counters in the text format of Prometheus.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
            text.push_str(&format!("# HELP hutch_egress_{name} {help}\n# TYPE hutch_egress_{name} {kind}\n"));
            for (labels, value) in values {
                text.push_str(&format!("hutch_egress_{name}{labels} {value}\n"));
            }
        };
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let labels = OUTCOMES.map(|outcome| format!("{{decision=\"{}\"}}", outcome.as_str()));
        let by = |counters: &[AtomicU64; OUTCOMES.len()]| -> Vec<(&str, u64)> {
            labels.iter().map(String::as_str).zip(counters.iter().map(value)).collect()
        };
        metric(
            "connections_total",
            "counter",
            "Connections that are not read, by decision.",
            &by(&self.connections),
        );
        metric("requests_total", "counter", "Requests by decision.", &by(&self.requests));
        let bytes =
            [("{direction=\"out\"}", value(&self.sent)), ("{direction=\"in\"}", value(&self.received))];
        metric("bytes_total", "counter", "Bytes of bodies and of connections that are not read.", &bytes);
        let open = u64::try_from(self.open.load(Ordering::Relaxed)).unwrap_or(0);
        metric("open_connections", "gauge", "Open connections of clients.", &[("", open)]);
        let full = [("", value(&self.full))];
        metric("no_descriptor_total", "counter", "Connections refused for want of descriptors.", &full);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_one_line_of_json_without_control_characters() {
        let destination: Destination = "a.example".parse().unwrap();
        let path = format!("/\u{1b}[2J\n\u{85}\u{202e}{}", "x".repeat(10_000));
        let call =
            Call { method: Some("tools/call".into()), tool: Some("a\r\n".into()), arguments: Value::Null };
        let calls = vec![call; 100];
        let asked = Asked { destination: &destination, method: "GET", path: &path, calls: &calls };
        let reason = Reason::Denied(Denial { level: "team".into(), rule: Some("git".into()), unmet: None });
        let line =
            Record::refused("a.example:443", Some(&asked), &reason).line_at(OffsetDateTime::UNIX_EPOCH);
        assert!(!line.contains(char::is_control) && line.len() < 8192, "{line}");
        let json: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["time"], "1970-01-01T00:00:00.000Z");
        assert_eq!(
            (&json["decision"], &json["policy"], &json["rule"]),
            (&"deny".into(), &"team".into(), &"git".into())
        );
        assert_eq!(json["calls"].as_array().unwrap().len(), CALLS);
        assert!(json["path"].as_str().unwrap().starts_with("/\\u{1b}[2J\\u{a}\\u{85}\\u{202e}x"));
        let ground = Ground { level: "team".into(), rule: None };
        let line = Record::allowed("a.example:443", None, Some(&ground)).line_at(OffsetDateTime::UNIX_EPOCH);
        let json: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&json["decision"], json.get("path"), json.get("reason")), (&"allow".into(), None, None));
    }

    #[test]
    fn calls_in_a_message_are_few_bounded_and_escaped() {
        let call = |method: &str, tool: Option<&str>| Call {
            method: Some(method.into()),
            tool: tool.map(str::to_owned),
            arguments: Value::Null,
        };
        let tool = |tool: &str| named(&[call("tools/call", Some(tool))]);
        assert_eq!(tool("delete_all"), "tools/call delete_all");
        assert_eq!(named(&[call("tasks/get", None)]), "tasks/get");
        assert_eq!(tool("x): rule \"a\" allows"), r#"tools/call "x): rule \"a\" allows""#);
        assert_eq!(tool("a\u{1b}[2J\n\u{85}\u{202e}"), r#"tools/call "a\u{1b}[2J\n\u{85}\u{202e}""#);
        assert_eq!(tool(""), "tools/call \"\"");
        assert_eq!(tool(&"x".repeat(10_000)), format!("tools/call {}...", "x".repeat(NAME)));
        let batch = ["a", "b", "c", "d", "e"].map(|tool| call("tools/call", Some(tool)));
        assert_eq!(named(&batch), "tools/call a, tools/call b, tools/call c, 2 more");
        assert_eq!(named(&batch[..3]), "tools/call a, tools/call b, tools/call c");
        let longest = vec![call(&"\u{202e}".repeat(1000), Some(&"\u{202e}".repeat(1000))); 100];
        assert!(named(&longest).len() < 6000, "{}", named(&longest).len());
    }

    #[test]
    fn counters_are_metrics() {
        let counters = Counters::default();
        counters.count(Outcome::Denied, true);
        counters.sent(7);
        let open = counters.open();
        let text = counters.text();
        for line in [
            "hutch_egress_requests_total{decision=\"deny\"} 1\n",
            "hutch_egress_connections_total{decision=\"deny\"} 0\n",
            "hutch_egress_bytes_total{direction=\"out\"} 7\n",
            "hutch_egress_open_connections 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        drop(open);
        assert!(counters.text().contains("open_connections 0\n"));
    }
}
