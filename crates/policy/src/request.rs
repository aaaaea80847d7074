//! A request of a sandbox, as rules see it.

use std::collections::BTreeMap;

use memchr::memmem;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::json::{folded, strict, strict_all};

/// Maximum bytes of a target that is judged.
const TARGET: usize = 16 << 10;

/// Maximum calls in a batch.
const CALLS: usize = 100;
/// Maximum bytes of the name of a method or a tool that are kept once it is judged.
const NAME: usize = 512;

/// Escapes of letters of `method`.
const LETTERS: [&[u8]; 12] = [
    b"\\u004d", b"\\u0045", b"\\u0054", b"\\u0048", b"\\u004f", b"\\u0044", b"\\u006d", b"\\u0065",
    b"\\u0074", b"\\u0068", b"\\u006f", b"\\u0064",
];

/// Reason why a path can mean different things to different servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AmbiguousPath {
    /// Not the path of a request.
    #[error("its path does not begin with `/`")]
    Form,
    /// A character that no path has.
    #[error("its path has a character that does not belong there")]
    Character,
    /// A percent sign without two hexadecimal digits, or one that decodes to another.
    #[error("its path has a malformed or doubled percent-encoding")]
    Encoding,
    /// A slash, backslash or NUL, encoded or not.
    #[error("its path has an encoded slash, a backslash or a NUL")]
    Separator,
    /// A segment that is empty, `.` or `..`.
    #[error("its path has an empty segment or a dot segment")]
    Segment,
    /// Too long.
    #[error("its path has more than {TARGET} bytes")]
    TooLong,
}

/// Path of a request: decoded, and the same to every server but for parameters of its segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    whole: String,
    /// As servers read it that take what follows a semicolon for parameters of the segment, if that is another path.
    plain: Option<String>,
}

impl Path {
    /// Reads the path of a request target, without its query.
    ///
    /// # Errors
    /// The path could mean something else to the server.
    pub fn read(path: &str) -> Result<Path, AmbiguousPath> {
        if path.len() > TARGET {
            return Err(AmbiguousPath::TooLong);
        }
        if !path.starts_with('/') {
            return Err(AmbiguousPath::Form);
        }
        let decoded = decode(path.as_bytes()).ok_or(AmbiguousPath::Encoding)?;
        if decoded.windows(3).any(|bytes| bytes[0] == b'%' && bytes[1..].iter().all(u8::is_ascii_hexdigit)) {
            return Err(AmbiguousPath::Encoding);
        }
        let encoded_slashes =
            decoded.iter().filter(|byte| **byte == b'/').count() != path.matches('/').count();
        if encoded_slashes || decoded.iter().any(|byte| matches!(byte, b'\\' | 0)) {
            return Err(AmbiguousPath::Separator);
        }
        let decoded = String::from_utf8(decoded).map_err(|_| AmbiguousPath::Encoding)?;
        if decoded.chars().any(char::is_control) || path.contains(['#', '?', ' ']) {
            return Err(AmbiguousPath::Character);
        }
        let mut plain = String::with_capacity(decoded.len());
        let mut segments = decoded[1..].split('/').peekable();
        while let Some(segment) = segments.next() {
            let last = segments.peek().is_none();
            // Some servers cut what follows a semicolon before they interpret dots and drop empty segments.
            let name = segment.split(';').next().unwrap_or_default();
            if matches!(name, "." | "..") || (name.is_empty() && !last) {
                return Err(AmbiguousPath::Segment);
            }
            plain.push('/');
            plain.push_str(name);
        }
        let plain = (plain != decoded).then_some(plain);
        Ok(Path { whole: decoded, plain })
    }

    /// Returns the decoded path.
    pub fn as_str(&self) -> &str {
        &self.whole
    }

    /// Returns the path without parameters of its segments, if it has some.
    pub fn without_parameters(&self) -> Option<&str> {
        self.plain.as_deref()
    }
}

/// Decodes percent-encoding; `None` if it is malformed.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>()?;
        rest = after;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        decoded.push(digit(digits[0])? << 4 | digit(digits[1])?);
    }
    Some(decoded)
}

