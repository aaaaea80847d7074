//! Messages of MCP and A2A: arguments, results and definitions scanned as such; definitions pinned; calls followed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::credential::Credentials;
use crate::finding::{At, Direction, Finding, Fingerprint, Kind, Location, Severity};
use crate::scanner::Scanner;
use crate::sequence::{Calls, Sequences};
use crate::state::State;
use crate::text;
use crate::view::View;

/// Maximum pinned definitions. Of each, some 100 bytes are kept.
const PINS: usize = 1024;
/// Maximum messages and definitions of a body that are scanned each by itself. The others are scanned together.
const PARTS: usize = 256;
/// UTF-8 with which a text may begin, and which readers ignore.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Methods of A2A that send a message.
const SENDS: [&str; 4] = ["message/send", "message/stream", "SendMessage", "SendStreamingMessage"];
/// Kinds of definitions, each with the field that lists them.
const LISTS: [(&str, &str); 3] = [("tool", "tools"), ("prompt", "prompts"), ("resource", "resources")];

/// Definitions of tools and agents, each with the fingerprint of its first content. A clone shares them until one changes.
#[derive(Debug, Clone, Default)]
pub struct Pins(Arc<Pinned>);

#[derive(Debug, Clone, Default)]
struct Pinned {
    /// By the fingerprint of kind and name: servers choose how long they are.
    all: BTreeMap<Fingerprint, Fingerprint>,
    /// Names as they look to a reader.
    folded: BTreeSet<Fingerprint>,
}

