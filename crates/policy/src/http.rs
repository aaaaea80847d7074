//! Requests that a rule allows or denies: HTTP, and JSON-RPC such as MCP in its bodies.

use std::fmt;
use std::sync::{Arc, OnceLock};

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::destination::Decision;
use crate::expression::{Expression, LOOP_NODES, Moment, nodes};
use crate::host::shown;
use crate::request::{Call, Path, Request};

/// Maximum bytes of a pattern.
pub(crate) const PATTERN: usize = 1024;
/// Methods of MCP without which no tool can be called or listed. A rule that allows any call allows these.
const LIFECYCLE: [&str; 3] = ["initialize", "ping", "tools/list"];

/// Reason why a text is not a pattern or a method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequestRule {
    /// Not a pattern of paths.
    #[error("{0:?} is not a pattern of paths: it begins with `/`, and `**` is a whole segment")]
    Path(String),
    /// Not a method.
    #[error("{0:?} is not a method: write it like GET")]
    Method(String),
    /// A method that the proxy never passes on.
    #[error("{0:?} is not a method of a rule: it is always refused")]
    Refused(String),
    /// Not a pattern of names.
    #[error("{0:?} is not a pattern of names: at most {PATTERN} bytes, not empty")]
    Name(String),
    /// Not a regular expression.
    #[error("{0:?} is not a regular expression: {1}")]
    Regex(String, String),
}

/// Pattern with `*` for any number of characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Glob(String);

impl Glob {
    /// Returns true if the pattern covers the text.
    pub fn matches(&self, text: &str) -> bool {
        glob(&self.0, text)
    }
}

/// Matches without recursion: the last `*` is extended when the rest does not match.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut from) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, from));
                at += 1;
            }
            Some(byte) if *byte == text[from] => (at, from) = (at + 1, from + 1),
            _ => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    (at, from) = (after, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

impl TryFrom<String> for Glob {
    type Error = InvalidRequestRule;

    fn try_from(text: String) -> Result<Glob, InvalidRequestRule> {
        match text.is_empty() || text.len() > PATTERN || text.chars().any(char::is_control) {
            true => Err(InvalidRequestRule::Name(shown(&text))),
            false => Ok(Glob(text)),
        }
    }
}

impl From<Glob> for String {
    fn from(glob: Glob) -> String {
        glob.0
    }
}

/// Pattern of paths: `*` stands for any characters within a segment, `**` for any number of segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathPattern(String);

impl PathPattern {
    /// Returns true if the pattern covers the path.
    pub fn matches(&self, path: &str) -> bool {
        let (pattern, path): (Vec<&str>, Vec<&str>) =
            (self.0[1..].split('/').collect(), path[1..].split('/').collect());
        let (mut at, mut from) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while from < path.len() {
            match pattern.get(at) {
                Some(&"**") => {
                    star = Some((at + 1, from));
                    at += 1;
                }
                Some(segment) if glob(segment, path[from]) => (at, from) = (at + 1, from + 1),
                _ => match star {
                    Some((after, taken)) => {
                        star = Some((after, taken + 1));
                        (at, from) = (after, taken + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|segment| *segment == "**")
    }
}

impl PathPattern {
    /// Why a pattern that has a query matches nothing.
    pub(crate) const WITH_QUERY: &str = "matches nothing: the path of a request ends before `?` and `#`; `query` of `http` is about parameters";

    /// Returns true if the pattern has what follows a path.
    pub(crate) fn has_query(&self) -> bool {
        self.0.contains(['?', '#'])
    }

    /// Returns true if the pattern is written for parameters of segments.
    fn has_parameters(&self) -> bool {
        self.0.contains(';')
    }
}

impl TryFrom<String> for PathPattern {
    type Error = InvalidRequestRule;

    fn try_from(text: String) -> Result<PathPattern, InvalidRequestRule> {
        let stars = text.split('/').all(|segment| segment == "**" || !segment.contains("**"));
        match text.starts_with('/') && text.len() <= PATTERN && stars && !text.chars().any(char::is_control) {
            true => Ok(PathPattern(text)),
            false => Err(InvalidRequestRule::Path(shown(&text))),
        }
    }
}

impl From<PathPattern> for String {
    fn from(pattern: PathPattern) -> String {
        pattern.0
    }
}

/// Method of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Method(String);

impl TryFrom<String> for Method {
    type Error = InvalidRequestRule;

    fn try_from(text: String) -> Result<Method, InvalidRequestRule> {
        let letters = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        match letters && (1..=32).contains(&text.len()) {
            true if matches!(text.as_str(), "CONNECT" | "TRACE") => Err(InvalidRequestRule::Refused(text)),
            true => Ok(Method(text)),
            false => Err(InvalidRequestRule::Method(shown(&text))),
        }
    }
}

impl From<Method> for String {
    fn from(method: Method) -> String {
        method.0
    }
}

/// Regular expression that matches a whole value. It is compiled where it is first used: a server keeps the policies of many
/// sandboxes, and decides by none of them.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    /// Bytes that it takes when it is compiled: the power of two above them.
    size: usize,
    regex: Arc<OnceLock<Option<Regex>>>,
}

/// Maximum bytes of one compiled expression, and the least that is counted for one.
const COMPILED: std::ops::RangeInclusive<usize> = 1 << 12..=1 << 18;

impl Pattern {
    /// Returns the bytes that it takes when it is compiled.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns whether the whole value matches; `None` if the expression cannot be compiled, which was tried before.
    fn is_match(&self, value: &str) -> Option<bool> {
        let regex = self.regex.get_or_init(|| compiled(&self.text, self.size).ok());
        regex.as_ref().map(|regex| regex.is_match(value))
    }
}

/// Compiles an expression that takes at most so many bytes, and as many while it matches.
fn compiled(text: &str, size: usize) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&format!("^(?:{text})$")).size_limit(size).dfa_size_limit(size).build()
}

impl fmt::Debug for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(formatter)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Pattern, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() > PATTERN {
            return Err(serde::de::Error::custom(InvalidRequestRule::Name(shown(&text))));
        }
        let mut size = *COMPILED.start();
        let built = loop {
            match compiled(&text, size) {
                Err(regex::Error::CompiledTooBig(_)) if size < *COMPILED.end() => size *= 2,
                built => break built,
            }
        };
        match built {
            Ok(_) => Ok(Pattern { text, size, regex: Arc::default() }),
            Err(error) => {
                let reason = error.to_string();
                let reason = reason.lines().last().unwrap_or_default().trim().to_owned();
                Err(serde::de::Error::custom(InvalidRequestRule::Regex(shown(&text), reason)))
            }
        }
    }
}

