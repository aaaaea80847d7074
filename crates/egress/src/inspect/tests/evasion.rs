//! Ways past rules that attacks found: trailers, repeated headers, bodies that are held, paths that only some rules read.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;

use super::later::{FREE, ends, part, plain_site};
use super::*;

/// A request by HTTP/2, with these headers and trailers.
async fn by_http2(
    site: &Site,
    method: &str,
    headers: &[(&str, &str)],
    (body, trailers): (&'static str, HeaderMap),
) -> Option<(u16, String)> {
    let stream = site.connect("h2").await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(format!("https://localhost:{}/", site.port));
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_str(value).unwrap());
    }
    let trailers = std::future::ready((!trailers.is_empty()).then_some(Ok(trailers)));
    let body = Full::new(Bytes::from_static(body.as_bytes())).with_trailers(trailers);
    let response = sender.send_request(request.body(body).unwrap()).await.ok()?;
    let status = response.status().as_u16();
    Some((status, String::from_utf8_lossy(&response.collect().await.ok()?.to_bytes()).into_owned()))
}

fn trailers(name: &'static str, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
}

fn none(body: &'static str) -> (&'static str, HeaderMap) {
    (body, HeaderMap::new())
}

/// Adds a scanner to the policy.
fn scan(site: &Site) {
    let level = Level::clone(&site.sandbox.rules().levels[0]);
    let scans = Level { scanner: Some(serde_json::from_str("{}").unwrap()), ..level };
    site.sandbox.set_levels([Arc::new(scans)].into());
}

#[tokio::test]
async fn trailers_count_as_bytes_of_a_body_and_change_no_meaning() {
    let site = Site::new(r#"{"name": "put", AT, "http": [{"body": {"maxBytes": 100}}]}"#).await;
    let sent = async |trailers: HeaderMap| by_http2(&site, "POST", &[], ("12345", trailers)).await;
    let (status, echoed) = sent(trailers("x-sum", "short")).await.unwrap();
    assert!(status == 200 && echoed.contains("trailer x-sum: short\n"), "{status} {echoed}");
    let long = sent(trailers("x-sum", &"a".repeat(10_000))).await;
    assert!(long.is_none_or(|(status, _)| status != 200), "trailers are in no limit");
    let (status, echoed) = sent(trailers("x-http-method-override", "DELETE")).await.unwrap();
    assert!(status == 200 && !echoed.contains("trailer"), "{status} {echoed}");
}

/// Found by review: they were dropped, since the header went away that lists them.
#[tokio::test]
async fn trailers_of_http1_arrive() {
    let site = Site::new(r#"{"name": "put", AT, "http": [{}]}"#).await;
    let sent = async |name: &str| {
        let head = format!(
            "POST /a HTTP/1.1\r\nHost: localhost:{}\r\nTransfer-Encoding: chunked\r\nTrailer: {name}\r\n\
             Connection: close\r\n\r\n2\r\nab\r\n0\r\n{name}: sum\r\n\r\n",
            site.port
        );
        site.raw(&head).await
    };
    let answer = sent("x-sum").await;
    assert!(answer.contains("trailer x-sum: sum\n") && answer.contains("trailer: x-sum\n"), "{answer}");
    let answer = sent("x-http-method-override").await;
    assert!(!answer.contains("trailer x-http-method-override"), "{answer}");
}

/// Found by review: the values of one body took some hundred times its bytes.
#[tokio::test]
async fn body_with_too_many_values_is_refused_before_they_are_read() {
    let site = Site::new(r#"{"name": "mcp", AT, "mcp": [{"tools": ["a"]}]}"#).await;
    let call = |values: usize| {
        let values = vec![r#"{"":0}"#; values].join(",");
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"a","arguments":[{values}]}}}}"#
        )
    };
    let answer = site.post("/mcp", &call(5000)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = site.post("/mcp", &call(50_000)).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("more values"), "{answer}");
}

