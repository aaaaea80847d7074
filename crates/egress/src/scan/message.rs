//! Scans a body that is there as a whole: a message of MCP or A2A, or any other one.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, header};
use hutch_policy::Call;
use hutch_scan::{At, Compression, Direction, Finding, Location, decompressed, messages, redact};
use hutch_screen::Found;
use serde_json::{Map, Value};

use super::memory::{Bodies, Talk};
use super::{Judged, Scan, SharedTalk, scanner};
use crate::values::memory;
use crate::wide;

/// Maximum messages of a body that are scanned as such.
const MESSAGES: usize = 256;
/// Maximum memory for the values of a body, in bytes.
const MEMORY: usize = 16 << 20;
/// Maximum bytes of a body that is scanned together with earlier ones.
const SHORT: usize = 8 << 10;
/// Maximum layers of declared compression. More are not undone.
const LAYERS: usize = 1;

/// Returns the declared compression of a body.
///
/// # Errors
/// It cannot be undone.
pub(crate) fn compression(headers: &HeaderMap) -> Result<Option<Compression>, ()> {
    let values = headers.get_all(header::CONTENT_ENCODING).iter();
    let names: Vec<&str> = values
        .map(|value| value.to_str().map_err(|_| ()))
        .collect::<Result<Vec<_>, ()>>()?
        .into_iter()
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"))
        .collect();
    match names.as_slice() {
        [] => Ok(None),
        names if names.len() > LAYERS => Err(()),
        names => names.first().and_then(|name| Compression::named(name)).map(Some).ok_or(()),
    }
}

/// Returns true if a body is a stream of events.
pub(crate) fn is_events(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.len() >= 17 && kind[..17].eq_ignore_ascii_case(b"text/event-stream")
}

/// Returns true if JSON is a message of MCP or A2A, or a card of an agent.
fn is_of_protocol(value: &Value) -> bool {
    let has = |name| value.get(name).is_some();
    let call = has("jsonrpc") && (has("method") || has("result") || has("error"));
    let parts = |pointer| value.pointer(pointer).is_some_and(Value::is_array);
    let agent = parts("/message/parts") || parts("/task/artifacts") || parts("/artifact/parts");
    let card = has("name") && has("skills") && (has("url") || has("capabilities"));
    call || agent || card
}

/// Reports whether JSON can have a field that each message of these protocols has. To read all of it takes much longer.
fn has_name_of_protocol(body: &[u8]) -> bool {
    let names = [&b"\"jsonrpc\""[..], b"\"parts\"", b"\"artifacts\"", b"\"skills\""];
    memchr::memchr2_iter(b'"', b'\\', body).any(|at| {
        let rest = &body[at..];
        // Letters can be written as their numbers.
        rest.starts_with(b"\\u") || names.iter().any(|name| rest.starts_with(name))
    })
}

/// Bytes of a letter that is written as its number.
const RPC_LETTER: usize = 6;
/// Characters of the name of a field that each message of JSON-RPC has, with its quotes.
const RPC: &str = "\"jsonrpc\"";
/// Maximum bytes of the same, if each letter is written as its number.
pub(super) const RPC_BYTES: usize = 2 + RPC_LETTER * (RPC.len() - 2);

/// Returns true if bytes can be the beginning of JSON that is an object or a list.
pub(super) fn may_be_json(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    matches!(bytes.trim_ascii_start().first(), None | Some(b'{' | b'['))
}

/// Returns true if JSON can have the field of JSON-RPC, however its letters are written. Its end may be that of the bytes.
pub(super) fn has_name_of_rpc(body: &[u8]) -> bool {
    memchr::memchr_iter(b'"', body).any(|at| {
        let mut rest = &body[at..];
        RPC.bytes().all(|wanted| {
            let (found, length) = match rest {
                [b'\\', b'u', digits @ ..] => (number(digits), RPC_LETTER),
                [plain, ..] => (Some(*plain), 1),
                [] => (None, 0),
            };
            rest = rest.get(length..).unwrap_or_default();
            found == Some(wanted)
        }) && matches!(rest.trim_ascii_start().first(), None | Some(b':'))
    })
}

/// Returns the letter of ASCII with this number of four digits.
fn number(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits.get(..4)?).ok()?;
    u8::from_str_radix(text, 16).ok()
}

/// Returns the values of a body that is JSON, or a stream of events with JSON. An empty list stands for a body that cannot be a
/// message of MCP or A2A, `None` for one that needs too much memory, and for a message in UTF-16 or UTF-32.
pub(super) fn values(body: &[u8]) -> Option<Vec<Value>> {
    if let Some(text) = wide::text(body) {
        return (is_message(text.as_bytes()) == Some(false)).then(Vec::new);
    }
    match has_name_of_protocol(body) {
        false => Some(Vec::new()),
        true => (memory(body) <= MEMORY).then(|| messages(body)),
    }
}

/// Returns true if a body is a message of MCP or A2A, a batch of them, or a stream of events with them; `None` if that cannot
/// be known.
pub(crate) fn is_message(body: &[u8]) -> Option<bool> {
    values(body).map(|values| values.iter().any(is_of_protocol))
}

/// Returns the fields of a message that are scanned as such: outside of results, and of parameters but for those of a call.
fn fields(message: &Map<String, Value>) -> Map<String, Value> {
    let is_call = message.get("method").is_some_and(|method| method == "tools/call");
    let mut fields = Map::new();
    for (name, value) in message {
        match (name.as_str(), value) {
            ("jsonrpc" | "result", _) => {}
            ("params", Value::Object(parameters)) if is_call => {
                let others = parameters.iter().filter(|(name, _)| *name != "arguments");
                let others = others.map(|(name, value)| (name.clone(), value.clone()));
                fields.insert(name.clone(), Value::Object(others.collect()));
            }
            ("params", _) => {}
            _ => drop(fields.insert(name.clone(), value.clone())),
        }
    }
    fields
}