/// Value of a header or a query parameter: the one of these that is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ValueMatch {
    /// Name; of a header in any case.
    pub name: String,
    /// The whole value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// Its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// A regular expression of the whole value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<Pattern>,
}

impl ValueMatch {
    /// Returns true if exactly one way to compare is given.
    pub(crate) fn is_one(&self) -> bool {
        [self.exact.is_some(), self.prefix.is_some(), self.regex.is_some()]
            .iter()
            .filter(|given| **given)
            .count()
            == 1
    }

    /// Returns true if the value matches; `unknown` if that cannot be found out.
    fn matches(&self, value: &str, unknown: bool) -> bool {
        self.exact.as_deref().is_some_and(|exact| exact == value)
            || self.prefix.as_deref().is_some_and(|prefix| value.starts_with(prefix))
            || self.regex.as_ref().is_some_and(|regex| regex.is_match(value).unwrap_or(unknown))
    }
}

/// Body of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Body {
    /// Maximum bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<crate::budget::Bytes>,
    /// Media types, without parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content_types: Vec<String>,
}

/// Requests of HTTP: those that match every field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRule {
    /// Methods; without any, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Method>,
    /// Paths; without any, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathPattern>,
    /// Query parameters, all of which must be there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<ValueMatch>,
    /// Headers, all of which must be there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<ValueMatch>,
    /// Body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
    /// Requests that become a WebSocket. Only entries with `true` allow these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub websocket: bool,
    /// Decision for matching requests.
    #[serde(default)]
    pub decision: Decision,
}