/// One call of JSON-RPC in the body of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Method; `None` for an answer to a request of the server.
    pub method: Option<String>,
    /// Tool, of `tools/call`.
    pub tool: Option<String>,
    /// Arguments of the tool, or the parameters of another method.
    pub arguments: Value,
}

impl Call {
    /// Reads the calls of a body: one, or a batch. `None` if it is not JSON-RPC, or could be read in two ways.
    pub fn parse(body: &[u8]) -> Option<Vec<Call>> {
        Call::read(strict(body)?)
    }

    /// Forgets the arguments, and the ends of long names, once they are judged: they can take much memory.
    pub fn forget(&mut self) {
        self.arguments = Value::Null;
        for name in [&mut self.method, &mut self.tool].into_iter().flatten() {
            name.truncate(name.floor_char_boundary(NAME));
            name.shrink_to_fit();
        }
    }

    /// Returns true if a body of which [`Call::parse`] reads no calls may be one to some server: it cannot be read in one way,
    /// or has what makes a call, such as one without `jsonrpc` or more calls than are read.
    pub fn may_be_in(body: &[u8]) -> bool {
        fn any(value: &Value) -> bool {
            match value {
                Value::Array(batch) => batch.iter().any(any),
                one => Call::may_be(one),
            }
        }
        match strict_all(body) {
            Some(values) => values.iter().any(any),
            // Some servers skip what stands before a value, or read more than JSON.
            None => {
                let lower = body.to_ascii_lowercase();
                let has = |part: &[u8]| memmem::find(&lower, &part.to_ascii_lowercase()).is_some();
                let opens = body.iter().any(|byte| matches!(byte, b'{' | b'['));
                opens
                    && (has(b"method") || has_other_escape(body) || LETTERS.iter().any(|letter| has(letter)))
            }
        }
    }

    fn may_be(message: &Value) -> bool {
        let Some(fields) = message.as_object() else { return false };
        let named = |name: &str| fields.iter().find(|(key, _)| folded(key) == name).map(|(_, value)| value);
        let Some(method) = named("method") else { return false };
        ["jsonrpc", "params", "id"].iter().any(|name| named(name).is_some())
            || method.as_str() == Some("tools/call")
    }

    /// Reads the calls of a message.
    fn read(message: Value) -> Option<Vec<Call>> {
        match message {
            Value::Array(batch) if (1..=CALLS).contains(&batch.len()) => {
                batch.into_iter().map(Call::one).collect()
            }
            one => Some(vec![Call::one(one)?]),
        }
    }

    fn one(message: Value) -> Option<Call> {
        let Value::Object(mut message) = message else { return None };
        unmistakable(&message, &["jsonrpc", "method", "params", "id", "result", "error"])?;
        if message.get("jsonrpc")?.as_str()? != "2.0" {
            return None;
        }
        let answers = message.contains_key("result") || message.contains_key("error");
        let Some(method) = message.get("method") else {
            return answers.then_some(Call { method: None, tool: None, arguments: Value::Null });
        };
        if ["result", "error"].iter().any(|field| message.get(*field).is_some_and(|value| !value.is_null())) {
            // Some readers take it for a call, others for an answer.
            return None;
        }
        let method = name(method)?;
        // They can take much memory, so they are not copied.
        let mut parameters = message.remove("params").unwrap_or(Value::Null);
        if method != "tools/call" {
            return Some(Call { method: Some(method), tool: None, arguments: parameters });
        }
        let parameters = parameters.as_object_mut()?;
        unmistakable(parameters, &["name", "arguments"])?;
        let tool = name(parameters.get("name")?)?;
        let arguments = parameters.remove("arguments").unwrap_or(Value::Null);
        Some(Call { method: Some(method), tool: Some(tool), arguments })
    }
}

/// Returns true if a backslash stands before what JSON does not escape. Servers that read more than JSON find another text.
fn has_other_escape(body: &[u8]) -> bool {
    let mut rest = body.iter();
    while rest.by_ref().any(|byte| *byte == b'\\') {
        if !rest.next().is_some_and(|byte| b"\"\\/bfnrtu".contains(byte)) {
            return true;
        }
    }
    false
}

/// Returns a name. Some readers take one for another that has control characters, because they end it there.
fn name(value: &Value) -> Option<String> {
    value.as_str().filter(|name| !name.chars().any(char::is_control)).map(str::to_owned)
}

