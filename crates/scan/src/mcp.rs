//! Messages of MCP and A2A: arguments, results and definitions scanned as such; definitions pinned; calls followed.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::credential::Credentials;
use crate::finding::{At, Direction, Finding, Fingerprint, Kind, Location, Severity};
use crate::scanner::Scanner;
use crate::sequence::{Calls, Sequences};
use crate::state::State;
use crate::text;
use crate::view::View;

/// Maximum pinned definitions.
const PINS: usize = 4096;
/// Maximum messages in one body.
const MESSAGES: usize = 256;

/// Definitions of tools and agents, each with the fingerprint of its first content.
#[derive(Debug, Clone, Default)]
pub struct Pins(BTreeMap<String, Fingerprint>);

impl Pins {
    /// Pins a definition, or compares it with its pin. A definition that differs is a finding; the pin stays.
    fn compare(&mut self, kind: &str, name: &str, definition: &Value) -> Option<Finding> {
        let fingerprint = Fingerprint::of(canonical(definition).as_bytes());
        let key = format!("{kind}:{name}");
        let rule = match self.0.get(&key) {
            Some(pinned) if *pinned == fingerprint => return None,
            Some(_) => "definition-changed",
            None if self.0.len() >= PINS => "definition-unpinned",
            None => {
                let twin = self.0.keys().any(|known| folded(known) == folded(&key));
                self.0.insert(key, fingerprint);
                if !twin {
                    return None;
                }
                "definition-twin"
            }
        };
        Some(Finding {
            rule: rule.to_owned(),
            kind: Kind::Drift,
            severity: Severity::High,
            at: At::ToolDefinition,
            name: name.to_owned(),
            range: None,
            steps: Vec::new(),
            fingerprint,
        })
    }

    /// Accepts the next definition of a name, whatever it is.
    pub fn forget(&mut self, name: &str) {
        self.0.retain(|key, _| key.split_once(':').is_none_or(|(_, known)| known != name));
    }

    /// Returns all pins.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Fingerprint)> {
        self.0.iter().map(|(name, fingerprint)| (name.as_str(), *fingerprint))
    }
}

impl<S: Into<String>> FromIterator<(S, Fingerprint)> for Pins {
    fn from_iter<I: IntoIterator<Item = (S, Fingerprint)>>(pins: I) -> Pins {
        Pins(pins.into_iter().map(|(name, fingerprint)| (name.into(), fingerprint)).collect())
    }
}

/// Returns a name as it looks to a reader.
fn folded(name: &str) -> String {
    let view = text::normalized(&View::root(name.as_bytes()));
    let plain =
        view.map_or_else(|| name.to_owned(), |view| String::from_utf8_lossy(&view.bytes).into_owned());
    plain.to_ascii_lowercase().replace(['-', '_', ' ', '.'], "").replace('l', "1").replace('o', "0")
}

/// Returns JSON with sorted names.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, String> =
                fields.iter().map(|(name, value)| (name, canonical(value))).collect();
            let fields: Vec<_> = sorted
                .into_iter()
                .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        plain => plain.to_string(),
    }
}

/// State of one connection to a server of MCP or to an agent. A clone is what a caller returns to if it does not pass a message
/// on after all.
#[derive(Debug, Clone)]
pub struct Session {
    outbound: State,
    inbound: State,
    /// Calls so far. A caller with several conversations keeps those of each.
    pub calls: Calls,
    /// Pinned definitions. The caller may keep them for the next session with the same server.
    pub pins: Pins,
}

impl Session {
    /// Returns a session whose bytes are scanned in these states.
    pub fn new(outbound: State, inbound: State, pins: Pins) -> Session {
        Session { outbound, inbound, calls: Calls::default(), pins }
    }

    /// Sets the exact values that are searched in what leaves.
    pub fn set_credentials(&mut self, credentials: Option<Arc<Credentials>>) {
        self.outbound.set_credentials(credentials);
    }

    /// Scans one body: a message, a batch, or events of a stream (`data:` lines). Other text is scanned as a body.
    pub fn scan(&mut self, scanner: &Scanner, direction: Direction, body: &[u8]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let messages = messages(body);
        if messages.is_empty() {
            return self.part(scanner, direction, At::Body, "", body);
        }
        for message in &messages {
            match direction {
                Direction::Outbound => self.outbound(scanner, message, &mut findings),
                Direction::Inbound => self.inbound(scanner, message, &mut findings),
            }
        }
        findings
    }

    fn part(
        &mut self,
        scanner: &Scanner,
        direction: Direction,
        at: At,
        name: &str,
        bytes: &[u8],
    ) -> Vec<Finding> {
        let state = match direction {
            Direction::Outbound => &mut self.outbound,
            Direction::Inbound => &mut self.inbound,
        };
        scanner.scan_whole(state, &Location::named(at, name), bytes)
    }