impl HttpRule {
    /// Returns true if the entry covers the request. An entry that denies covers what could be meant: one of several values
    /// of a header is enough, and a body that is too large is not needed. One that allows covers only what must be meant.
    /// Paths and queries with semicolons can mean two things.
    pub fn matches(&self, request: &Request<'_>) -> bool {
        let denies = self.decision == Decision::Deny;
        // Values of exactly this name, and of names that some server takes for it.
        let every = |matches: &ValueMatch, values: &[(bool, Option<String>)]| {
            let one = |(_, value): &(bool, Option<String>)| match value {
                Some(value) => matches.matches(value, denies),
                None => denies,
            };
            // Some servers join them: all, or those of exactly this name.
            let joined = |separator: &str| {
                let join = |all: bool| {
                    let values = values.iter().filter(|(is_own, _)| all || *is_own);
                    let values: Option<Vec<&str>> = values.map(|(_, value)| value.as_deref()).collect();
                    values.is_some_and(|values| matches.matches(&values.join(separator), denies))
                };
                join(true) || join(false)
            };
            match denies {
                true => values.iter().any(one) || (values.len() > 1 && [",", ", "].into_iter().any(joined)),
                false => values.iter().any(|(is_own, _)| *is_own) && values.iter().all(one),
            }
        };
        let method = self.methods.is_empty() || self.methods.iter().any(|method| method.0 == request.method);
        let query = |matches: &ValueMatch| {
            let one =
                |separators: &&'static [char]| every(matches, &request.parameter(&matches.name, separators));
            let mut readings = request.separators().iter();
            if denies { readings.any(one) } else { readings.all(one) }
        };
        let header = |matches: &ValueMatch| {
            let values = request.header(&matches.name);
            let values = values
                .map(|(name, value)| (name.eq_ignore_ascii_case(&matches.name), Some(value.to_owned())));
            every(matches, &values.collect::<Vec<_>>())
        };
        // Without `websocket` an entry denies these requests too.
        let upgrade = self.websocket == request.websocket || (denies && !self.websocket);
        method
            && (self.paths.is_empty() || covers_path(&self.paths, request.path, denies))
            && upgrade
            && self.query.iter().all(query)
            && self.headers.iter().all(header)
            && self.body.as_ref().is_none_or(|body| covers(body, request, denies))
    }

    /// Returns the maximum length of a body that the entry allows.
    pub(crate) fn max_body(&self) -> u64 {
        self.body.as_ref().and_then(|body| body.max_bytes).map_or(u64::MAX, |bytes| bytes.count())
    }
}

/// Returns true if one of the patterns covers the path. One that allows covers it also without the parameters of its segments.
pub(crate) fn covers_path(patterns: &[PathPattern], path: &Path, denies: bool) -> bool {
    let covers = |path: &str| patterns.iter().any(|pattern| pattern.matches(path));
    match path.without_parameters() {
        None => covers(path.as_str()),
        Some(plain) if denies => covers(path.as_str()) || covers(plain),
        Some(plain) => {
            let mut matching = patterns.iter().filter(|pattern| pattern.matches(path.as_str()));
            matching.any(|pattern| pattern.has_parameters() || covers(plain))
        }
    }
}

fn covers(body: &Body, request: &Request<'_>, denies: bool) -> bool {
    // A body of unknown length is counted while it is sent.
    let length = body.max_bytes.is_none_or(|most| request.length.is_none_or(|length| length <= most.count()));
    let media = |value: &str| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let listed =
        |value: &str| body.content_types.iter().any(|kind| kind.to_ascii_lowercase() == media(value));
    let kinds = body.content_types.is_empty() || !request.may_have_body() || {
        let mut values = request.header("content-type");
        let is_own = |(name, _): (&str, &str)| name.eq_ignore_ascii_case("content-type");
        match denies {
            true => values.any(|(_, value)| listed(value)),
            false => request.header("content-type").any(is_own) && values.all(|(_, value)| listed(value)),
        }
    };
    length && kinds
}

/// Calls of JSON-RPC, as MCP and A2A make them: those that match every field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct McpRule {
    /// Methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Glob>,
    /// Tools, which `tools/call` names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Glob>,
    /// Condition on the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Expression>,
    /// Decision for matching calls.
    #[serde(default)]
    pub decision: Decision,
}

impl McpRule {
    /// Returns true if some call matches `methods` and `tools`: only `tools/call` names a tool.
    pub(crate) fn may_match(&self) -> bool {
        let calls = |glob: &Glob| glob.matches("tools/call");
        self.tools.is_empty() || self.methods.is_empty() || self.methods.iter().any(calls)
    }

    /// Returns true if the entry covers a call. `many` says that the calls of the body have too many values for a loop.
    fn matches(&self, call: &Call, request: Option<&Request<'_>>, moment: &Moment<'_>, many: bool) -> bool {
        let denies = self.decision == Decision::Deny;
        let value = |args: &Expression| {
            let value = (!many || !args.has_loop()).then(|| args.evaluate(moment, request, Some(call)));
            value.flatten().unwrap_or(denies)
        };
        let any = |globs: &[Glob], name: &Option<String>| {
            globs.is_empty() || name.as_ref().is_some_and(|name| globs.iter().any(|glob| glob.matches(name)))
        };
        any(&self.methods, &call.method)
            && any(&self.tools, &call.tool)
            && self.args.as_ref().is_none_or(value)
    }
}