/// Refuses keys that some readers take for one of these, because they ignore case.
fn unmistakable(object: &Map<String, Value>, known: &[&str]) -> Option<()> {
    let mistakable = |key: &String| !known.contains(&key.as_str()) && known.contains(&folded(key).as_str());
    (!object.keys().any(mistakable)).then_some(())
}

/// Returns true if some server takes the name of a header for another one: in any case, and with `_` for `-`.
pub fn is_same_header(one: &str, other: &str) -> bool {
    let alike =
        |a: u8, b: u8| a.eq_ignore_ascii_case(&b) || (matches!(a, b'-' | b'_') && matches!(b, b'-' | b'_'));
    one.len() == other.len() && one.bytes().zip(other.bytes()).all(|(a, b)| alike(a, b))
}

/// Returns the name of a query parameter as some servers read it. PHP drops spaces before it, cuts it at a zero byte and at a
/// bracket, and reads `.`, a space and a bracket without an end as `_`; Express and Rack drop brackets before it; others do not
/// distinguish cases.
fn read_as(name: &str) -> [String; 2] {
    const BRACKETS: [char; 2] = ['[', ']'];
    let name = name.trim_start_matches(' ').split('\0').next().unwrap_or_default();
    let inner = name.trim_start_matches(BRACKETS).split(BRACKETS).next().unwrap_or_default();
    [name, inner].map(|name| name.replace(['.', ' ', '['], "_").to_ascii_lowercase())
}

/// A request of a sandbox.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Host that it is for.
    pub host: &'a str,
    /// Port.
    pub port: u16,
    /// Method.
    pub method: &'a str,
    /// Path.
    pub path: &'a Path,
    /// Query, as it was sent.
    pub query: &'a str,
    /// Headers with lower-case names. Values that are not text are absent.
    pub headers: Vec<(&'a str, &'a str)>,
    /// The client wants a WebSocket.
    pub websocket: bool,
    /// The client speaks TLS. A rule without `plaintext` allows no other request.
    pub tls: bool,
    /// Length of the body; `None` for one whose length is not known before its end.
    pub length: Option<u64>,
    /// Calls in the body; `None` if it was not read as JSON-RPC.
    pub calls: Option<&'a [Call]>,
}

/// Parts of a request that expressions see.
#[derive(Serialize)]
pub(crate) struct View<'a> {
    host: &'a str,
    port: u16,
    method: &'a str,
    path: &'a str,
    query: &'a str,
    headers: BTreeMap<String, &'a str>,
}

impl View<'_> {
    /// Returns the number of headers.
    pub(crate) fn headers(&self) -> usize {
        self.headers.len()
    }
}

