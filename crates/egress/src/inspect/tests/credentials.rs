//! Credentials on real connections: the server echoes what it has received.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use tokio::time::timeout;

use super::*;
use crate::credentials::{Issued, Secret};
use crate::records::{Entry, Sink};

const VALUE: &str = "real+value/of \"the\" credential";
const PLACEHOLDER: &str = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
/// Text that the scanner takes for a token.
const TOKEN: &str = "ghp_x7Kq2mW9vLp4Rt8sZc1Yb6Nd3Jf5Hg0QaEuT";
const OPEN: &str = r#"{"name": "open", AT, "http": [{}]}"#;

fn issued(host: &str, port: u16, more: &str) -> Issued {
    let binding = format!(r#"{{"hosts": ["{host}"], "ports": [{port}]{more}}}"#);
    Issued {
        name: "github".into(),
        placeholder: PLACEHOLDER.into(),
        value: Secret::new(VALUE.into()),
        binding: serde_json::from_str(&binding).unwrap(),
        bounds: None,
        ends: None,
        missing: false,
    }
}

/// Starts a site with a credential. The server answers with what it has received, so that the values in it are redacted.
async fn site(more: &str) -> Site {
    let site = Site::new(OPEN).await;
    site.sandbox.set_credentials(vec![issued("localhost", site.port, more)]);
    site
}

fn head(line: &str, headers: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n{headers}\r\n")
}

#[tokio::test]
async fn answer_of_the_server_has_the_placeholder_for_every_form_of_the_value() {
    let site = site("").await;
    let basic = STANDARD.encode(format!("user:{PLACEHOLDER}"));
    for headers in [
        format!("Authorization: Bearer {PLACEHOLDER}\r\n"),
        format!("Authorization: Basic {basic}\r\n"),
        format!("X-Key: {PLACEHOLDER}\r\nX-Key: 2 {PLACEHOLDER}\r\n"),
    ] {
        let answer = site.raw(&head("GET /a", &headers)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{headers}: {answer}");
        for line in headers.to_lowercase().lines() {
            assert!(answer.to_lowercase().contains(line), "{line}: {answer}");
        }
        assert!(!answer.contains("real"), "{answer}");
        assert!(!answer.contains(&STANDARD.encode(format!("user:{VALUE}"))), "{answer}");
        assert!(answer.contains("accept-encoding: identity"), "{answer}");
    }
    let answer = site.raw(&head(&format!("GET /a?key={PLACEHOLDER}&b=1"), "")).await;
    assert!(answer.contains(&format!("/a?key={PLACEHOLDER}&b=1")) && !answer.contains("real"), "{answer}");
}

#[tokio::test]
async fn no_compressed_message_of_grpc_is_requested() {
    let site = site("").await;
    let headers =
        "Grpc-Accept-Encoding: gzip\r\nConnect-Accept-Encoding: gzip\r\nX-Answer: grpc-encoding=identity\r\n";
    let answer = site.raw(&head("GET /a", headers)).await;
    assert!(answer.contains("grpc-encoding: identity") && !answer.contains("gzip"), "{answer}");
}

#[tokio::test]
async fn answer_of_a_host_that_had_a_credential_is_redacted() {
    let site = Site::new(r#"{"name": "open", AT}"#).await;
    let value = Secret::new("Real-Value-Of-Letters".into());
    site.sandbox.set_credentials(vec![Issued { value, ..issued("localhost", site.port, "") }]);
    site.sandbox.set_credentials(Vec::new());
    let answer = site.raw(&head("GET /a", "X-Own: Real-Value-Of-Letters\r\n")).await;
    assert!(answer.contains(&format!("x-own: {PLACEHOLDER}")), "{answer}");
    assert!(!answer.contains("Real-Value"), "{answer}");
}

#[tokio::test]
async fn placeholder_in_the_name_of_a_header_is_refused() {
    let mut site = Site::new(OPEN).await;
    let placeholder = "ghp_ABCdefghijklmnopqrstuvwxyz0123456789";
    site.sandbox.set_credentials(vec![Issued {
        placeholder: placeholder.into(),
        ..issued("other.example", site.port, "")
    }]);
    site.raw(&head("GET /a", &format!("{placeholder}: 1\r\n"))).await;
    let refusal = site.refused.try_recv().unwrap();
    assert!(matches!(&refusal.reason, Reason::Credential(name, _) if name == "github"), "{refusal:?}");
}

#[tokio::test]
async fn no_part_of_an_answer_is_requested() {
    let site = site("").await;
    let answer = site.raw(&head("GET /a", "Range: bytes=1-2\r\nIf-Range: \"x\"\r\nX-Own: 1\r\n")).await;
    assert!(answer.contains("x-own: 1") && !answer.contains("range"), "{answer}");
}

#[tokio::test]
async fn websocket_to_a_host_of_a_credential_is_refused() {
    for (host, expected) in [("localhost", "HTTP/1.1 403"), ("other.example", "HTTP/1.1 101")] {
        let site = Site::new(r#"{"name": "ws", AT, "http": [{"websocket": true}]}"#).await;
        site.sandbox.set_credentials(vec![issued(host, site.port, "")]);
        let mut stream = site.connect("http/1.1").await;
        stream.write_all(UPGRADE.replace("PORT", &site.port.to_string()).as_bytes()).await.unwrap();
        let mut answer = vec![0; 512];
        let count = stream.read(&mut answer).await.unwrap();
        assert!(answer[..count].starts_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&answer));
    }
}

/// A frame with a text, as a client sends it.
fn masked(text: &str) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let content = text.bytes().enumerate().map(|(at, byte)| byte ^ mask[at % 4]);
    [0x81, 0x80 | u8::try_from(text.len()).unwrap()].into_iter().chain(mask).chain(content).collect()
}

#[tokio::test]
async fn placeholder_in_a_websocket_to_another_host_ends_it_and_is_reported() {
    let mut site = Site::new(r#"{"name": "ws", AT, "http": [{"websocket": true}]}"#).await;
    site.sandbox.set_credentials(vec![issued("other.example", site.port, "")]);
    let mut stream = site.connect("http/1.1").await;
    stream.write_all(UPGRADE.replace("PORT", &site.port.to_string()).as_bytes()).await.unwrap();
    let mut answer = vec![0; 512];
    let count = stream.read(&mut answer).await.unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 101"));
    let hello = masked("hello");
    stream.write_all(&hello).await.unwrap();
    let mut echoed = vec![0; hello.len()];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(echoed, hello);
    let (first, second) = PLACEHOLDER.split_at(9);
    for text in [first, second] {
        stream.write_all(&masked(text)).await.unwrap();
    }
    let refusal = timeout(Duration::from_secs(60), site.refused.recv()).await.unwrap().expect("a refusal");
    let Reason::Credential(name, why) = &refusal.reason else { panic!("{refusal:?}") };
    assert!(name == "github" && why.contains("not bound to this host"), "{refusal:?}");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(String::from_utf8_lossy(&rest).contains("not bound to this host"), "{rest:?}");
}

#[tokio::test]
async fn body_of_a_form_has_the_value_with_its_escapes() {
    let site = site(r#", "body": true"#).await;
    let body = format!("key={PLACEHOLDER}&other=1");
    let kind = "Content-Type: application/x-www-form-urlencoded";
    let length = body.len();
    let request = head("POST /a", &format!("{kind}\r\nContent-Length: {length}\r\n")) + &body;
    let answer = site.raw(&request).await;
    let escaped = VALUE.bytes().filter(|byte| !byte.is_ascii_alphanumeric()).count() * 2;
    let sent = length + VALUE.len() + escaped - PLACEHOLDER.len();
    assert!(answer.contains(&format!("content-length: {sent}\n")), "{answer}");
    assert!(answer.contains(&body) && !answer.contains("real"), "{answer}");
}

#[tokio::test]
async fn header_of_an_answer_whose_name_is_the_value_is_dropped() {
    let site = Site::new(OPEN).await;
    let value = Secret::new("Real-Value-Of-Letters".into());
    site.sandbox.set_credentials(vec![Issued { value, ..issued("localhost", site.port, "") }]);
    let answer =
        site.raw(&head("GET /a", &format!("X-Answer: {PLACEHOLDER}=1\r\nX-Answer: x-own=2\r\n"))).await;
    assert!(answer.contains("x-own: 2"), "{answer}");
    assert!(!answer.to_lowercase().contains("real-value"), "{answer}");
}

#[tokio::test]
async fn answer_in_which_a_value_cannot_be_found_is_refused() {
    let site = site("").await;
    for (headers, why) in [
        ("X-Answer: content-encoding=gzip\r\n", "compressed"),
        ("X-Answer: grpc-encoding=gzip\r\n", "of compressed messages"),
        ("X-Answer: connect-content-encoding=br\r\n", "of compressed messages"),
        ("X-Answer: transfer-encoding=gzip, chunked\r\n", "compressed on its way"),
        ("X-Status: 206\r\n", "only a part"),
        ("X-Answer: content-range=bytes 1-2/9\r\n", "only a part"),
        ("X-Answer: content-type=Multipart/ByteRanges; boundary=x\r\n", "only a part"),
    ] {
        let answer = site.raw(&head("GET /a", headers)).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(why), "{headers}: {answer}");
    }
}

#[tokio::test]
async fn request_for_aws_that_cannot_be_signed_again_is_refused() {
    let signature = "0".repeat(64);
    let scope = format!("Credential={PLACEHOLDER}/20150830/us-east-1/s3/aws4_request");
    let signed = |algorithm: &str| {
        format!(
            "Authorization: {algorithm} {scope}, SignedHeaders=host, Signature={signature}\r\n\
             X-Amz-Date: 20150830T123600Z\r\n"
        )
    };
    let good = signed("AWS4-HMAC-SHA256");
    let content = |content: &str| format!("{good}X-Amz-Content-SHA256: {content}\r\n");
    let query = format!("GET /a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={PLACEHOLDER}%2F20150830");
    let long = format!("{good}Content-Length: {}\r\n\r\nx", (10 << 20) + 1);
    for (host, more, line, headers, expected) in [
        ("localhost", "", "GET /a", good.clone(), ""),
        ("localhost", "", "GET /a", content("UNSIGNED-PAYLOAD"), ""),
        ("localhost", "", "GET /a", format!("{good}Range: bytes=0-1\r\nX-Status: 206\r\n"), ""),
        ("localhost", "", "GET /a", format!("{good}X-Answer: content-encoding=gzip\r\n"), ""),
        ("localhost", "", "GET /token", format!("{good}Range: bytes=0-1\r\n"), "part of an object"),
        ("localhost", "", "GET /a", content("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), "signatures of its own"),
        ("localhost", "", "GET /a", signed("AWS4-ECDSA-P256-SHA256"), "SigV4A"),
        ("localhost", "", "GET /a", good.replace("/s3/", "/"), "not one of AWS4-HMAC-SHA256"),
        ("localhost", "", "GET /a", good.replace("20150830T", "20150831T"), "of the day"),
        ("localhost", "", "GET /a", format!("{good}Authorization: x\r\n"), "two headers"),
        ("localhost", "", &query, String::new(), "signed in advance"),
        ("localhost", "", "GET /a", "X-Key: placeholder-of-the-secret-key\r\n".into(), "only signs"),
        ("localhost", "", "POST /a", long, "longer than 10 MiB"),
        ("other.example", "", "GET /a", good.clone(), "not bound to this host"),
        ("localhost", r#", "paths": ["/b"]"#, "GET /a", good.clone(), "not bound to this path"),
    ] {
        let mut site = Site::new(OPEN).await;
        let mut key = issued(host, site.port, &format!(r#"{more}, "aws": {{"accessKeyId": "id"}}"#));
        key.placeholder = "placeholder-of-the-secret-key".into();
        let id = Issued {
            name: "id".into(),
            value: Secret::new("AKIDEXAMPLE".into()),
            ..issued("localhost", site.port, "")
        };
        let token = Issued { name: "token".into(), ..issued("localhost", site.port, "") };
        let token = Issued { placeholder: "placeholder-of-the-token".into(), ..token };
        // One that does not belong to the key.
        let more = Some(token).filter(|_| line.contains("/token"));
        site.sandbox.set_credentials([id, key].into_iter().chain(more).collect());
        let answer = site.raw(&head(line, &headers)).await;
        let Ok(refusal) = site.refused.try_recv() else {
            assert!(expected.is_empty() && answer.starts_with("HTTP/1.1 20"), "{expected}: {answer}");
            assert_eq!(headers.contains("Range"), answer.contains("range: bytes=0-1"), "{answer}");
            // The echo has the signature of the program back.
            assert!(answer.contains(&signature) && answer.contains(&scope), "{answer}");
            continue;
        };
        let Reason::Credential(name, why) = &refusal.reason else { panic!("{refusal:?}") };
        assert!(!expected.is_empty() && name == "github" && why.contains(expected), "{expected}: {why}");
    }
}

/// The first bytes of a long body are held after their scan, while the whole body is read for its signature.
#[tokio::test]
async fn long_bodies_that_are_scanned_and_signed_do_not_wait_for_themselves() {
    let site = Site::new(OPEN).await;
    let level = site.sandbox.rules().levels[0].clone();
    let scanner = Some(serde_json::from_str(r#"{"outbound": "Block"}"#).unwrap());
    site.sandbox.set_levels([Arc::new(Level { scanner, ..(*level).clone() })].into());
    let mut key = issued("localhost", site.port, r#", "aws": {"accessKeyId": "id"}"#);
    key.placeholder = "placeholder-of-the-secret-key".into();
    let id = Issued {
        name: "id".into(),
        value: Secret::new("AKIDEXAMPLE".into()),
        ..issued("localhost", site.port, "")
    };
    site.sandbox.set_credentials(vec![id, key]);
    let (scope, body) =
        (format!("Credential={PLACEHOLDER}/20150830/us-east-1/s3/aws4_request"), "text ".repeat(220 << 10));
    let headers = format!(
        "Authorization: AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature={}\r\nX-Amz-Date: 20150830T123600Z\r\n\
         Content-Length: {}\r\n",
        "0".repeat(64),
        body.len()
    );
    let request = head("PUT /a", &headers) + &body;
    // Others have most of the room.
    let _taken = site.sandbox.room.take(crate::room::Kind::Answer, 11 << 19).await.unwrap();
    let (site, mut all) = (Arc::new(site), tokio::task::JoinSet::new());
    for _ in 0..2 {
        let (site, request) = (site.clone(), request.clone());
        all.spawn(async move { site.raw(&request).await });
    }
    let answers = timeout(Duration::from_secs(300), all.join_all()).await.expect("they wait for each other");
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 200"), "{}", &answer[..answer.len().min(300)]);
    }
}

#[tokio::test]
async fn words_of_the_status_are_not_passed_on() {
    let site = site("").await;
    let answer = site.raw(&head("GET /a", &format!("X-Reason: {PLACEHOLDER}\r\n"))).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(!answer.contains("real"), "{answer}");
}

#[tokio::test]
async fn body_of_json_has_the_value_with_its_escapes() {
    let site = site(r#", "body": true"#).await;
    let body = format!(r#"{{"key": "{PLACEHOLDER}"}}"#);
    let answer = site.post("/a", &body).await;
    // The echo is redacted, but its length counts what the server has received, with two escapes.
    let length = body.len() + VALUE.len() + 2 - PLACEHOLDER.len();
    assert!(answer.contains(&format!("content-length: {length}\n")), "{answer}");
    assert!(answer.contains(&body) && !answer.contains("real"), "{answer}");
}

#[tokio::test]
async fn placeholder_that_stands_elsewhere_is_refused_and_reported() {
    let bearer = format!("Authorization: Bearer {PLACEHOLDER}\r\n");
    let basic = format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{PLACEHOLDER}:x")));
    let encoded = PLACEHOLDER.replace('_', "%5f");
    let (first, rest) = PLACEHOLDER.split_at(9);
    let chunks = format!(
        "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\n",
        first.len(),
        rest.len()
    );
    for (host, more, line, headers, why) in [
        ("other.example", "", "GET /a", bearer.as_str(), "not bound to this host"),
        ("other.example", "", "GET /a", basic.as_str(), "not bound to this host"),
        ("other.example", "", &format!("GET /a?x={PLACEHOLDER}"), "", "not bound to this host"),
        ("other.example", "", &format!("GET /a?x={encoded}"), "", "not bound to this host"),
        ("other.example", "", &format!("GET /{PLACEHOLDER}"), "", "not bound to this host"),
        ("other.example", "", "POST /a", chunks.as_str(), "not bound to this host"),
        ("localhost", "", &format!("GET /{PLACEHOLDER}"), "", "path cannot have it"),
        ("localhost", r#", "paths": ["/b/**"]"#, "GET /a", bearer.as_str(), "not bound to this path"),
        ("localhost", r#", "header": "X-Key""#, "GET /a", bearer.as_str(), "another place"),
    ] {
        let mut site = Site::new(OPEN).await;
        site.sandbox.set_credentials(vec![issued(host, site.port, more)]);
        let answer = site.raw(&head(line, headers)).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{line} {headers}: {answer}");
        let refusal = site.refused.try_recv().expect(line);
        let Reason::Credential(name, found) = &refusal.reason else { panic!("{refusal:?}") };
        assert_eq!(name, "github");
        assert!(found.contains(why), "{line} {headers}: {found}");
        assert!(!format!("{refusal:?}").contains(VALUE));
    }
}

#[tokio::test]
async fn request_without_the_header_of_a_credential_gets_it() {
    let site = site(r#", "header": "Authorization", "format": "token {}""#).await;
    let answer = site.get("/a").await;
    assert!(answer.contains(&format!("authorization: token {PLACEHOLDER}")), "{answer}");
    let own = site.raw(&head("GET /a", "Authorization: own\r\n")).await;
    assert!(own.contains("authorization: own\n") && !own.contains(PLACEHOLDER), "{own}");
}

#[tokio::test]
async fn rule_that_does_not_name_a_credential_excludes_it() {
    let mut site = Site::new(r#"{"name": "open", AT, "http": [{}], "credentials": ["other"]}"#).await;
    site.sandbox.set_credentials(vec![issued("localhost", site.port, "")]);
    site.raw(&head("GET /a", &format!("X-Key: {PLACEHOLDER}\r\n"))).await;
    let refusal = site.refused.try_recv().unwrap();
    assert!(matches!(&refusal.reason, Reason::Credential(_, why) if why.contains("excludes")), "{refusal:?}");
}

/// Sends a request on a connection that stays open, and returns whether it was answered.
async fn ask(stream: &mut TlsStream<TcpStream>, port: u16) -> bool {
    let request = format!("GET /a HTTP/1.1\r\nHost: localhost:{port}\r\nX-Key: {PLACEHOLDER}\r\n\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap_or(0);
    answer[..length].starts_with(b"HTTP/1.1 200")
}

#[tokio::test]
async fn revoked_and_expired_credentials_end_open_connections() {
    let site = site("").await;
    let mut stream = site.connect("http/1.1").await;
    assert!(ask(&mut stream, site.port).await);
    site.sandbox.set_credentials(Vec::new());
    let ended = timeout(Duration::from_secs(1), stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "a revoked credential leaves its connection open");

    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let ends = Some(seconds.cast_signed() + 2);
    site.sandbox.set_credentials(vec![Issued { ends, ..issued("localhost", site.port, "") }]);
    let mut stream = site.connect("http/1.1").await;
    assert!(ask(&mut stream, site.port).await);
    let ended = timeout(Duration::from_secs(3), stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "an expired credential leaves its connection open");
    let mut stream = site.connect("http/1.1").await;
    assert!(!ask(&mut stream, site.port).await);
}

#[tokio::test]
async fn scanner_takes_no_placeholder_for_a_secret() {
    let site = Site::new(OPEN).await;
    let level = |scanner| {
        let mut level = Level::clone(&site.sandbox.rules().levels[0]);
        level.scanner = Some(scanner);
        [Arc::new(level)].into()
    };
    site.sandbox.set_levels(level(hutch_policy::ScannerRules::default()));
    let request = head("GET /a", &format!("Authorization: Bearer {TOKEN}\r\n"));
    let refused = site.raw(&request).await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let placeholder = Issued { placeholder: TOKEN.into(), ..issued("localhost", site.port, "") };
    site.sandbox.set_credentials(vec![placeholder]);
    let answer = site.raw(&request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A site with a credential of another host.
async fn foreign() -> Site {
    let site = Site::new(OPEN).await;
    site.sandbox.set_credentials(vec![issued("other.example", site.port, "")]);
    site
}

/// Checks that the placeholder was reported, once.
async fn reported_once(site: &mut Site) {
    let refusal = timeout(Duration::from_secs(60), site.refused.recv()).await.unwrap().expect("a refusal");
    assert!(matches!(refusal.reason, Reason::Credential(..)), "{refusal:?}");
    assert!(site.refused.try_recv().is_err(), "it is reported twice");
}

#[tokio::test]
async fn placeholder_within_a_body_that_is_being_sent_is_answered_with_the_reason() {
    let mut site = foreign().await;
    let filler = "x".repeat(60_000);
    let body = format!("{filler}{PLACEHOLDER}{filler}");
    let request = head("POST /a", &format!("Content-Length: {}\r\n", body.len())) + &body;
    let answer = site.raw(&request).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("not bound to this host"), "{answer}");
    reported_once(&mut site).await;
}

#[tokio::test]
async fn placeholder_within_a_body_breaks_an_answer_off_that_has_begun() {
    let mut site = foreign().await;
    let mut stream = site.connect("http/1.1").await;
    let head = head("POST /a", "X-Early: 1\r\nTransfer-Encoding: chunked\r\n");
    stream.write_all(head.replace("PORT", &site.port.to_string()).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains("early") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "{answer:?}");
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    stream.write_all(format!("{:x}\r\n{PLACEHOLDER}\r\n", PLACEHOLDER.len()).as_bytes()).await.unwrap();
    reported_once(&mut site).await;
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn placeholder_within_a_body_of_http2_is_refused_or_breaks_the_answer_off() {
    for early in [false, true] {
        let mut site = foreign().await;
        let stream = site.connect("h2").await;
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let (pieces, body) = mpsc::unbounded_channel();
        let uri = format!("https://localhost:{}/a", site.port);
        let request = Request::builder().method("POST").uri(uri);
        let request = if early { request.header("x-early", "1") } else { request };
        let answered = tokio::spawn(sender.send_request(request.body(Pieces(body)).unwrap()));
        let (first, second) = PLACEHOLDER.split_at(9);
        pieces.send(first).unwrap();
        if !early {
            pieces.send(second).unwrap();
            drop(pieces);
            let response = timeout(Duration::from_secs(60), answered).await.unwrap().unwrap().unwrap();
            assert_eq!(response.status(), 403);
            let text = response.collect().await.unwrap().to_bytes();
            let text = String::from_utf8_lossy(&text);
            assert!(text.contains("not bound to this host"), "{text}");
        } else {
            let mut response = timeout(Duration::from_secs(60), answered).await.unwrap().unwrap().unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "early");
            pieces.send(second).unwrap();
            let end = timeout(Duration::from_secs(60), response.frame()).await.unwrap();
            assert!(end.is_none_or(|frame| frame.is_err()), "the answer continues");
        }
        reported_once(&mut site).await;
    }
}

/// Keeps the uses of credentials that are recorded, each of them as a name and a destination. The log takes all other records,
/// and these only if they are to be written.
fn uses(site: &Site, written: bool) -> Arc<std::sync::Mutex<Vec<String>>> {
    let used = Arc::<std::sync::Mutex<Vec<String>>>::default();
    let (kept, sandbox) = (used.clone(), site.sandbox.clone());
    let sink: Sink = Box::new(move |entry, number| {
        let is_use = matches!(entry, Entry::Used(..));
        if let Entry::Used(credential, destination) = entry {
            kept.lock().unwrap().push(format!("{credential} {destination}"));
        }
        if let Some(number) = number {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { sandbox.records.answer(number, written || !is_use) });
        }
    });
    site.sandbox.records.set(sink, true);
    used
}

#[tokio::test]
async fn use_is_recorded_at_every_place_of_a_value_and_sends_nothing_without_its_record() {
    let basic = format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("user:{PLACEHOLDER}")));
    let of_url = URL_SAFE_NO_PAD.encode(format!("<<???>>:{PLACEHOLDER}"));
    assert!(of_url.contains(['-', '_']), "{of_url}");
    let of_url = format!("Authorization: Basic {of_url}\r\n");
    let query = format!("GET /a?key={PLACEHOLDER}");
    let added = r#", "header": "Authorization", "format": "token {}""#;
    let (json, form) = (format!(r#"{{"key": "{PLACEHOLDER}"}}"#), format!("key={PLACEHOLDER}"));
    let typed = |kind: &str, body: &str| {
        format!("Content-Type: application/{kind}\r\nContent-Length: {}\r\n", body.len())
    };
    let (of_json, of_form) = (typed("json", &json), typed("x-www-form-urlencoded", &form));
    for (more, line, headers, body, is_used) in [
        ("", "GET /a", format!("X-Key: {PLACEHOLDER}\r\n"), "", true),
        ("", "GET /a", basic, "", true),
        ("", "GET /a", of_url, "", true),
        ("", &query, String::new(), "", true),
        (added, "GET /a", String::new(), "", true),
        (r#", "body": true"#, "POST /a", of_json, &json, true),
        (r#", "body": true"#, "POST /a", of_form.clone(), &form, true),
        // No value is sent.
        ("", "GET /a", String::new(), "", false),
        ("", "POST /a", of_form, &form, false),
        ("", &format!("GET /{PLACEHOLDER}"), String::new(), "", false),
        (added, "GET /a", "Authorization: own\r\n".to_owned(), "", false),
    ] {
        for written in [true, false] {
            let site = site(more).await;
            let used = uses(&site, written);
            let answer = site.raw(&(head(line, &headers) + body)).await;
            let expected: Vec<String> =
                is_used.then(|| format!("github localhost:{}", site.port)).into_iter().collect();
            assert_eq!(*used.lock().unwrap(), expected, "{line} {headers}: {answer}");
            let status = match (is_used, written) {
                (true, true) => "HTTP/1.1 200",
                (true, false) => "HTTP/1.1 503",
                (false, _) => continue,
            };
            assert!(answer.starts_with(status), "{line} {headers}: {answer}");
        }
    }
}

#[tokio::test]
async fn use_of_both_credentials_of_a_signature_for_aws_is_recorded() {
    let site = Site::new(OPEN).await;
    let mut key = issued("localhost", site.port, r#", "aws": {"accessKeyId": "id"}"#);
    key.placeholder = "placeholder-of-the-secret-key".into();
    let value = Secret::new("AKIDEXAMPLE".into());
    let id = Issued { name: "id".into(), value, ..issued("localhost", site.port, "") };
    site.sandbox.set_credentials(vec![id, key]);
    let used = uses(&site, true);
    let headers = format!(
        "Authorization: AWS4-HMAC-SHA256 Credential={PLACEHOLDER}/20150830/us-east-1/s3/aws4_request, \
         SignedHeaders=host, Signature={}\r\nX-Amz-Date: 20150830T123600Z\r\n",
        "0".repeat(64)
    );
    let answer = site.raw(&head("GET /a", &headers)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let expected = ["github", "id"].map(|name| format!("{name} localhost:{}", site.port));
    assert_eq!(*used.lock().unwrap(), expected);
}
