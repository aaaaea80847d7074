//! Requests that try to be read in two ways, and such that only look like these.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::origin::{Origin, SERVER};
use super::{Proxy, Site, rule};
use crate::harness::text;

/// A case: its name, what the client sends, the status of each answer, and how many requests arrive at a server.
type Case = (&'static str, Vec<u8>, &'static [u16], usize);

const OK: &[u16] = &[200];
const BAD: &[u16] = &[400];
const NO: &[u16] = &[403];

/// Starts a proxy with the policy of all cases.
fn proxy(site: &Site, port: u16) -> Proxy {
    let web = json!({"plaintext": true, "http": [
        {"methods": ["GET", "POST", "OPTIONS"], "paths": ["/ok/**"]},
        {"paths": ["/ok/secret/**"], "decision": "Deny"},
    ]});
    let mcp = json!({"plaintext": true, "mcp": [
        {"tools": ["read_*"]},
        {"tools": ["write"], "args": "args.path.startsWith('/tmp/')"},
        {"tools": ["read_secret"], "decision": "Deny"},
        {"methods": ["message/send"]},
    ]});
    let address = json!({"name": "address", "cidrs": [SERVER], "ports": [port], "plaintext": true,
        "private": [SERVER]});
    let metadata = json!({"name": "metadata", "hosts": ["metadata.example"], "ports": [port], "plaintext": true,
        "private": ["0.0.0.0/0"]});
    let rules = json!({"rules": [
        rule("web", "web.example", port, &web),
        rule("mcp", "mcp.example", port, &mcp),
        rule("plain", "plain.example", port, &json!({"plaintext": true})),
        rule("db", "db.example", port, &json!({"protocol": "TCP"})),
        rule("tls", "other.example", port, &json!({})),
        address, metadata,
    ]});
    site.proxy(&rules, &[])
}

/// A request in absolute form, with these lines after its `Host`, and this body.
fn request(method: &str, url: &str, host: &str, lines: &str, body: &str) -> Vec<u8> {
    format!("{method} {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n{body}").into_bytes()
}

/// Sends bytes, and returns the statuses of the answers until the connection ends.
fn statuses(proxy: &Proxy, bytes: &[u8]) -> (Vec<u16>, String) {
    let answer = proxy.exchange(bytes);
    let status = |part: &str| part.get(1..5)?.trim().parse().ok();
    (answer.split("HTTP/1.").skip(1).filter_map(status).collect(), answer)
}