/// Decides about calls by these entries: the strictest of all calls; `None` if a call matches no entry. Answers to the server,
/// notifications and what every client begins with need an entry that allows something.
pub fn decide_calls(
    rules: &[McpRule],
    calls: &[Call],
    request: Option<&Request<'_>>,
    moment: &Moment<'_>,
) -> Option<Decision> {
    let opens = rules.iter().any(|rule| rule.decision == Decision::Allow);
    let loops = rules.iter().filter_map(|rule| rule.args.as_ref()).any(Expression::has_loop);
    let many = loops && calls.iter().map(|call| nodes(&call.arguments)).sum::<usize>() > LOOP_NODES;
    let one = |call: &Call| {
        let matching = rules.iter().filter(|rule| rule.matches(call, request, moment, many));
        let found = matching.map(|rule| rule.decision).max();
        let implied = match &call.method {
            None => opens,
            Some(method) => {
                opens && (LIFECYCLE.contains(&method.as_str()) || method.starts_with("notifications/"))
            }
        };
        found.or(implied.then_some(Decision::Allow))
    };
    let decisions: Vec<_> = calls.iter().map(one).collect();
    match decisions.iter().flatten().max() {
        Some(Decision::Deny) => Some(Decision::Deny),
        _ => decisions.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{Facts, Session};

    fn path(pattern: &str, path: &str) -> bool {
        PathPattern::try_from(pattern.to_owned()).unwrap().matches(path)
    }

    /// One body has as many calls as fit, and a loop over each.
    #[test]
    fn condition_with_a_loop_has_no_value_for_many_calls_together() {
        let rules: Vec<McpRule> =
            serde_json::from_str(r#"[{"tools": ["t"], "args": "args.list.all(x, x == 1)"}]"#).unwrap();
        let call = |count| {
            let arguments = serde_json::json!({"list": vec![1; count]});
            Call { method: Some("tools/call".into()), tool: Some("t".into()), arguments }
        };
        let decide = |calls: &[Call]| decide_calls(&rules, calls, None, &Moment::default());
        assert_eq!(decide(&[call(200)]), Some(Decision::Allow));
        assert_eq!(decide(&[call(200), call(200), call(200)]), None);
    }

    #[test]
    fn patterns_of_paths() {
        for (pattern, text, expected) in [
            ("/", "/", true),
            ("/a", "/a", true),
            ("/a", "/a/", false),
            ("/a", "/A", false),
            ("/*", "/a", true),
            ("/*", "/", true),
            ("/*", "/a/b", false),
            ("/repos/*/pulls", "/repos/x/pulls", true),
            ("/repos/*/pulls", "/repos/x/y/pulls", false),
            ("/a-*.json", "/a-1.json", true),
            ("/a-*.json", "/a-1.jso", false),
            ("/simple/**", "/simple/six/", true),
            ("/simple/**", "/simple", true),
            ("/simple/**", "/simples/x", false),
            ("/**/x", "/a/b/x", true),
            ("/**/x", "/x", true),
            ("/**/x/**/y", "/a/x/b/x/y", true),
            ("/**", "/", true),
        ] {
            assert_eq!(path(pattern, text), expected, "{pattern} {text}");
        }
        for wrong in ["", "a", "/a**", "/**a/b"] {
            assert!(PathPattern::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }

    fn matches(rule: &str, change: impl Fn(&mut Request<'_>)) -> bool {
        let rule: HttpRule = serde_json::from_str(rule).unwrap();
        let path = Path::read("/a").unwrap();
        let mut request = Request {
            host: "a.example",
            port: 443,
            method: "GET",
            path: &path,
            query: "q=1&r=a%20b",
            headers: vec![("x-one", "1"), ("content-type", "application/json; charset=utf-8")],
            websocket: false,
            tls: true,
            length: Some(10),
            calls: None,
        };
        change(&mut request);
        rule.matches(&request)
    }

    #[test]
    fn entry_covers_requests_that_match_every_field() {
        let same = |_: &mut Request<'_>| ();
        for (rule, expected) in [
            ("{}", true),
            (r#"{"methods": ["GET", "HEAD"]}"#, true),
            (r#"{"methods": ["POST"]}"#, false),
            (r#"{"paths": ["/b"]}"#, false),
            (r#"{"query": [{"name": "q", "exact": "1"}, {"name": "r", "prefix": "a "}]}"#, true),
            (r#"{"query": [{"name": "s", "prefix": ""}]}"#, false),
            (r#"{"headers": [{"name": "X-One", "regex": "[0-9]"}]}"#, true),
            (r#"{"headers": [{"name": "X-One", "regex": "2|1x"}]}"#, false),
            (r#"{"body": {"maxBytes": 10, "contentTypes": ["application/json"]}}"#, true),
            (r#"{"body": {"maxBytes": 9}}"#, false),
            (r#"{"body": {"contentTypes": ["text/plain"]}}"#, false),
            (r#"{"websocket": true}"#, false),
        ] {
            assert_eq!(matches(rule, same), expected, "{rule}");
        }
        assert!(matches(r#"{"websocket": true}"#, |request| request.websocket = true));
        assert!(!matches("{}", |request| request.websocket = true));
        assert!(matches(r#"{"decision": "Deny"}"#, |request| request.websocket = true));
    }

    #[test]
    fn repeated_values_are_judged_strictly() {
        let twice = |request: &mut Request<'_>| request.query = "q=1&q=2&s=%zz";
        assert!(!matches(r#"{"query": [{"name": "q", "exact": "1"}]}"#, twice));
        assert!(matches(r#"{"query": [{"name": "q", "exact": "1"}], "decision": "Deny"}"#, twice));
        assert!(!matches(r#"{"query": [{"name": "s", "prefix": ""}]}"#, twice));
        assert!(matches(r#"{"query": [{"name": "s", "exact": "x"}], "decision": "Deny"}"#, twice));
        // Regression: joined values of parameters did not deny, and those of headers with a space alone.
        for joined in ["1,2", "1, 2"] {
            let denies = |field: &str| {
                format!(r#"{{"{field}": [{{"name": "q", "exact": "{joined}"}}], "decision": "Deny"}}"#)
            };
            assert!(matches(&denies("query"), twice), "{joined}");
            let other = |request: &mut Request<'_>| request.query = "q=1&Q=x&q=2";
            assert!(matches(&denies("query"), other), "{joined}");
            let headers = |request: &mut Request<'_>| request.headers = vec![("q", "1"), ("q", "2")];
            assert!(matches(&denies("headers"), headers), "{joined}");
        }
    }

    /// Regression: a name that only some servers take for the one of an entry was enough to allow.
    #[test]
    fn entry_that_allows_needs_the_name_as_it_is() {
        let rule = r#"{"query": [{"name": "dry_run", "exact": "true"}], "headers": [{"name": "X-Dry", "exact": "1"}]}"#;
        for (query, name, expected) in [
            ("dry_run=true", "x-dry", true),
            ("dry_run=true&DRY_RUN=true", "X-DRY", true),
            ("dry_run=true&dry.run=false", "x-dry", false),
            ("DRY_RUN=true", "x-dry", false),
            ("dry_run[]=true", "x-dry", false),
            ("dry_run=true", "x_dry", false),
        ] {
            let change = |request: &mut Request<'_>| {
                request.query = query;
                request.headers = vec![(name, "1")];
            };
            assert_eq!(matches(rule, change), expected, "{query} {name}");
        }
    }

    /// Regression: a name of many brackets took time with the square of its length.
    #[test]
    fn name_of_many_brackets_is_compared_once() {
        let many: &str = "[".repeat(1 << 20).leak();
        let denies = r#"{"query": [{"name": "q", "exact": "1"}], "decision": "Deny"}"#;
        // Minutes before.
        assert!(!matches(denies, |request| request.query = many));
    }

    #[test]
    fn semicolons_are_read_in_both_ways() {
        let covers = |rule: &str, path: &str, query: &str| {
            let rule: HttpRule = serde_json::from_str(rule).unwrap();
            let path = Path::read(path).unwrap();
            let request = Request {
                host: "a.example",
                port: 443,
                method: "GET",
                path: &path,
                query,
                headers: Vec::new(),
                websocket: false,
                tls: true,
                length: Some(0),
                calls: None,
            };
            rule.matches(&request)
        };
        let denies = r#"{"paths": ["/admin/**", "/x/*/y"], "decision": "Deny"}"#;
        for path in
            ["/admin;v=1/users", "/admin;/users", "/admin%3bv", "/admin/a;b", "/x;1/a;2/y;3", "/x/a/y;z"]
        {
            assert!(covers(denies, path, ""), "{path}");
        }
        assert!(!covers(denies, "/public;admin=1/x", ""));
        let allows = r#"{"paths": ["/simple/*", "/a*c", "/m;v=1/*"]}"#;
        for (path, expected) in [
            ("/simple/six", true),
            ("/simple/six;v=1", true),
            ("/simple;v=1/six", false),
            ("/a;c", false),
            ("/m;v=1/x", true),
            ("/m;v=2/x", false),
            ("/m/x", false),
        ] {
            assert_eq!(covers(allows, path, ""), expected, "{path}");
        }
        let denies = r#"{"query": [{"name": "admin", "exact": "1"}], "decision": "Deny"}"#;
        for query in ["admin=1", "a;admin=1", ";admin=1", "admin=0;admin=1", "admin=1;x", "a=1&b;adm%69n=%31"]
        {
            assert!(covers(denies, "/", query), "{query}");
        }
        for query in ["a=%3Badmin=1", "a=1;admin=2", "a;admin"] {
            assert!(!covers(denies, "/", query), "{query}");
        }
        let allows = r#"{"query": [{"name": "q", "prefix": "1"}]}"#;
        for (query, expected) in [
            ("q=1&note=a;b", true),
            ("q=1;r=2", true),
            ("q=1;q=2", false),
            ("r=2;q=1", false),
            ("q=1%3Bq=2", true),
        ] {
            assert_eq!(covers(allows, "/", query), expected, "{query}");
        }
        assert!(covers("{}", "/a;b/c", "x=1;y=2"), "no condition reads them");
    }

    #[test]
    fn calls_are_decided_by_the_strictest() {
        let rules: Vec<McpRule> = serde_json::from_str(
            r#"[{"tools": ["search_*"]}, {"tools": ["read"], "args": "args.path.startsWith('/data/')"},
                {"tools": ["*_all"], "decision": "Deny"}]"#,
        )
        .unwrap();
        let facts = Facts::default();
        let moment = Moment { facts: &facts, session: Session::default(), seconds: 0 };
        let call = |tool: &str, arguments: &str| Call {
            method: Some("tools/call".into()),
            tool: Some(tool.into()),
            arguments: serde_json::from_str(arguments).unwrap(),
        };
        let other = |method: &str| Call {
            method: Some(method.into()),
            tool: None,
            arguments: serde_json::Value::Null,
        };
        let decide = |calls: &[Call]| decide_calls(&rules, calls, None, &moment);
        for (calls, expected) in [
            (vec![call("search_web", "{}")], Some(Decision::Allow)),
            (vec![call("search_all", "{}")], Some(Decision::Deny)),
            (vec![call("read", r#"{"path": "/data/x"}"#)], Some(Decision::Allow)),
            (vec![call("read", r#"{"path": "/etc/x"}"#)], None),
            (vec![call("read", "{}")], None),
            (vec![call("write", "{}")], None),
            (
                vec![other("initialize"), other("notifications/initialized"), other("tools/list")],
                Some(Decision::Allow),
            ),
            (vec![other("resources/read")], None),
            (vec![call("search_web", "{}"), call("write", "{}")], None),
            (vec![call("write", "{}"), call("search_all", "{}")], Some(Decision::Deny)),
        ] {
            assert_eq!(decide(&calls), expected, "{calls:?}");
        }
        let denies = r#"[{"tools": ["x"], "decision": "Deny", "args": "args.a == 1"}]"#;
        let denies: Vec<McpRule> = serde_json::from_str(denies).unwrap();
        assert_eq!(
            decide_calls(&denies, &[call("x", "{}")], None, &moment),
            Some(Decision::Deny),
            "an error denies"
        );
        assert_eq!(decide_calls(&denies, &[other("initialize")], None, &moment), None);
    }

    #[test]
    fn pattern_without_meaning_is_refused() {
        for rule in [
            r#"{"methods": ["get"]}"#,
            r#"{"methods": ["CONNECT"]}"#,
            r#"{"paths": ["a"]}"#,
            r#"{"headers": [{"name": "a", "regex": "("}]}"#,
            r#"{"unknown": 1}"#,
            r#"{"body": {"maxBytes": "x"}}"#,
        ] {
            assert!(serde_json::from_str::<HttpRule>(rule).is_err(), "{rule}");
        }
        assert!(serde_json::from_str::<McpRule>(r#"{"tools": [""]}"#).is_err());
    }
}
