//! Hostile tests of the parsers, from arbitrary bytes.

use crate::decide::{Authority, Level, decide, may_dial};
use crate::destination::{Decision, Destination};
use crate::expression::{Expression, Moment};
use crate::http::{HttpRule, PathPattern};
use crate::network::NetworkLevel;
use crate::object::PolicyObject;
use crate::request::{Call, Path, Request, decode};

/// Reads any bytes as the `networkPolicy` of a template. What it opens is bounded, and no rule opens addresses that never are.
pub fn network(bytes: &[u8]) {
    let Ok(rules) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    let spec = serde_json::json!({ "networkPolicy": rules });
    let Some(level) = NetworkLevel::read("t", &spec) else { return };
    let ranges = |level: &Level| -> usize {
        level.egress.iter().flat_map(|egress| &egress.rules).map(|rule| rule.cidrs.len()).sum()
    };
    assert!(ranges(&level.alone) <= 1024 && ranges(&level.beside) == ranges(&level.alone), "{rules}");
    let levels = [level.alone];
    for address in ["169.254.169.254", "fe80::1", "100.100.100.200"] {
        let (Ok(destination), Ok(address)) = (address.parse::<Destination>(), address.parse()) else {
            return;
        };
        assert!(may_dial(&levels, &destination, address, &[], &Moment::default()).is_err(), "{rules}");
    }
    if let Ok(name) = "a.example".parse::<Destination>() {
        assert_eq!(decide(&levels, &name, &Moment::default()).decision, Decision::Deny, "{rules}");
    }
}

/// Reads any bytes as the path of a request. One that is accepted has one meaning.
pub fn path(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(path) = Path::read(text) else { return };
    let mut segments = path.as_str().split('/').skip(1).collect::<Vec<_>>();
    assert!(path.as_str().starts_with('/') && !path.as_str().contains(['\\', '\0']), "{text:?}");
    assert!(segments.pop().is_some() && segments.iter().all(|segment| !segment.is_empty()), "{text:?}");
    assert!(!path.as_str().split('/').any(|segment| matches!(segment, "." | "..")), "{text:?}");
    if let Ok(pattern) = PathPattern::try_from("/**".to_owned()) {
        assert!(pattern.matches(path.as_str()), "{text:?}");
    }
}

/// Reads any bytes as the target of a request. Entries about `/admin` and the parameter `admin` decide about each meaning
/// that a server may give it: a denial covers it if one of them is denied, and an entry that allows only if all are.
pub fn target(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let Ok(read) = Path::read(path) else { return };
    let request = Request {
        host: "a.example",
        port: 443,
        method: "GET",
        path: &read,
        query,
        headers: Vec::new(),
        websocket: false,
        tls: true,
        length: Some(0),
        calls: None,
    };
    let by_path = HttpRule { paths: pattern("/admin/**"), ..HttpRule::default() };
    let by_query = HttpRule { query: parameter("admin"), ..HttpRule::default() };
    for (entry, meanings) in [(by_path, paths(path)), (by_query, queries(query))] {
        let denies = HttpRule { decision: Decision::Deny, ..entry.clone() };
        let (one, all) = (meanings.contains(&true), !meanings.contains(&false));
        assert!(denies.matches(&request) || !one, "{text:?} is not denied");
        assert!(!entry.matches(&request) || all, "{text:?} is allowed");
    }
}

fn pattern(text: &str) -> Vec<PathPattern> {
    PathPattern::try_from(text.to_owned()).into_iter().collect()
}

fn parameter(name: &str) -> Vec<crate::http::ValueMatch> {
    let value = serde_json::json!({ "name": name, "exact": "1" });
    serde_json::from_value(value).into_iter().collect()
}