/// Scans a message of MCP or A2A, with its fields outside of parameters and results.
fn protocol(
    scan: &Scan,
    talk: &mut Talk,
    direction: Direction,
    body: &[u8],
    values: &[Value],
) -> Vec<Finding> {
    let begins = |value: &Value| value.get("method").is_some_and(|method| method == "initialize");
    if direction == Direction::Outbound && values.iter().any(begins) {
        talk.begin();
    }
    let (mut findings, mut state) = (Vec::new(), scan.state(direction));
    talk.session.set_credentials(scan.exact.clone());
    // First, as a finding in arguments has the name of their tool.
    for value in values.iter().take(MESSAGES) {
        let message = value.as_object().filter(|fields| fields.contains_key("jsonrpc"));
        if let Some(message) = message {
            let text = Value::Object(fields(message)).to_string();
            findings.extend(scanner().scan_whole(&mut state, &Location::new(At::Body), text.as_bytes()));
        }
    }
    findings.extend(talk.session.scan_messages(scanner(), direction, values));
    // A reader may see what this one does not.
    if values.len() > MESSAGES || Call::parse(body).is_none() {
        add(&mut findings, scanner().scan_whole(&mut state, &Location::new(At::Body), body));
    }
    findings
}

/// Adds those findings that are not known yet.
fn add(findings: &mut Vec<Finding>, mut others: Vec<Finding>) {
    let is_known = |other: &Finding| {
        findings.iter().any(|known| known.rule == other.rule && known.fingerprint == other.fingerprint)
    };
    others.retain(|other| !is_known(other));
    findings.extend(others);
}

/// Forgets what a body has added: it is not sent.
fn put_back((talk, bodies): (&mut Talk, Option<&mut Bodies>), before: (Talk, Option<Bodies>)) {
    *talk = before.0;
    if let (Some(bodies), Some(before)) = (bodies, before.1) {
        *bodies = before;
    }
}

impl Scan {
    /// Scans a body. Returns it with what was replaced, if anything was.
    pub(crate) fn body(
        &self,
        talk: &SharedTalk,
        direction: Direction,
        compression: Option<Compression>,
        body: &[u8],
    ) -> (Judged, Option<Vec<u8>>) {
        let mut entered = talk.enter();
        let joins = direction == Direction::Outbound && body.len() <= SHORT;
        let mut bodies = joins.then(|| talk.bodies());
        let before = (entered.clone(), bodies.as_deref().cloned());
        let (mut judged, findings) =
            self.once((&mut entered, bodies.as_deref_mut()), direction, compression, body);
        let mut replaced = None;
        if judged.blocked.is_none() && !judged.redacted.is_empty() {
            put_back((&mut entered, bodies.as_deref_mut()), before.clone());
            let records = self.replaced(direction, &judged.redacted);
            let plain = Location::new(At::Body);
            let raw = scanner().scan_whole(&mut self.state(direction), &plain, body);
            let mut raw = self.judge(direction, raw);
            if !findings {
                raw.redacted.append(&mut judged.redacted);
            }
            let text = redact(body, 0, &raw.redacted);
            let (again, _) = self.once((&mut entered, bodies.as_deref_mut()), direction, compression, &text);
            judged.blocked = self.refuse_redacted(direction, again).blocked;
            if judged.blocked.is_none() {
                judged.passed.extend(records);
            }
            replaced = Some(text);
        }
        if judged.blocked.is_some() {
            put_back((&mut entered, bodies.as_deref_mut()), before);
        }
        (judged, replaced)
    }

    /// Scans a body once. Returns also whether it is a message, in which findings do not count from its start.
    fn once(
        &self,
        (talk, bodies): (&mut Talk, Option<&mut Bodies>),
        direction: Direction,
        compression: Option<Compression>,
        body: &[u8],
    ) -> (Judged, bool) {
        // A server may compress what the client cannot have requested so.
        let plain = match compression {
            None => Some(Cow::Borrowed(body)),
            Some(compression) => decompressed(compression, body).map(Cow::Owned),
        };
        let read = plain.as_ref().map(|plain| values(plain));
        let unreadable = match &read {
            // What some readers decompress in part, or to more than is read here.
            None => !body.is_empty(),
            Some(values) => values.is_none(),
        };
        if unreadable && self.blocks(direction) {
            let blocked = Some(Found::unreadable(direction, At::Body));
            return (Judged { blocked, ..Judged::default() }, true);
        }
        let read = read.flatten().unwrap_or_default();
        let location = Location { at: At::Body, name: String::new(), compression };
        let raw = || scanner().scan_whole(&mut self.state(direction), &location, body);
        let plain = plain.unwrap_or_default();
        if !read.iter().any(is_of_protocol) {
            let bodies = bodies.filter(|_| !plain.is_empty() && plain.len() <= SHORT);
            let findings = match (bodies, compression) {
                (None, _) => raw(),
                (Some(bodies), None) => bodies.scan(self, body),
                (Some(bodies), Some(_)) => {
                    let mut findings = raw();
                    add(&mut findings, bodies.scan(self, &plain));
                    findings
                }
            };
            return (self.judge(direction, findings), false);
        }
        let mut findings = protocol(self, talk, direction, &plain, &read);
        if compression.is_some() {
            // What stands beside the message: in names of files, or behind its end.
            add(&mut findings, raw());
        }
        (self.judge(direction, findings), true)
    }
}