    fn outbound(&mut self, scanner: &Scanner, message: &Value, findings: &mut Vec<Finding>) {
        let parameters = message.get("params").or_else(|| message.get("result")).unwrap_or(message);
        let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
        let tool = parameters.get("name").and_then(Value::as_str).filter(|_| method == "tools/call");
        let name = tool.unwrap_or(method);
        let arguments = parameters.get("arguments").filter(|_| tool.is_some()).unwrap_or(parameters);
        let text = arguments.to_string();
        findings.extend(self.part(scanner, Direction::Outbound, At::ToolArgs, name, text.as_bytes()));
        if tool.is_some() || method == "message/send" || method == "message/stream" {
            findings.extend(self.calls.observe(Sequences::builtin(), name, &text));
        }
    }

    fn inbound(&mut self, scanner: &Scanner, message: &Value, findings: &mut Vec<Finding>) {
        let result = message.get("result").or_else(|| message.get("params")).unwrap_or(message);
        let mut definitions = Vec::new();
        for (kind, field) in [("tool", "tools"), ("prompt", "prompts"), ("resource", "resources")] {
            for definition in result.get(field).and_then(Value::as_array).into_iter().flatten() {
                let name = definition.get("name").or_else(|| definition.get("uri"));
                definitions.push((kind, name.and_then(Value::as_str).unwrap_or_default(), definition));
            }
        }
        if is_card(result) {
            let name = result.get("name").and_then(Value::as_str).unwrap_or_default();
            definitions.push(("agent", name, result));
        }
        for (kind, name, definition) in &definitions {
            findings.extend(self.pins.compare(kind, name, definition));
            let text = definition.to_string();
            findings.extend(self.part(
                scanner,
                Direction::Inbound,
                At::ToolDefinition,
                name,
                text.as_bytes(),
            ));
        }
        if definitions.is_empty() {
            let text = message.to_string();
            findings.extend(self.part(scanner, Direction::Inbound, At::ToolResult, "", text.as_bytes()));
        }
    }
}

/// Reports whether an object is the card of an agent.
fn is_card(value: &Value) -> bool {
    let has = |name| value.get(name).is_some();
    has("name") && has("skills") && (has("url") || has("capabilities") || has("supportedInterfaces"))
}

/// Reads the messages of a body; empty if it is not JSON.
fn messages(body: &[u8]) -> Vec<Value> {
    let mut messages: Vec<Value> = match serde_json::from_slice(body) {
        Ok(Value::Array(batch)) => batch,
        Ok(one) => vec![one],
        Err(_) => {
            let text = String::from_utf8_lossy(body);
            let data = text.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
            data.filter_map(|data| serde_json::from_str(data).ok()).collect()
        }
    };
    messages.retain(|message| message.is_object() || message.is_array());
    messages.truncate(MESSAGES);
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(session: &mut Session, direction: Direction, body: &str) -> Vec<String> {
        let scanner = Scanner::new(Vec::new()).unwrap();
        session.scan(&scanner, direction, body.as_bytes()).into_iter().map(|finding| finding.rule).collect()
    }

    fn session() -> Session {
        Session::new(State::new(Direction::Outbound), State::new(Direction::Inbound), Pins::default())
    }

    #[test]
    fn changed_definition_is_a_finding_until_it_is_forgotten() {
        let list = |text: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"name":"a","description":"{text}"}}]}}}}"#
            )
        };
        let mut session = session();
        let none: [&str; 0] = [];
        assert_eq!(rules(&mut session, Direction::Inbound, &list("adds")), none);
        assert_eq!(rules(&mut session, Direction::Inbound, &list("adds")), none);
        assert_eq!(rules(&mut session, Direction::Inbound, &list("sends")), ["definition-changed"]);
        session.pins.forget("a");
        assert_eq!(rules(&mut session, Direction::Inbound, &list("sends")), none);
    }

    #[test]
    fn order_of_fields_is_no_change_and_a_twin_is_a_finding() {
        let mut session = session();
        let list = |tools: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{tools}]}}}}"#);
        let none: [&str; 0] = [];
        assert_eq!(
            rules(&mut session, Direction::Inbound, &list(r#"{"name":"read_file","x":1,"y":2}"#)),
            none
        );
        assert_eq!(
            rules(&mut session, Direction::Inbound, &list(r#"{"y":2,"x":1,"name":"read_file"}"#)),
            none
        );
        let found = rules(&mut session, Direction::Inbound, &list(r#"{"name":"rеad_file"}"#));
        assert!(found.contains(&"definition-twin".to_owned()), "{found:?}");
    }
}