/// A rule that denies `args.version == 2` let pass what a server reads as 2.
#[tokio::test]
async fn numbers_of_calls_are_compared_by_value() {
    for (args, denied, passes) in [
        ("args.version == 2.0", vec!["2", "2.0", "2e0", "20E-1"], vec!["3", "2.5", "\"2\""]),
        ("args.version == 2", vec!["2", "2.0", "2.00"], vec!["3"]),
        ("args.version in [1, 2]", vec!["1.0", "2.0", "2"], vec!["3.0"]),
    ] {
        let entry = format!(r#"{{"tools": ["a"], "args": "{args}", "decision": "Deny"}}"#);
        let site =
            Site::new(&format!(r#"{{"name": "mcp", AT, "mcp": [{{"tools": ["a"]}}, {entry}]}}"#)).await;
        for (version, expected) in
            denied.iter().map(|version| (version, 403)).chain(passes.iter().map(|version| (version, 200)))
        {
            let call = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"a","arguments":{{"version":{version}}}}}}}"#
            );
            let answer = site.post("/mcp", &call).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{args} {version}: {answer}");
        }
    }
}

#[tokio::test]
async fn headers_of_http2_are_those_that_a_server_of_http1_reads() {
    let denied = r#"{"headers": [{"name": "x-mode", "exact": "evil"}], "decision": "Deny"}"#;
    let cookie = r#"{"headers": [{"name": "cookie", "exact": "a=1; b=2"}], "decision": "Deny"}"#;
    let list = r#"{"headers": [{"name": "x-list", "exact": "p, q"}], "decision": "Deny"}"#;
    let site =
        Site::new(&format!(r#"{{"name": "get", AT, "http": [{{}}, {denied}, {cookie}, {list}]}}"#)).await;
    let many: Vec<(String, &str)> = (0..101).map(|number| (format!("x-{number}"), "1")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    for (headers, expected) in [
        (vec![("x-mode", "good")], 200),
        (vec![("x-mode", "evil")], 403),
        (vec![("x-mode", "evil ")], 403),
        (vec![("x-mode", "\tevil")], 403),
        (vec![("cookie", "a=1")], 200),
        (vec![("cookie", "a=1"), ("cookie", "b=2")], 403),
        (vec![("x-list", "p"), ("x-list", "q")], 403),
        (many, 403),
    ] {
        let (status, _) = by_http2(&site, "GET", &headers, none("")).await.unwrap();
        assert_eq!(status, expected, "{headers:?}");
    }
    let (_, echoed) =
        by_http2(&site, "GET", &[("cookie", "c=3"), ("cookie", "d=4")], none("")).await.unwrap();
    assert!(echoed.contains("cookie: c=3; d=4\n"), "{echoed}");
}

/// A condition saw the last of several headers, and no name with `_`.
#[tokio::test]
async fn condition_on_a_header_holds_for_each_of_its_values() {
    let when = r#""when": "request.headers['x-mode'] == 'safe'""#;
    let site = Site::new(&format!(r#"{{"name": "safe", AT, {when}}}"#)).await;
    for (headers, expected) in [
        (vec![("x-mode", "safe")], 200),
        (vec![("x-mode", "safe"), ("x-mode", "safe")], 200),
        (vec![("x-mode", "evil"), ("x-mode", "safe")], 403),
        (vec![("x-mode", "safe"), ("x-mode", "evil")], 403),
        (vec![("x-mode", "safe"), ("x-mode", "evil"), ("x-mode", "safe")], 403),
        (vec![("x_mode", "evil"), ("x-mode", "safe")], 403),
    ] {
        let (status, _) = by_http2(&site, "GET", &headers, none("")).await.unwrap();
        assert_eq!(status, expected, "{headers:?}");
    }
}

/// The path `/` stood for one that servers read in several ways, where the rule for TLS did not decide about requests.
#[tokio::test]
async fn ambiguous_path_is_refused_where_a_rule_reads_requests() {
    let all = r#"{"name": "all", "any": true, "ports": ["1-65535"], "private": ["127.0.0.0/8", "::1"]}"#;
    let site = plain_site(&format!(r#"{all}, {{"name": "health", AT, "http": [{{"paths": ["/"]}}]}}"#)).await;
    assert!(site.get_plain("/").await.starts_with("HTTP/1.1 200"));
    for target in ["/admin", "//admin", "/%2e%2e/admin", "/a%2fb"] {
        let answer = site.get_plain(target).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{target}: {answer}");
    }
}

/// The body of a request that is scanned can be held for 30 s after it was decided.
#[tokio::test]
async fn request_whose_body_is_held_is_refused_once_its_condition_no_longer_holds() {
    let rules = format!(r#"{{"name": "post", AT, "when": "session.requests < 2", "http": [{{}}]}}, {FREE}"#);
    let site = plain_site(&rules).await;
    scan(&site);
    let head = "POST /held HTTP/1.1\r\nHost: localhost:PORT\r\nContent-Length: 4\r\n\r\nab";
    let mut stream = site.begin_plain(head).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..3 {
        assert!(site.get_plain("/free").await.starts_with("HTTP/1.1 200"));
    }
    tokio::time::sleep(crate::sandbox::RECHECK).await;
    stream.write_all(b"cd").await.unwrap();
    let answer = part(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// A body that was being sent used the budget of the rules by which it began.
#[tokio::test]
async fn budget_of_new_rules_counts_for_a_body_that_is_being_sent() {
    let site = plain_site(FREE).await;
    let head =
        "POST /free HTTP/1.1\r\nHost: localhost:PORT\r\nX-Early: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut stream = site.begin_plain(&format!("{head}2\r\nab\r\n")).await;
    let begun = part(&mut stream).await;
    assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
    let mut level = Level::clone(&site.sandbox.rules().levels[0]);
    let egress = level.egress.as_mut().unwrap();
    egress.budget = Some(serde_json::from_str(r#"{"bytesOut": 10, "per": "1h"}"#).unwrap());
    site.sandbox.set_levels([Arc::new(level)].into());
    let _ = stream.write_all(format!("14\r\n{}\r\n", "a".repeat(20)).as_bytes()).await;
    ends(stream).await;
}

/// Compressed messages of gRPC were scanned as bytes, in which nothing is found.
#[tokio::test]
async fn single_messages_that_are_compressed_are_refused_where_a_scanner_reads_them() {
    let site = plain_site(FREE).await;
    let sent = async |headers: &str| {
        let fixed = "POST /free HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\nContent-Length: 6";
        let mut stream = site.begin_plain(&format!("{fixed}\r\n{headers}\r\n\r\n\x01\0\0\0\x01x")).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    let compressed = [
        "grpc-encoding: gzip",
        "Connect-Content-Encoding: br",
        "grpc-encoding: identity\r\nGrpc-Encoding: zstd",
    ];
    let compressed = compressed.iter().flat_map(|headers| [(*headers).into(), answered(headers)]);
    let compressed: Vec<String> = compressed.collect();
    for headers in &compressed {
        assert!(sent(headers).await.starts_with("HTTP/1.1 200"), "{headers}: without a scanner");
    }
    scan(&site);
    for headers in &compressed {
        let answer = sent(headers).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{headers}: {answer}");
    }
    let whole = "grpc-encoding: identity";
    for headers in [whole.into(), answered(whole)] {
        assert!(sent(&headers).await.starts_with("HTTP/1.1 200"), "{headers}");
    }
}

/// Lets the server answer with these headers.
fn answered(headers: &str) -> String {
    let lines = headers.split("\r\n").map(|line| format!("X-Answer: {}", line.replace(": ", "=")));
    lines.collect::<Vec<_>>().join("\r\n")
}