fn check(origin: &Origin, proxy: &Proxy, cases: Vec<Case>) {
    let mut failed = Vec::new();
    for (name, bytes, expected, arrive) in cases {
        let (found, answer) = statuses(proxy, &bytes);
        let arrived = origin.take();
        if found != expected || arrived.len() != arrive {
            failed.push(format!("{name}: {found:?}, not {expected:?}; {arrived:?}, not {arrive}: {answer}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn requests_mean_the_same_to_the_proxy_and_to_the_server() {
    hutch_testkit::require!(root);
    let (site, origin) = (Site::new(), Origin::plain());
    let port = origin.port;
    let proxy = proxy(&site, port);
    let url = format!("http://web.example:{port}");
    let host = format!("web.example:{port}");
    let get = |path: &str, lines: &str| request("GET", &format!("{url}{path}"), &host, lines, "");
    let post = |lines: &str, body: &str| request("POST", &format!("{url}/ok/a"), &host, lines, body);
    let smuggled = format!("GET http://web.example:{port}/no HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let long = |length| format!("X-Long: {}\r\n", "x".repeat(length));
    let many = |count| (0..count).map(|number| format!("X-{number}: 1\r\n")).collect::<String>();
    let next = |path: &str| {
        let first = format!("GET {url}/ok/a HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        [first, request("GET", &format!("{url}{path}"), &host, "", "")].concat()
    };
    check(
        &origin,
        &proxy,
        vec![
            ("a request", get("/ok/a", ""), OK, 1),
            ("a body", post("Content-Length: 3\r\n", "abc"), OK, 1),
            ("a chunked body", post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"), OK, 1),
            (
                "an extension of a chunk",
                post("Transfer-Encoding: chunked\r\n", "3;a=b\r\nabc\r\n0\r\n\r\n"),
                OK,
                1,
            ),
            (
                "a trailer",
                post("Transfer-Encoding: chunked\r\n", "0\r\nX-Http-Method: DELETE\r\n\r\n"),
                OK,
                1,
            ),
            (
                "a request as a body",
                post(&format!("Content-Length: {}\r\n", smuggled.len()), &smuggled),
                OK,
                1,
            ),
            ("two lengths", post("Content-Length: 3\r\nContent-Length: 0\r\n", "abc"), BAD, 0),
            ("the same length twice", post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), BAD, 0),
            ("a list of lengths", post("Content-Length: 3, 3\r\n", "abc"), BAD, 0),
            ("a signed length", post("Content-Length: +3\r\n", "abc"), BAD, 0),
            (
                "length, then chunked",
                post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
                BAD,
                0,
            ),
            (
                "chunked, then length",
                post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "0\r\n\r\n"),
                BAD,
                0,
            ),
            ("an unknown coding", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), BAD, 0),
            ("chunked is not last", post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"), BAD, 0),
            ("a bare CR in a value", get("/ok/a", "X: a\rTransfer-Encoding: chunked\r\n"), BAD, 0),
            ("a folded header", get("/ok/a", "X: a\r\n Transfer-Encoding: chunked\r\n"), BAD, 0),
            ("a space before the colon", get("/ok/a", "Transfer-Encoding : chunked\r\n"), BAD, 0),
            ("a NUL in a value", get("/ok/a", "X: a\0b\r\n"), BAD, 0),
            ("a NUL in the path", get("/ok/a\0", ""), BAD, 0),
            ("a space in the path", get("/ok/a b", ""), BAD, 0),
            ("a long head", get("/ok/a", &long(10_000)), OK, 1),
            ("a head that is too long", get("/ok/a", &long(20_000)), BAD, 0),
            ("many headers", get("/ok/a", &many(90)), OK, 1),
            ("too many headers", get("/ok/a", &many(101)), BAD, 0),
            ("a denied path", get("/no", ""), NO, 0),
            ("an encoded letter", get("/ok/%61", ""), OK, 1),
            ("an encoded space", get("/ok/a%20b", ""), OK, 1),
            ("three dots", get("/ok/...", ""), OK, 1),
            ("dots in the query", get("/ok/a?b=../../no", ""), OK, 1),
            ("upper case of the path", get("/OK/a", ""), NO, 0),
            ("an encoded slash", get("/ok%2fa", ""), NO, 0),
            ("a dot segment", get("/ok/../no", ""), NO, 0),
            ("an encoded dot segment", get("/ok/%2e%2E/no", ""), NO, 0),
            ("a dot segment with a parameter", get("/ok/..;a/no", ""), NO, 0),
            ("a doubled encoding", get("/ok/%252e%252e/no", ""), NO, 0),
            ("an empty segment", get("//ok/a", ""), NO, 0),
            ("an encoded NUL", get("/ok/a%00b", ""), NO, 0),
            ("a denied path, encoded", get("/ok/%73ecret/x", ""), NO, 0),
            ("a path like the denied one", get("/ok/secrets/x", ""), OK, 1),
            ("a method override", get("/ok/a", "X-HTTP-Method-Override: DELETE\r\n"), NO, 0),
            ("another method override", get("/ok/a", "X-Method-Override: DELETE\r\n"), NO, 0),
            ("another URL in a header", get("/ok/a", "X-Original-URL: /no\r\n"), NO, 0),
            (
                "a header like it",
                get("/ok/a", "X-Original-Length: 1\r\nX-Forwarded-For: 127.0.0.1\r\n"),
                OK,
                1,
            ),
            ("a method in lower case", request("get", &format!("{url}/ok/a"), &host, "", ""), NO, 0),
            ("another method", request("DELETE", &format!("{url}/ok/a"), &host, "", ""), NO, 0),
            ("TRACE", request("TRACE", &format!("{url}/ok/a"), &host, "", ""), NO, 0),
            ("an upgrade to HTTP/2", get("/ok/a", "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"), OK, 1),
            ("a WebSocket that no entry allows", get("/ok/a", "Upgrade: websocket\r\n"), NO, 0),
            ("two requests", next("/ok/b"), &[200, 200], 2),
            ("the second one is denied", next("/no"), &[200, 403], 1),
            (
                "HTTP/1.0 and chunked",
                String::from_utf8(post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"))
                    .expect("text")
                    .replace("HTTP/1.1", "HTTP/1.0")
                    .into_bytes(),
                BAD,
                0,
            ),
            ("a preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), BAD, 0),
            ("TLS to the proxy", b"\x16\x03\x01\x00\x05abcde".to_vec(), BAD, 0),
            ("no HTTP", b"SSH-2.0-OpenSSH_9\r\n".to_vec(), BAD, 0),
        ],
    );
}

#[test]
fn hosts_are_the_same_in_every_notation() {
    hutch_testkit::require!(root);
    let (site, origin) = (Site::new(), Origin::plain());
    let port = origin.port;
    let proxy = proxy(&site, port);
    let get = |host: &str| {
        let host = format!("{host}:{port}");
        request("GET", &format!("http://{host}/ok/a"), &host, "", "")
    };
    let raw = |url: &str, host: &str| request("GET", url, host, "", "");
    let with_lines = |lines: &str| {
        format!("GET http://web.example:{port}/ok/a HTTP/1.1\r\n{lines}Connection: close\r\n\r\n")
            .into_bytes()
    };
    let [web, other] = ["web.example", "other.example"].map(|name| format!("{name}:{port}"));
    check(
        &origin,
        &proxy,
        vec![
            ("upper case", get("WEB.Example"), OK, 1),
            ("a dot at the end", get("web.example."), OK, 1),
            ("no port in Host", raw(&format!("http://{web}/ok/a"), "web.example"), OK, 1),
            ("no Host", with_lines(""), OK, 1),
            ("another Host", raw(&format!("http://{web}/ok/a"), "other.example"), NO, 0),
            (
                "a signed port in Host",
                raw(&format!("http://{web}/ok/a"), &format!("web.example:+{port}")),
                NO,
                0,
            ),
            ("another port in Host", raw(&format!("http://{web}/ok/a"), "web.example:1"), NO, 0),
            ("two Hosts", with_lines(&format!("Host: {web}\r\nHost: {other}\r\n")), NO, 0),
            ("no port", raw("http://web.example/ok/a", "web.example"), NO, 0),
            ("another port", raw("http://web.example:25/ok/a", "web.example:25"), NO, 0),
            ("an empty port", raw("http://web.example:/ok/a", "web.example"), BAD, 0),
            ("only a path", raw("/ok/a", &web), BAD, 0),
            ("https in absolute form", raw(&format!("https://{web}/ok/a"), &web), BAD, 0),
            ("ftp", raw(&format!("ftp://{web}/ok/a"), &web), BAD, 0),
            ("a user", raw(&format!("http://user@{web}/ok/a"), &web), BAD, 0),
            ("a host as a user", raw(&format!("http://{web}@other.example/ok/a"), &web), BAD, 0),
            ("a backslash", raw(&format!("http://{web}\\@other.example/ok/a"), &web), BAD, 0),
            ("an encoded host", raw(&format!("http://%77eb.example:{port}/ok/a"), &web), BAD, 0),
            ("a name below", get("x.web.example"), NO, 0),
            ("a name around", get("web.example.other.example"), NO, 0),
            ("a look-alike", get("xn--wb-bja.example"), NO, 0),
            ("letters of Unicode", get("wеb.example"), BAD, 0),
            ("a name that is not HTTP without TLS", get("other.example"), NO, 0),
            ("a name of the machine", get("localhost"), NO, 0),
            ("a name that leads to metadata", get("metadata.example"), NO, 0),
            ("an allowed address", get("127.78.0.1"), OK, 1),
            ("an allowed address, decimal", get("2135818241"), OK, 1),
            ("an allowed address, hexadecimal", get("0x7f.0x4e.0.1"), OK, 1),
            ("an allowed address, mapped", get("[::ffff:127.78.0.1]"), OK, 1),
            ("an address", get("127.0.0.1"), NO, 0),
            ("an address, short", get("127.1"), NO, 0),
            ("an address, octal", get("0177.0.0.1"), NO, 0),
            ("an address, decimal", get("2130706433"), NO, 0),
            ("an address, hexadecimal", get("0x7f000001"), NO, 0),
            ("an address, mapped", get("[::ffff:7f00:1]"), NO, 0),
            ("no address", get("1.2.3.256"), BAD, 0),
            ("metadata", get("169.254.169.254"), NO, 0),
            ("metadata, decimal", get("2852039166"), NO, 0),
            ("metadata, mapped", get("[::ffff:a9fe:a9fe]"), NO, 0),
        ],
    );
}

#[test]
fn connect_is_decided_by_its_target_and_by_what_follows() {
    hutch_testkit::require!(root);
    let (site, origin) = (Site::new(), Origin::plain());
    let port = origin.port;
    let proxy = proxy(&site, port);
    let connect = |target: &str, host: &str, lines: &str, inner: &str| {
        format!("CONNECT {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n{inner}").into_bytes()
    };
    let to =
        |host: &str, inner: &str| connect(&format!("{host}:{port}"), &format!("{host}:{port}"), "", inner);
    let inner =
        |host: &str, path: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let plain = format!("plain.example:{port}");
    let get = inner(&plain, "/a");
    // The servers here keep connections open, so each is ended by what is refused, or by the client.
    let mut open = Vec::new();
    for (name, bytes, status, arrive) in [
        ("plain HTTP", to("plain.example", &get), "200", 1),
        ("upper case", to("PLAIN.example", &get), "200", 1),
        ("a dot at the end", to("plain.example.", &get), "200", 1),
        ("Host without a port", connect(&plain, "plain.example", "", &get), "200", 1),
        ("anything", to("db.example", &get), "200", 1),
        ("an address, decimal", to("2135818241", &inner(&format!("{SERVER}:{port}"), "/a")), "200", 1),
    ] {
        let mut stream = TcpStream::connect(&proxy.address).expect("the proxy");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        stream.write_all(&bytes).expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            let mut piece = [0; 512];
            let count = stream.read(&mut piece).expect("an answer");
            assert!(count > 0, "{name}: {}", text(&answer));
            answer.extend(&piece[..count]);
        }
        assert!(text(&answer).starts_with(&format!("HTTP/1.1 {status} ")), "{name}: {}", text(&answer));
        assert_eq!(origin.take().len(), arrive, "{name}");
        open.push(stream);
    }
    let web = format!("web.example:{port}");
    check(
        &origin,
        &proxy,
        vec![
            ("a request within", to("web.example", &inner(&web, "/ok/a")), &[200, 200], 1),
            ("a denied request within", to("web.example", &inner(&web, "/no")), &[200, 403], 0),
            ("another Host within", to("plain.example", &inner("other.example", "/a")), &[200, 403], 0),
            ("absolute form within", to("plain.example", &inner(&plain, "http://other.example/")), &[200], 0),
            ("CONNECT within", to("plain.example", &text(&to("other.example", ""))), &[200], 0),
            ("HTTP where TLS is expected", to("other.example", &inner("other.example", "/")), &[200, 403], 0),
            ("no HTTP within", to("plain.example", "SSH-2.0-x\r\n"), &[200], 0),
            ("another Host", connect(&plain, "other.example", "", ""), BAD, 0),
            ("two Hosts", connect(&plain, &plain, &format!("Host: {plain}\r\n"), ""), BAD, 0),
            ("no port", connect("plain.example", "plain.example", "", ""), BAD, 0),
            ("a user", connect(&format!("user@{plain}"), &plain, "", ""), BAD, 0),
            ("a URL", connect(&format!("http://{plain}"), &plain, "", ""), BAD, 0),
            ("a path", connect(&format!("{plain}/a"), &plain, "", ""), BAD, 0),
            ("a body", connect(&plain, &plain, "Content-Length: 1\r\n", "x"), BAD, 0),
            (
                "an empty body",
                connect("none.example:443", "none.example", "Content-Length: 0\r\n", ""),
                NO,
                0,
            ),
            ("mail", connect("plain.example:25", "plain.example:25", "", ""), NO, 0),
            ("another name", to("none.example", ""), NO, 0),
            ("a name that leads to metadata", to("metadata.example", ""), NO, 0),
            ("metadata", connect("169.254.169.254:80", "169.254.169.254", "", ""), NO, 0),
            ("metadata, decimal", connect("2852039166:80", "2852039166", "", ""), NO, 0),
            ("metadata, hexadecimal", connect("0xa9fea9fe:80", "169.254.169.254", "", ""), NO, 0),
            ("loopback, short", connect("127.1:80", "127.1", "", ""), NO, 0),
            ("loopback, mapped", connect("[::ffff:7f00:1]:80", "[::ffff:7f00:1]:80", "", ""), NO, 0),
            ("loopback of IPv6", connect("[::1]:80", "[::1]:80", "", ""), NO, 0),
        ],
    );
}

#[test]
fn calls_mean_the_same_to_the_proxy_and_to_the_server() {
    hutch_testkit::require!(root);
    let (site, origin) = (Site::new(), Origin::plain());
    let port = origin.port;
    let proxy = proxy(&site, port);
    let host = format!("mcp.example:{port}");
    let send = |lines: &str, body: &str| {
        let lines = format!("Content-Length: {}\r\n{lines}", body.len());
        request("POST", &format!("http://{host}/mcp"), &host, &lines, body)
    };
    let json = |body: &str| send("Content-Type: application/json\r\n", body);
    let tool = |tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string()
    };
    let call = |name: &str| json(&tool(name, json!({})));
    let read = tool("read_a", json!({}));
    let method = |method: &str| json!({"jsonrpc": "2.0", "id": 7, "method": method}).to_string();
    check(
        &origin,
        &proxy,
        vec![
            ("an allowed tool", call("read_a"), OK, 1),
            ("the beginning", json(&method("initialize")), OK, 1),
            ("a list of tools", json(&method("tools/list")), OK, 1),
            ("a notification", json(r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#), OK, 1),
            ("an answer", json(r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#), OK, 1),
            ("a message of A2A", json(&method("message/send")), OK, 1),
            ("another message of A2A", json(&method("tasks/cancel")), NO, 0),
            ("no body", request("GET", &format!("http://{host}/mcp"), &host, "", ""), OK, 1),
            ("allowed arguments", json(&tool("write", json!({"path": "/tmp/a"}))), OK, 1),
            ("denied arguments", json(&tool("write", json!({"path": "/etc/a"}))), NO, 0),
            ("missing arguments", call("write"), NO, 0),
            ("a denied tool", call("read_secret"), NO, 0),
            ("another tool", call("delete"), NO, 0),
            ("a tool in another case", call("READ_a"), NO, 0),
            ("a look-alike", call("rеad_a"), NO, 0),
            ("a name with a NUL", call("read_\0a"), NO, 0),
            ("a letter of Unicode in the name", call("read_ä"), OK, 1),
            ("escaped letters of a value", json(&read.replace("read_a", "read\\u005fa")), OK, 1),
            ("escaped letters of a key", json(&read.replace("\"method\"", "\"m\\u0065thod\"")), OK, 1),
            ("a key twice", json(&read.replacen('{', r#"{"method": "ping", "#, 1)), NO, 0),
            ("a key twice, once escaped", json(&read.replacen('{', r#"{"m\u0065thod": "ping", "#, 1)), NO, 0),
            ("a key in another case", json(&read.replacen('{', r#"{"Method": "tools/list", "#, 1)), NO, 0),
            ("a key of another alphabet", json(&read.replace("\"arguments\"", "\"argumentſ\"")), NO, 0),
            (
                "a key within in another case",
                json(&read.replace("\"name\"", "\"name\": \"x\", \"Name\"")),
                NO,
                0,
            ),
            ("a key like it", json(&read.replacen('{', r#"{"methods": "x", "#, 1)), OK, 1),
            ("a batch", json(&format!("[{read}, {read}]")), OK, 1),
            ("a batch with a denied call", json(&format!("[{read}, {}]", tool("delete", json!({})))), NO, 0),
            ("a batch within a batch", json(&format!("[[{read}]]")), NO, 0),
            ("an empty batch", json("[]"), NO, 0),
            ("two messages", json(&format!("{read}\n{read}")), NO, 0),
            ("another version", json(&read.replace("2.0", "1.0")), NO, 0),
            ("no JSON", json("name=read_a"), NO, 0),
            ("deep JSON", json(&"[".repeat(100_000)), NO, 0),
            ("an encoded body", send("Content-Encoding: gzip\r\n", &read), NO, 0),
            ("UTF-8", send("Content-Type: application/json; charset=UTF-8\r\n", &read), OK, 1),
            ("UTF-16", send("Content-Type: application/json; charset=utf-16\r\n", &read), NO, 0),
            (
                "a WebSocket",
                request("GET", &format!("http://{host}/mcp"), &host, "Upgrade: websocket\r\n", ""),
                NO,
                0,
            ),
            ("a method override", send("X-HTTP-Method: GET\r\n", &read), NO, 0),
        ],
    );
    let answer = proxy.exchange(&call("delete"));
    let error: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(7), &json!(-32001)), "{answer}");
    proxy.logged(&json!({"decision": "deny", "calls": ["tools/call delete"], "path": "/mcp"}));
    proxy.logged(&json!({"decision": "allow", "calls": ["tools/call read_a"], "rule": "mcp"}));
}

#[test]
fn slow_heads_and_broken_bodies_end() {
    hutch_testkit::require!(root);
    let (site, origin) = (Site::new(), Origin::plain());
    let port = origin.port;
    let proxy = proxy(&site, port);
    let (found, answer) = statuses(&proxy, b"GET http://web.example/ HTTP/1.1\r\nHost: ");
    assert_eq!(found, [408], "{answer}");
    let host = format!("web.example:{port}");
    for body in ["fffffffffffffffff\r\n", "-1\r\n", "3\r\nabcde\r\n0\r\n\r\n", "3\rabc"] {
        let bytes =
            request("POST", &format!("http://{host}/ok/a"), &host, "Transfer-Encoding: chunked\r\n", body);
        let (found, answer) = statuses(&proxy, &bytes);
        assert!(!found.contains(&200), "{body:?}: {answer}");
        assert!(origin.take().is_empty(), "{body:?}");
    }
}