impl Request<'_> {
    /// Returns what expressions see, in each way that servers read the path: with and without parameters of its segments.
    /// There is at least one.
    pub(crate) fn views(&self) -> impl Iterator<Item = View<'_>> {
        let paths = [Some(self.path.as_str()), self.path.without_parameters()].into_iter().flatten();
        paths.map(|path| {
            let Request { host, port, method, query, .. } = *self;
            // To some servers, `_` is `-` too, and `x-a` cannot be written as a field.
            let mut headers: BTreeMap<String, &str> = BTreeMap::new();
            for (name, value) in &self.headers {
                headers.insert(name.replace('_', "-"), *value);
                headers.insert(name.replace('-', "_"), *value);
            }
            headers.extend(self.headers.iter().map(|(name, value)| ((*name).to_owned(), *value)));
            View { host, port, method, path, query, headers }
        })
    }

    /// Returns true if one of these headers, or any, has several values, of which some servers take the first, some the last,
    /// and some all. Names have no `_`.
    pub(crate) fn has_ambiguous_headers(&self, names: Option<&[String]>) -> bool {
        // Most conditions read none, and names are copied below.
        if names.is_some_and(<[String]>::is_empty) {
            return false;
        }
        let mut known = BTreeMap::new();
        let values = self.headers.iter().map(|(name, value)| (name.replace('_', "-"), *value));
        let mut values = values.filter(|(name, _)| names.is_none_or(|names| names.contains(name)));
        values.any(|(name, value)| known.insert(name, value).is_some_and(|before| before != value))
    }

    /// Returns the names and values of a header, and of those that some servers take for it: they read `_` and `-` alike.
    pub(crate) fn header<'b>(&'b self, name: &'b str) -> impl Iterator<Item = (&'b str, &'b str)> {
        self.headers.iter().copied().filter(move |(found, _)| is_same_header(found, name))
    }

    /// Returns the separators of query parameters, in each way that servers read the query: some take semicolons for such.
    pub(crate) fn separators(&self) -> &'static [&'static [char]] {
        match self.query.contains(';') {
            true => &[&['&'], &['&', ';']],
            false => &[&['&']],
        }
    }

    /// Returns the decoded values of a query parameter, and of those that some server takes for it, with `true` where the name is
    /// exactly this one; `None` stands for a value that cannot be decoded, or the value of such a name.
    pub(crate) fn parameter(&self, name: &str, separators: &'static [char]) -> Vec<(bool, Option<String>)> {
        let text = |encoded: &str| String::from_utf8(decode(encoded.replace('+', " ").as_bytes())?).ok();
        let forms = read_as(name);
        let pairs = self.query.split(separators).filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match text(key) {
                Some(key) if key == name => Some((true, text(value))),
                Some(key) if read_as(&key).iter().any(|form| forms.contains(form)) => {
                    Some((false, text(value)))
                }
                Some(_) => None,
                None => Some((false, None)),
            }
        });
        pairs.collect()
    }

    /// Returns true if the request has a body, as far as its head says.
    pub(crate) fn may_have_body(&self) -> bool {
        self.length != Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_headers_are_alike_in_case_and_underscores() {
        for (one, other, same) in [
            ("content-type", "Content_Type", true),
            ("x_a-b", "X-A_B", true),
            ("content-type", "content-typ", false),
            ("a-b", "a.b", false),
        ] {
            assert_eq!(is_same_header(one, other), same, "{one} {other}");
        }
    }

    #[test]
    fn names_of_parameters_are_alike_where_some_server_reads_them_so() {
        for (one, other, same) in [
            ("repo", "repo", true),
            ("repo", " repo", true),
            ("repo", "REPO", true),
            ("repo", "repo[]", true),
            ("repo", "repo[a][b]", true),
            ("repo", "repo\0x", true),
            ("a_b", "a.b", true),
            ("a_b", "a b", true),
            ("a_b", "a[b", true),
            ("repo", "repos", false),
            ("repo", "", false),
            ("ids[]", "ids", true),
            ("repo", "[repo]", true),
            ("repo", "[[repo]]", true),
            ("repo", "]repo", true),
            ("repo", "repo]", true),
            ("repo", "[other][repo]", false),
        ] {
            let forms = read_as(other);
            assert_eq!(read_as(one).iter().any(|form| forms.contains(form)), same, "{one:?} {other:?}");
        }
    }

    #[test]
    fn body_that_some_server_may_take_for_calls_is_found() {
        let many = format!("[{}]", vec![r#"{"jsonrpc":"2.0","method":"tools/call"}"#; 101].join(","));
        for body in [
            many.as_str(),
            r#"{"jsonrpc":"2.0","method":"a","method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","Method":"tools/call"}"#,
            r#"{"jsonrpc":"1.0","method":"a"}"#,
            r#"{"method":"a","params":{},"id":1}"#,
            r#"{"METHOD":"tools/call"}"#,
            r#"/* */{"jsonrpc":"2.0","method":"tools/call"}"#,
            "//\n{\"method\":\"tools/call\"}",
            "null\n{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\"}",
            "x\n{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\"}",
            r#"[[{"jsonrpc":"2.0","method":"tools/call"}]]"#,
            r#"{"jsonrpc":"2.0","met\hod":"tools/call"}"#,
            "{\"jsonrpc\":\"2.0\",\"met\\\nhod\":\"tools/call\"}",
            r#"{"jsonrpc":"2.0","\x6dethod":"tools/call"}"#,
            r#"[{"a":1},{"method":"a","PARAMS":[]}]"#,
            "\u{feff}{\"jsonrpc\":\"2.0\",\"method\":\"a\"}",
            r#" {"\u006dethod":"a","id":1,"id":2}"#,
            r#"{"jsonrpc":"2.0","method":"a"} x"#,
            r#"{"jsonrpc":"2.0","method":"a"}{"jsonrpc":"2.0","method":"b"}"#,
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"x","NAME":"y"}}"#,
        ] {
            assert!(Call::may_be_in(body.as_bytes()) && Call::parse(body.as_bytes()).is_none(), "{body}");
        }
        for body in [
            "",
            "method=tools/call&jsonrpc=2.0",
            r#"{"method":"card","amount":1}"#,
            r#"{"a":{"method":"x","params":1}}"#,
            r#"{"index":1}
{"text":"caf\u00e9"}"#,
            r#"{"a":NaN,"text":"caf\u00e9"}"#,
            r#"{"method":"card"} {"method":"cash"}"#,
            "[1,2]",
            "\"method\"",
        ] {
            assert!(!Call::may_be_in(body.as_bytes()), "{body}");
        }
    }

    #[test]
    fn path_means_the_same_to_every_server() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/", "/a/"),
            ("/%61/%C3%A4", "/a/ä"),
            ("/a%20b", "/a b"),
            ("/...", "/..."),
            ("/100%25", "/100%"),
        ] {
            let read = Path::read(path).unwrap();
            assert_eq!((read.as_str(), read.without_parameters()), (expected, None));
        }
        for (path, whole, plain) in [
            ("/a;x=1/b", "/a;x=1/b", "/a/b"),
            ("/a;", "/a;", "/a"),
            ("/a/;x", "/a/;x", "/a/"),
            ("/a%3Bx;y/b%3b", "/a;x;y/b;", "/a/b"),
        ] {
            let read = Path::read(path).unwrap();
            assert_eq!((read.as_str(), read.without_parameters()), (whole, Some(plain)));
        }
        for path in [
            "",
            "a",
            "*",
            "//",
            "//a",
            "/a//b",
            "/.",
            "/..",
            "/a/../b",
            "/a/./b",
            "/a/..",
            "/%2e%2e/a",
            "/a/.%2e/b",
            "/..;x/a",
            "/a/.;/b",
            "/a/..%3bx/b",
            "/;x/a",
            "/a/;/b",
            "/a/%3B/b",
            "/a%2fb",
            "/a%2Fb",
            "/a\\b",
            "/a%5cb",
            "/a%00b",
            "/a%0ab",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a%252fb",
            "/a%2561",
            "/%ff",
            "/a#b",
            "/a?b",
            "/a b",
            "http://a/b",
        ] {
            assert!(Path::read(path).is_err(), "{path:?}: {:?}", Path::read(path));
        }
        assert!(Path::read(&format!("/{}", "a".repeat(TARGET))).is_err());
    }

    #[test]
    fn calls_are_read_from_json_rpc() {
        let read = |text: &str| Call::read(serde_json::from_str(text).unwrap());
        let call = read(
            r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"a": 1}}}"#,
        );
        let call = &call.unwrap()[0];
        assert_eq!((call.method.as_deref(), call.tool.as_deref()), (Some("tools/call"), Some("x")));
        assert_eq!(call.arguments["a"], 1);
        let list = read(r#"[{"jsonrpc": "2.0", "method": "a"}, {"jsonrpc": "2.0", "id": 1, "result": {}}]"#)
            .unwrap();
        assert_eq!(list.iter().map(|call| call.method.as_deref()).collect::<Vec<_>>(), [Some("a"), None]);
        for wrong in [
            "[]",
            "1",
            "{}",
            r#"{"jsonrpc": "1.0", "method": "a"}"#,
            r#"{"jsonrpc": "2.0"}"#,
            r#"{"method": "a"}"#,
            r#"{"jsonrpc": "2.0", "method": "a", "Method": "b"}"#,
            r#"{"jsonrpc": "2.0", "METHOD": "b", "result": 1}"#,
            r#"{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "x", "Name": "y"}}"#,
            r#"{"jsonrpc": "2.0", "method": 1}"#,
            r#"{"jsonrpc": "2.0", "method": "tools/call"}"#,
            r#"{"jsonrpc": "2.0", "method": "ping\u0000"}"#,
            r#"{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "x\u0000y"}}"#,
            r#"[{"jsonrpc": "2.0", "method": "a"}, 1]"#,
            r#"[[{"jsonrpc": "2.0", "method": "a"}]]"#,
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
