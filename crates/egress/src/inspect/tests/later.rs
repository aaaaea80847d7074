//! Requests and connections that were allowed, when conditions and policies change.

use std::time::Duration;

use super::counted::plain;
use super::*;

/// Rules of one level, in which PORT stands for the port.
fn level(name: &str, port: u16, rules: &str) -> Arc<Level> {
    let egress = format!(r#"{{"rules": [{rules}]}}"#).replace("PORT", &port.to_string());
    Arc::new(Level::new(Of::Invocation, name, Some(serde_json::from_str(&egress).unwrap())))
}

const AT: &str =
    r#""hosts": ["localhost"], "ports": [PORT], "private": ["127.0.0.0/8", "::1"], "plaintext": true"#;

/// A site whose server has no TLS, so that requests are read also where no rule is about them.
pub(super) async fn plain_site(rules: &str) -> Site {
    let mut site = Site::new(GET).await;
    site.port = plain().await;
    site.sandbox.set_levels([level("test", site.port, &rules.replace("AT", AT))].into());
    site
}

impl Site {
    /// Connects without TLS, and sends these bytes.
    pub(super) async fn begin_plain(&self, bytes: &str) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let captured = listener.accept().await.unwrap().0;
        let destination = format!("localhost:{}", self.port).parse().unwrap();
        let sandbox = self.sandbox.clone();
        tokio::spawn(async move { sandbox.serve_to(captured, destination).await });
        client.write_all(bytes.replace("PORT", &self.port.to_string()).as_bytes()).await.unwrap();
        client
    }

    pub(super) async fn get_plain(&self, target: &str) -> String {
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let _ = self.begin_plain(&head).await.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// Reads a part of an answer.
pub(super) async fn part(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = vec![0; 4096];
    let count = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

pub(super) async fn ends(mut stream: impl AsyncRead + Unpin) {
    let mut answer = vec![0; 4096];
    let end = async { while matches!(stream.read(&mut answer).await, Ok(1..)) {} };
    tokio::time::timeout(Duration::from_secs(20), end).await.expect("it ends");
}

/// Request whose answer begins and does not end.
const SLOW: &str = "GET /simple/slow HTTP/1.1\r\nHost: localhost:PORT\r\nX-Early: 1\r\n\r\n";

/// Regression: no rule decided about requests at first, so the path was not kept, and the answer went on.
#[tokio::test]
async fn answer_ends_when_a_rule_begins_to_deny_its_path() {
    let site = plain_site(
        r#"{"name": "open", AT}, {"name": "closed", AT, "when": "session.requests > 2",
            "http": [{"paths": ["/simple/**"], "decision": "Deny"}]}"#,
    )
    .await;
    let mut stream = site.begin_plain(SLOW).await;
    let begun = part(&mut stream).await;
    assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
    for _ in 0..3 {
        assert!(site.get_plain("/free").await.starts_with("HTTP/1.1 200"));
    }
    assert!(site.get_plain("/simple/fresh").await.starts_with("HTTP/1.1 403"));
    ends(stream).await;
}

/// Regression: a request whose body came late was decided by the path `/`.
#[tokio::test]
async fn request_is_decided_by_its_path_when_rules_change_while_its_body_arrives() {
    let site = plain_site(
        r#"{"name": "open", AT, "when": "session.requests < 1"}, {"name": "root", AT, "http": [{"paths": ["/"]}]},
            {"name": "calls", AT, "http": [{"paths": ["/mcp"]}], "mcp": [{"methods": ["*"]}]}"#,
    )
    .await;
    let head = "POST /secret HTTP/1.1\r\nHost: localhost:PORT\r\nContent-Length: 4\r\n\r\nab";
    let mut stream = site.begin_plain(head).await;
    // It waits for the body.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(site.get_plain("/").await.starts_with("HTTP/1.1 200"));
    stream.write_all(b"cd").await.unwrap();
    let answer = part(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// Regression: kept connections to servers were used although their addresses were closed meanwhile.
#[tokio::test]
async fn kept_connection_to_a_server_is_not_used_once_its_address_is_closed() {
    let private = r#""private": ["127.0.0.0/8", "::1"]"#;
    let reads = r#""hosts": ["localhost"], "ports": [PORT], "http": [{}]"#;
    let no_longer_private = format!(
        r#"{{"name": "first", {reads}, {private}, "when": "session.requests < 1"}}, {{"name": "later", {reads}}}"#
    );
    let denied = format!(
        r#"{{"name": "all", {reads}, {private}}},
            {{"name": "no", "cidrs": ["127.0.0.0/8", "::1"], "decision": "Deny", "when": "session.requests >= 1"}}"#
    );
    for rules in [no_longer_private, denied] {
        let site = Site::new(GET).await;
        site.sandbox.set_levels([level("test", site.port, &rules)].into());
        let answer = site.get("/a").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{rules}: {answer}");
        for _ in 0..2 {
            let answer = site.get("/b").await;
            assert!(answer.starts_with("HTTP/1.1 403"), "{rules}: {answer}");
        }
        // By HTTP/2 too.
        let site = Site::new(GET).await;
        site.sandbox.set_levels([level("test", site.port, &rules)].into());
        let stream = site.connect("h2").await;
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for expected in [200, 403, 403] {
            let uri = format!("https://localhost:{}/a", site.port);
            let request = Request::get(uri).body(Full::new(Bytes::new())).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status().as_u16(), expected, "{rules}");
            response.collect().await.unwrap();
        }
    }
}

/// Regression: a rule that denies addresses ended only connections that are not read.
#[tokio::test]
async fn answer_ends_when_a_new_rule_denies_the_address_of_its_server() {
    let site = Site::new(GET).await;
    let all = r#"{"name": "all", "hosts": ["localhost"], "ports": [PORT], "private": ["127.0.0.0/8", "::1"], "http": [{}]}"#;
    let no = r#"{"name": "no", "cidrs": ["127.0.0.0/8", "::1"], "decision": "Deny"}"#;
    site.sandbox.set_levels([level("test", site.port, all)].into());
    let mut stream = site.connect("http/1.1").await;
    stream.write_all(SLOW.replace("PORT", &site.port.to_string()).as_bytes()).await.unwrap();
    let begun = part(&mut stream).await;
    assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
    site.sandbox.set_levels([level("test", site.port, &format!("{all}, {no}"))].into());
    ends(stream).await;
    assert!(site.get("/a").await.starts_with("HTTP/1.1 403"));
}

/// Regression: the length of a body was known to all levels because one of them read its calls.
#[tokio::test]
async fn level_that_reads_calls_lets_another_one_allow_nothing_more() {
    let site = Site::new(GET).await;
    let at = r#""hosts": ["localhost"], "ports": [PORT], "private": ["127.0.0.0/8", "::1"]"#;
    let short = format!(
        r#"{{"name": "short", {at}, "http": [{{}}, {{"methods": ["DELETE"], "body": {{"maxBytes": 4}}, "decision": "Deny"}}]}}"#
    );
    let typed = format!(
        r#"{{"name": "typed", {at}, "http": [{{"methods": ["GET"], "body": {{"contentTypes": ["application/json"]}}}}]}}"#
    );
    let calls =
        format!(r#"{{"name": "calls", {at}, "mcp": [{{"methods": ["*"]}}]}}, {{"name": "rest", {at}}}"#);
    let head = "Host: localhost:PORT\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (rules, request) in [
        (short, format!("DELETE /a HTTP/1.1\r\n{head}a\r\n0123456789\r\n0\r\n\r\n")),
        (typed, format!("GET /a HTTP/1.1\r\n{head}0\r\n\r\n")),
    ] {
        let [one, other] = [&rules, &calls].map(|rules| level("test", site.port, rules));
        for levels in [vec![one.clone()], vec![one, other]] {
            site.sandbox.set_levels(levels.into());
            let answer = site.raw(&request).await;
            assert!(answer.starts_with("HTTP/1.1 403"), "{rules}: {answer}");
        }
    }
}

pub(super) const FREE: &str = r#"{"name": "free", AT, "http": [{"paths": ["/free"]}]}"#;

/// Regression: conditions were evaluated while a body was sent or an answer lasted, and not between.
#[tokio::test]
async fn request_ends_before_its_answer_when_its_condition_no_longer_holds() {
    let open = r#"{"name": "open", AT, "when": "session.requests < 3", "http": [{"methods": ["GET"]}]}"#;
    let site = plain_site(&format!("{open}, {FREE}")).await;
    let late = "GET /late HTTP/1.1\r\nHost: localhost:PORT\r\nX-Late: 1\r\n\r\n";
    let mut stream = site.begin_plain(late).await;
    for _ in 0..3 {
        assert!(site.get_plain("/free").await.starts_with("HTTP/1.1 200"));
    }
    let answer = tokio::time::timeout(Duration::from_secs(20), part(&mut stream)).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// Regression: conditions of calls were evaluated once.
#[tokio::test]
async fn answer_to_a_call_ends_when_the_condition_on_its_arguments_no_longer_holds() {
    let calls = r#"{"name": "calls", AT, "mcp": [{"tools": ["query"], "args": "session.requests < 3 && args.a == 1"}]}"#;
    let site = plain_site(&format!("{calls}, {FREE}")).await;
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"query","arguments":{"a":1}}}"#;
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost:PORT\r\nX-Early: 1\r\nContent-Type: application/json";
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{call}", call.len());
    let mut stream = site.begin_plain(&request).await;
    let begun = part(&mut stream).await;
    assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
    for _ in 0..3 {
        assert!(site.get_plain("/free").await.starts_with("HTTP/1.1 200"));
    }
    ends(stream).await;
}

/// Regression: what began while a rule kept the scanner off was never scanned.
#[tokio::test]
async fn answer_ends_when_a_scanner_begins_to_read_it() {
    let site = plain_site(FREE).await;
    let rules = r#"{"name": "raw", AT, "plaintext": false, "protocol": "TCP", "when": "session.requests < 3"}, {"name": "web", AT, "plaintext": true}"#;
    let at = AT.replace(r#", "plaintext": true"#, "");
    let scans = level("scans", site.port, &rules.replace("AT", &at));
    let scans = Level { scanner: Some(serde_json::from_str("{}").unwrap()), ..Level::clone(&scans) };
    let reads = level("reads", site.port, &r#"{"name": "all", AT, "http": [{}]}"#.replace("AT", AT));
    site.sandbox.set_levels([Arc::new(scans), reads].into());
    let mut stream = site.begin_plain(SLOW).await;
    let begun = part(&mut stream).await;
    assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
    for _ in 0..3 {
        assert!(site.get_plain("/free").await.starts_with("HTTP/1.1 200"));
    }
    ends(stream).await;
}