/// Returns whether a path is at or below `/admin`, as servers read it: parameters of segments are cut before or after
/// decoding, or not at all, and empty segments are dropped.
fn paths(path: &str) -> Vec<bool> {
    let decoded =
        |text: &str| decode(text.as_bytes()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let cut = |text: &str| {
        let segments = text.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
        segments.filter(|segment| !segment.is_empty()).collect::<Vec<_>>().join("/")
    };
    let (before, whole) = (decoded(&cut(path)), decoded(path));
    let after = whole.as_deref().map(cut);
    let is_admin = |path: String| path.trim_start_matches('/').split('/').next() == Some("admin");
    [before, after, whole].into_iter().flatten().map(is_admin).collect()
}

/// Returns whether a query has `admin=1` and no other `admin`, as servers read it: with or without semicolons between
/// parameters, and with the first or the last of several values.
fn queries(query: &str) -> Vec<bool> {
    let text = |text: &str| {
        decode(text.replace('+', " ").as_bytes()).and_then(|bytes| String::from_utf8(bytes).ok())
    };
    let separators: [&[char]; 2] = [&['&'], &['&', ';']];
    let read = |separators: &[char]| {
        let pairs = query.split(separators).map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let values = pairs.filter(|(name, _)| text(name).as_deref() == Some("admin"));
        values.map(|(_, value)| text(value).as_deref() == Some("1")).collect::<Vec<_>>()
    };
    let of = |values: Vec<bool>| [values.first().copied(), values.last().copied()].map(|is| is == Some(true));
    separators.into_iter().flat_map(|separators| of(read(separators))).collect()
}

/// Reads any bytes as calls of JSON-RPC. What is accepted is what other readers find.
pub fn calls(bytes: &[u8]) {
    let Some(calls) = Call::parse(bytes) else { return };
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else { panic!("it is no JSON") };
    let messages = match &value {
        serde_json::Value::Array(messages) => messages.as_slice(),
        one => std::slice::from_ref(one),
    };
    assert_eq!(calls.len(), messages.len());
    for (call, message) in calls.iter().zip(messages) {
        assert_eq!(call.method.as_deref(), message.get("method").and_then(|method| method.as_str()));
        let tool = message.pointer("/params/name").and_then(|name| name.as_str());
        assert!(call.tool.is_none() || call.tool.as_deref() == tool);
    }
}

/// Reads any bytes as an expression, evaluates it and judges its fields.
pub fn expression(bytes: &[u8]) {
    let Ok(text) = String::from_utf8(bytes.to_vec()) else { return };
    if let Ok(expression) = Expression::try_from(text) {
        let _ = (expression.evaluate(&Moment::default(), None, None), expression.unknown_field());
    }
}

/// Reads any bytes as a policy. One that is accepted stays the same when it is written and read again, and decides.
pub fn object(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice::<PolicyObject>(bytes) else { return };
    let written =
        serde_json::to_vec(&object).and_then(|bytes| serde_json::from_slice::<PolicyObject>(&bytes));
    assert_eq!(written.ok().as_ref(), Some(&object));
    if object.check().is_err() {
        return;
    }
    let _ =
        (object.check_new(), object.check_for_server(), object.check_for_command(), object.without_effect());
    let Ok(level) = object.into_level(Authority::Namespace) else { return };
    for destination in ["a.example.com", "192.0.2.1:80", "[2001:db8::1]:8443"] {
        let Ok(destination) = destination.parse::<Destination>() else { continue };
        let levels = [level.clone()];
        let verdict = decide(&levels, &destination, &Moment::default());
        assert!(!verdict.conflict || verdict.decision == Decision::Deny, "{destination}");
        let shown = crate::conflict::conflicts(&levels, &Moment::default(), 3);
        assert!(shown.len() <= 3, "{shown:?}");
    }
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("policy_path", super::path);
        feed("policy_object", super::object);
        feed("policy_target", super::target);
        feed("policy_calls", super::calls);
        feed("policy_network", super::network);
        feed("policy_expression", super::expression);
    }

    /// Ways to write a target that some servers take for `/admin/users` or for `admin=1`, and others do not.
    #[test]
    fn every_way_around_a_denial_is_denied() {
        let mut targets = Vec::new();
        for sign in [";", "%3b", "%3B", ";x", ";x=1", ";x=a%2eb", ";;", "%3Bx;y", ";%61=1"] {
            for path in
                ["/admin@/users", "/admin/users@", "/admin@", "/@/admin/users", "/a/..@/admin", "/.@/admin"]
            {
                targets.push(path.replace('@', sign));
            }
            targets.push(format!("/ad%6din{sign}/users"));
        }
        for query in [
            "admin=1",
            "x=1;admin=1",
            ";admin=1",
            "x;admin=1",
            "admin=1;x=1",
            "admin=0;admin=1",
            "admin=0&admin=1",
            "admin=1&admin=0",
            "x=1&y;admin=1&z",
            "ad%6din=%31;x",
            ";;admin=1;;",
            "x=%26;admin=1",
            "x=1;;adm%69n=1",
        ] {
            targets.push(format!("/public?{query}"));
        }
        let denied = |target: &str| {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let Ok(path) = super::Path::read(path) else { return true };
            let denies = r#"[{"paths": ["/admin/**"], "decision": "Deny"},
                {"query": [{"name": "admin", "exact": "1"}], "decision": "Deny"}]"#;
            let denies: Vec<super::HttpRule> = serde_json::from_str(denies).unwrap();
            let request = super::Request {
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
            denies.iter().any(|entry| entry.matches(&request))
        };
        for target in &targets {
            super::target(target.as_bytes());
            assert!(denied(target), "{target}");
        }
        // Those mean nothing else to any server.
        for target in [
            "/public;admin=1/x",
            "/public/admin;x",
            "/a;b/c;d",
            "/administrator;x",
            "/x?note=a;b",
            "/x?a=1;b=2",
            "/x?a=%3Badmin=1",
            "/x?admin=2;x=1",
            "/x?administrator=1;y",
            "/x;y?z;w",
        ] {
            super::target(target.as_bytes());
            assert!(!denied(target), "{target}");
        }
    }
}