impl Pins {
    /// Pins a definition, or compares it with its pin. A definition that differs is a finding; the pin stays.
    fn compare(&mut self, kind: &str, name: &str, definition: &Value) -> Option<Finding> {
        let fingerprint = Fingerprint::of(canonical(definition).as_bytes());
        let [key, looks] =
            [name, &folded(name)].map(|name| Fingerprint::of(format!("{kind}:{name}").as_bytes()));
        let rule = match self.0.all.get(&key) {
            Some(pinned) if *pinned == fingerprint => return None,
            Some(_) => "definition-changed",
            None if self.0.all.len() >= PINS => "definition-unpinned",
            None => {
                let pinned = Arc::make_mut(&mut self.0);
                pinned.all.insert(key, fingerprint);
                if pinned.folded.insert(looks) {
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
        let messages = messages(body);
        match messages.is_empty() {
            true => self.part(scanner, direction, At::Body, "", body),
            false => self.scan_messages(scanner, direction, &messages),
        }
    }

    /// Scans the messages of one body.
    pub fn scan_messages(
        &mut self,
        scanner: &Scanner,
        direction: Direction,
        messages: &[Value],
    ) -> Vec<Finding> {
        let (mut findings, mut parts) = (Vec::new(), Parts { left: PARTS, rest: BTreeMap::new() });
        for message in messages {
            match direction {
                Direction::Outbound => self.outbound(scanner, message, &mut parts, &mut findings),
                Direction::Inbound => self.inbound(scanner, message, &mut parts, &mut findings),
            }
        }
        for (at, text) in parts.rest {
            findings.extend(self.part(scanner, direction, at, "", text.as_bytes()));
        }
        findings
    }

    /// Scans a part of a message by itself, or leaves it for later if there are too many.
    fn counted(
        &mut self,
        scanner: &Scanner,
        (direction, at, name): (Direction, At, &str),
        text: &str,
        parts: &mut Parts,
    ) -> Vec<Finding> {
        if parts.left == 0 {
            let rest = parts.rest.entry(at).or_default();
            rest.push_str(text);
            rest.push('\n');
            return Vec::new();
        }
        parts.left -= 1;
        self.part(scanner, direction, at, name, text.as_bytes())
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

    fn outbound(
        &mut self,
        scanner: &Scanner,
        message: &Value,
        parts: &mut Parts,
        findings: &mut Vec<Finding>,
    ) {
        let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
        // A message can have both, and its reader decides which one counts.
        let fields: Vec<&Value> = ["params", "result"].iter().filter_map(|name| message.get(name)).collect();
        for part in if fields.is_empty() { vec![message] } else { fields } {
            let tool = part.get("name").and_then(Value::as_str).filter(|_| method == "tools/call");
            let name = tool.unwrap_or(method);
            let arguments = part.get("arguments").filter(|_| tool.is_some()).unwrap_or(part);
            let text = arguments.to_string();
            let at = (Direction::Outbound, At::ToolArgs, name);
            findings.extend(self.counted(scanner, at, &text, parts));
            if tool.is_some() || SENDS.contains(&method) {
                findings.extend(self.calls.observe(Sequences::builtin(), name, &text));
            }
        }
    }

    fn inbound(
        &mut self,
        scanner: &Scanner,
        message: &Value,
        parts: &mut Parts,
        findings: &mut Vec<Finding>,
    ) {
        let mut rest = message.clone();
        // The whole last: as the card of an agent it would take the others with it.
        let places = ["/result", "/params", ""];
        let taken = places.map(|part| rest.pointer_mut(part).map(take_definitions).unwrap_or_default());
        for Definition { kind, name, value } in taken.into_iter().flatten() {
            findings.extend(self.pins.compare(kind, &name, &value));
            let at = (Direction::Inbound, At::ToolDefinition, name.as_str());
            findings.extend(self.counted(scanner, at, &value.to_string(), parts));
        }
        if !rest.is_null() {
            let at = (Direction::Inbound, At::ToolResult, "");
            findings.extend(self.counted(scanner, at, &rest.to_string(), parts));
        }
    }
}

/// Parts of the messages of a body.
struct Parts {
    /// Parts that may still be scanned each by itself.
    left: usize,
    /// Those that are scanned together.
    rest: BTreeMap<At, String>,
}

/// Definition of a tool, a prompt, a resource or an agent.
struct Definition {
    kind: &'static str,
    name: String,
    value: Value,
}

/// Takes the definitions out of a part of a message. What has no name stays.
fn take_definitions(part: &mut Value) -> Vec<Definition> {
    let mut taken = Vec::new();
    for (kind, field) in LISTS {
        let Some(list) = part.get_mut(field).and_then(Value::as_array_mut) else { continue };
        list.retain_mut(|one| {
            let name = one.get("name").or_else(|| one.get("uri")).and_then(Value::as_str).map(str::to_owned);
            name.is_none_or(|name| {
                taken.push(Definition { kind, name, value: one.take() });
                false
            })
        });
    }
    if is_card(part) {
        let name = part.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        taken.push(Definition { kind: "agent", name, value: part.take() });
    }
    taken
}

/// Reports whether an object is the card of an agent.
fn is_card(value: &Value) -> bool {
    let has = |name| value.get(name).is_some();
    has("name") && has("skills") && (has("url") || has("capabilities") || has("supportedInterfaces"))
}

/// Returns the messages of a body: of JSON, of each event of a stream, or of each line. Empty if none is an object or an array.
pub fn messages(body: &[u8]) -> Vec<Value> {
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    let messages = match serde_json::from_slice(body) {
        Ok(Value::Array(batch)) => batch,
        Ok(one) => vec![one],
        Err(_) => lines_and_events(&String::from_utf8_lossy(body)),
    };
    let is_message = |message: &Value| message.is_object() || message.is_array();
    if messages.iter().any(is_message) { messages } else { Vec::new() }
}

/// Returns the JSON of each event of a stream, and of each line. The data of an event can have several lines, and a line can
/// end with a line feed, a carriage return or both.
fn lines_and_events(text: &str) -> Vec<Value> {
    let (mut values, mut data) = (Vec::new(), Vec::new());
    let mut take = |data: &mut Vec<&str>| {
        let read: Vec<Value> = match serde_json::from_str(&data.join("\n")) {
            Ok(value) => vec![value],
            // Some readers take each line for an event.
            Err(_) => data.iter().filter_map(|line| serde_json::from_str(line.trim()).ok()).collect(),
        };
        for value in read {
            match value {
                Value::Array(batch) => values.extend(batch),
                one => values.push(one),
            }
        }
        data.clear();
    };
    let text = text.replace("\r\n", "\n");
    for line in text.split(['\n', '\r']) {
        match line.strip_prefix("data:") {
            Some(line) => data.push(line),
            None if line.is_empty() => take(&mut data),
            None => take(&mut vec![line]),
        }
    }
    take(&mut data);
    values
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
    fn changed_definition_is_a_finding_until_the_pins_are_others() {
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
        session.pins = Pins::default();
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

    #[test]
    fn definitions_leave_the_rest_of_a_message() {
        let mut message = serde_json::json!({"tools": [{"name": "a"}, "b", {"x": 1}], "content": "c"});
        let taken: Vec<_> = take_definitions(&mut message).into_iter().map(|one| one.name).collect();
        assert_eq!(taken, ["a"]);
        assert_eq!(message, serde_json::json!({"tools": ["b", {"x": 1}], "content": "c"}));
    }

    #[test]
    fn messages_of_every_kind_of_line_are_read() {
        let one = serde_json::json!({"a": [1, 2]});
        for body in [
            r#"{"a": [1, 2]}"#,
            "\u{feff}{\n\"a\":\n[1, 2]\n}",
            "data: {\"a\":\ndata: [1, 2]}\n\n",
            "event: x\r\ndata:{\"a\":\r\ndata:[1, 2]}\r\n\r\n",
            "data: {\"a\":\rdata: [1, 2]}\r\r",
            ": comment\ndata: {\"a\": [1, 2]}",
            "data: x\ndata: {\"a\": [1, 2]}\n\n",
            "{\"a\": [1, 2]}\nnothing\n",
        ] {
            assert_eq!(messages(body.as_bytes()), std::slice::from_ref(&one), "{body:?}");
        }
        assert!(messages(b"\"text\"").is_empty() && messages(b"a text").is_empty());
        assert_eq!(messages(b"[{}, \"text\"]").len(), 2, "what stands beside a message");
    }
}
