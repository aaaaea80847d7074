use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hutch_policy::{Authority as Of, Level};
use hyper::body::Incoming;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::authority::{Authority, AuthorityKeys};
use crate::way::Way;

mod counted;
mod credentials;
mod evasion;
mod floor;
mod held;
mod later;
mod refused;

/// A sandbox, and a server with TLS at `localhost` that answers with what it has received.
struct Site {
    sandbox: Arc<Sandbox>,
    keys: AuthorityKeys,
    port: u16,
    refused: mpsc::UnboundedReceiver<Refusal>,
}

/// Body with the pieces that arrive.
struct Pieces(mpsc::UnboundedReceiver<&'static str>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| Some(Ok(http_body::Frame::data(Bytes::from_static(piece?.as_bytes())))))
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let (parts, body) = request.into_parts();
    if parts.headers.contains_key("x-early") {
        // An answer that begins before the request has ended, and ends after it.
        let (pieces, answer) = mpsc::unbounded_channel();
        pieces.send("early").unwrap();
        tokio::spawn(async move {
            let _ = body.collect().await;
            std::future::pending::<()>().await;
            drop(pieces);
        });
        return Ok(Response::new(Pieces(answer).boxed_unsync()));
    }
    if parts.headers.contains_key("x-late") {
        std::future::pending::<()>().await;
    }
    let body = body.collect().await.ok();
    let trailers = body.as_ref().and_then(|body| body.trailers().cloned()).unwrap_or_default();
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let mut text = format!("{:?} {} {}\n", parts.version, parts.method, parts.uri);
    for (name, value) in &trailers {
        text.push_str(&format!("trailer {name}: {}\n", value.to_str().unwrap()));
    }
    for (name, value) in &parts.headers {
        text.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
    }
    text.push_str(&format!("\n{}", String::from_utf8_lossy(&body)));
    let response = Response::builder().header("alt-svc", "h3=\":443\"").header("x-kept", "1");
    let mut response = response.body(Full::new(text.into()).boxed_unsync()).unwrap();
    // A client chooses what else the server answers.
    for value in parts.headers.get_all("x-answer") {
        let (name, value) = value.to_str().unwrap().split_once('=').unwrap();
        response.headers_mut().append(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    }
    if let Some(status) = parts.headers.get("x-status") {
        *response.status_mut() = http::StatusCode::from_bytes(status.as_bytes()).unwrap();
    }
    if let Some(value) = parts.headers.get("x-reason") {
        response.extensions_mut().insert(hyper::ext::ReasonPhrase::try_from(value.as_bytes()).unwrap());
    }
    Ok(response)
}

/// Starts the server. It becomes a WebSocket that echoes where a client wants one.
async fn server(keys: &AuthorityKeys) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = Authority::new(keys).unwrap().config(&"localhost".parse().unwrap()).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(config.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service_fn(echo)).await;
                    return;
                }
                serve_one(stream).await;
            });
        }
    });
    port
}

/// Serves a connection of HTTP/1.1, or of a WebSocket.
async fn serve_one(mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    if String::from_utf8_lossy(&head).to_lowercase().contains("upgrade: websocket") {
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        return;
    }
    let (reader, writer) = tokio::io::split(stream);
    let stream = tokio::io::join(std::io::Cursor::new(head).chain(reader), writer);
    let builder = hyper::server::conn::http1::Builder::new();
    let _ = builder.serve_connection(TokioIo::new(stream), service_fn(echo)).await;
}

fn levels(port: u16, rules: &str, budget: &str) -> Arc<[Arc<Level>]> {
    let rules = rules.replace(
        "AT",
        &format!(r#""hosts": ["localhost"], "ports": [{port}], "private": ["127.0.0.0/8", "::1"]"#),
    );
    let egress = format!(r#"{{"rules": [{rules}]{budget}}}"#);
    let egress = Some(serde_json::from_str(&egress).unwrap());
    [Arc::new(Level::new(Of::Invocation, "test", egress))].into()
}

impl Site {
    async fn with(rules: &str, budget: &str) -> Site {
        let [outside, keys] = ["outside", "sandbox"].map(|name| AuthorityKeys::create(name).unwrap());
        let port = server(&outside).await;
        let way = Arc::new(Way::new(outside.certificate.clone().into_bytes(), None));
        let (sender, refused) = mpsc::unbounded_channel();
        let report = Box::new(move |refusal| drop(sender.send(refusal)));
        let sandbox = Sandbox::new(levels(port, rules, budget), way, report, Box::new(|_| ()));
        sandbox.set_authority(Arc::new(Authority::new(&keys).unwrap()));
        Site { sandbox, keys, port, refused }
    }

    async fn new(rules: &str) -> Site {
        Site::with(rules, "").await
    }

    /// Connects as a program of the sandbox does.
    async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let captured = listener.accept().await.unwrap().0;
        let (sandbox, destination) =
            (self.sandbox.clone(), format!("localhost:{}", self.port).parse().unwrap());
        tokio::spawn(async move { sandbox.serve_to(captured, destination).await });
        self.trusting(client, protocol).await.unwrap()
    }

    /// Speaks TLS on a connection, as a program of the sandbox does.
    async fn trusting(&self, client: TcpStream, protocol: &str) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.keys.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, client).await
    }

    /// Sends these bytes, in which PORT stands for the port, and returns the answer.
    async fn raw(&self, request: &str) -> String {
        let mut stream = self.connect("http/1.1").await;
        stream.write_all(request.replace("PORT", &self.port.to_string()).as_bytes()).await.unwrap();
        if !request.contains("\r\n\r\n") {
            stream.shutdown().await.unwrap(); // no server waits for the rest
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn get(&self, target: &str) -> String {
        self.raw(&format!("GET {target} HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\r\n")).await
    }

    async fn post(&self, target: &str, body: &str) -> String {
        let head = "Host: localhost:PORT\r\nConnection: close\r\nContent-Type: application/json";
        self.raw(&format!("POST {target} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
            .await
    }
}

const GET: &str = r#"{"name": "read", AT, "http": [{"methods": ["GET"], "paths": ["/simple/**"]}]}"#;

#[tokio::test]
async fn requests_that_a_rule_allows_reach_the_server_and_others_get_the_reason() {
    let mut site = Site::new(GET).await;
    let answer = site.get("/simple/six/?q=1").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("GET /simple/six/?q=1"), "{answer}");
    assert!(!answer.contains("alt-svc") && answer.contains("x-kept"), "{answer}");
    assert!(answer.contains(&format!("host: localhost:{}", site.port)), "{answer}");
    assert!(site.refused.try_recv().is_err());
    for (answer, method) in
        [(site.get("/other?secret=1").await, "GET"), (site.post("/simple/x", "{}").await, "POST")]
    {
        assert!(
            answer.starts_with("HTTP/1.1 403") && answer.contains("application/problem+json"),
            "{answer}"
        );
        assert!(answer.contains("no rule of policy"), "{answer}");
        let refusal = site.refused.try_recv().unwrap();
        assert!(refusal.destination.starts_with(&format!("{method} https://localhost:")), "{refusal:?}");
        assert!(!refusal.destination.contains("secret"), "{refusal:?}");
    }
}

/// hyper sends no body of a GET whose length it does not know, unless a header announces it.
#[tokio::test]
async fn body_in_chunks_arrives_with_every_method() {
    let site = Site::new(r#"{"name": "all", AT, "http": [{"paths": ["/**"]}]}"#).await;
    for method in ["GET", "POST", "DELETE", "SEARCH"] {
        let head = "Host: localhost:PORT\r\nConnection: close\r\nTransfer-Encoding: chunked";
        let answer = site.raw(&format!("{method} /a HTTP/1.1\r\n{head}\r\n\r\n3\r\nabc\r\n0\r\n\r\n")).await;
        assert!(answer.contains("transfer-encoding: chunked") && answer.contains("\n\nabc"), "{answer}");
    }
}

/// Two parsers read a head, of which the second has no bound of this program.
#[tokio::test]
async fn head_has_at_most_100_headers() {
    let site = Site::new(r#"{"name": "all", AT, "http": [{"paths": ["/**"]}]}"#).await;
    for (more, expected) in [(98, "HTTP/1.1 200 "), (99, "HTTP/1.1 431 ")] {
        let more: String = (0..more).map(|number| format!("X-{number}: a\r\n")).collect();
        let head = "Host: localhost:PORT\r\nConnection: close\r\n";
        let answer = site.raw(&format!("GET /a HTTP/1.1\r\n{head}{more}\r\n")).await;
        assert!(answer.starts_with(expected), "{expected}: {answer}");
    }
}

#[tokio::test]
async fn request_with_more_than_one_meaning_is_refused() {
    let site = Site::new(r#"{"name": "all", AT, "http": [{"paths": ["/a/**"]}]}"#).await;
    assert!(site.get("/a/b").await.starts_with("HTTP/1.1 200"));
    let host = "Host: localhost:PORT\r\nConnection: close\r\n";
    for request in [
        format!("GET /a/../b HTTP/1.1\r\n{host}\r\n"),
        format!("GET /a/%2e%2e/b HTTP/1.1\r\n{host}\r\n"),
        format!("GET /a%2fb HTTP/1.1\r\n{host}\r\n"),
        format!("GET /a//b HTTP/1.1\r\n{host}\r\n"),
        format!("GET /a/%00 HTTP/1.1\r\n{host}\r\n"),
        format!("GET /a/b HTTP/1.1\r\nHost: localhost:PORT\r\n{host}\r\n"),
        "GET /a/b HTTP/1.1\r\nHost: other:PORT\r\nConnection: close\r\n\r\n".to_owned(),
        "GET /a/b HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n\r\n".to_owned(),
        "GET /a/b HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
        format!("GET https://other/a/b HTTP/1.1\r\n{host}\r\n"),
        format!("POST /a/b HTTP/1.1\r\n{host}Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde"),
        format!("POST /a/b HTTP/1.1\r\n{host}Transfer-Encoding: gzip, identity\r\n\r\n"),
        format!("GET /a/b HTTP/1.1\r\n{host}X: a\r\n b\r\n\r\n"),
        format!("GET /a/b HTTP/1.1\r\n{host}X-HTTP-Method-Override: DELETE\r\n\r\n"),
        format!("GET /a/b HTTP/1.1\r\n{host}X-Original-URL: /b\r\n\r\n"),
        "CONNECT localhost:PORT HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\r\n".to_owned(),
        format!("TRACE /a/b HTTP/1.1\r\n{host}\r\n"),
        "GET /a/b HTTP/1.1\r\nHost : localhost:PORT\r\n\r\n".to_owned(),
        "GET /a/b HTTP/1.1\rHost: localhost:PORT\r\r".to_owned(),
        // Servers that read `_` as `-` would find a second request in the body.
        format!(
            "POST /a/b HTTP/1.1\r\n{host}Transfer_Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
        ),
        format!("POST /a/b HTTP/1.1\r\n{host}Content_Length: 0\r\nContent-Length: 3\r\n\r\nabc"),
    ] {
        let answer = site.raw(&request).await;
        assert!(!answer.contains(" 200"), "{request:?}: {answer}");
    }
    // Two lengths of a body, also in a later request of a connection. What follows is not read.
    let kept = "POST /a/b HTTP/1.1\r\nHost: localhost:PORT\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    for lengths in [
        "Content-Length: 50\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\nContent-Length: 5\r\n",
    ] {
        let twice =
            format!("POST /a/b HTTP/1.1\r\nHost: localhost:PORT\r\n{lengths}\r\n3\r\nabc\r\n0\r\n\r\n");
        let get = format!("GET /a/last HTTP/1.1\r\n{host}\r\n");
        let answer = site.raw(&format!("{kept}{twice}{get}")).await;
        assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{lengths}: {answer}");
        assert!(answer.contains("HTTP/1.1 403") && answer.contains("two lengths of the body"), "{answer}");
        assert!(!answer.contains("/a/last"), "{answer}");
    }
    let answer = site.raw(&format!("{kept}{kept}GET /a/last HTTP/1.1\r\n{host}\r\n")).await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 3, "{answer}");
}

#[tokio::test]
async fn http2_is_read_as_http1_is() {
    let mut site = Site::new(GET).await;
    let stream = site.connect("h2").await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut send = async |method: &str, authority: &str, path: &str| {
        let uri = format!("https://{authority}{path}");
        let request = Request::builder().method(method).uri(uri).body(Full::new(Bytes::new())).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        (status.as_u16(), String::from_utf8_lossy(&response.collect().await.unwrap().to_bytes()).into_owned())
    };
    let here = format!("localhost:{}", site.port);
    let (status, body) = send("GET", &here, "/simple/a").await;
    assert!(status == 200 && body.starts_with("HTTP/2.0 GET"), "{status} {body}");
    for (method, authority, path) in [
        ("POST", here.as_str(), "/simple/a"),
        // Its answer has no body, else the client reports a fault of the protocol.
        ("HEAD", &here, "/b"),
        ("GET", &here, "/b"),
        ("GET", "other.example", "/simple/a"),
        ("GET", &here, "/simple/../b"),
    ] {
        assert_eq!(send(method, authority, path).await.0, 403, "{method} {authority} {path}");
        site.refused.try_recv().unwrap();
    }
}

/// A body whose one byte comes late.
struct Late(std::pin::Pin<Box<tokio::time::Sleep>>, Arc<std::sync::atomic::AtomicBool>);

impl http_body::Body for Late {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        use std::sync::atomic::Ordering::SeqCst;
        if self.1.load(SeqCst) {
            return std::task::Poll::Ready(None);
        }
        std::task::ready!(self.0.as_mut().poll(context));
        self.1.store(true, SeqCst);
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(b"x")))))
    }
}

#[tokio::test]
async fn refused_request_is_answered_after_its_body_was_sent() {
    let site = Site::new(GET).await;
    let stream = site.connect("h2").await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let sent = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let body = Late(Box::pin(tokio::time::sleep(Duration::from_millis(100))), sent.clone());
    let uri = format!("https://localhost:{}/simple/a", site.port);
    let request = Request::builder().method("POST").uri(uri).body(body).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 403);
    assert!(sent.load(std::sync::atomic::Ordering::SeqCst), "a client may fail if its stream ends before");
}

const UPGRADE: &str = "GET /simple/ws HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

#[tokio::test]
async fn websocket_needs_an_entry_of_its_own() {
    let site = Site::new(GET).await;
    let answer = site.raw(&UPGRADE.replace("Upgrade\r", "Upgrade, close\r")).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let site =
        Site::new(r#"{"name": "ws", AT, "http": [{"paths": ["/simple/ws"], "websocket": true}]}"#).await;
    let mut stream = site.connect("http/1.1").await;
    stream.write_all(UPGRADE.replace("PORT", &site.port.to_string()).as_bytes()).await.unwrap();
    let mut head = vec![0; 512];
    let count = stream.read(&mut head).await.unwrap();
    assert!(head[..count].starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    for _ in 0..2 {
        stream.write_all(b"frame").await.unwrap();
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"frame");
    }
    site.sandbox.set_levels(levels(site.port, GET, ""));
    let end = stream.read(&mut head).await;
    assert!(matches!(end, Ok(0) | Err(_)), "the rule was taken away: {end:?}");
}

#[tokio::test]
async fn calls_are_decided_one_by_one() {
    let site = Site::new(r#"{"name": "tools", AT, "mcp": [{"tools": ["search_*"]}]}"#).await;
    let call = |tool: &str| {
        format!(
            r#"{{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {{"name": "{tool}", "arguments": {{}}}}}}"#
        )
    };
    for allowed in [call("search_web"), r#"{"jsonrpc": "2.0", "id": 1, "method": "initialize"}"#.to_owned()] {
        let answer = site.post("/mcp", &allowed).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&allowed), "{answer}");
    }
    let answer = site.post("/mcp", &call("delete_all")).await;
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("\"id\":7") && answer.contains("-32001"),
        "{answer}"
    );
    assert!(answer.contains(r#"/mcp (tools/call delete_all): no rule of policy"#), "{answer}");
    let batch = format!("[{}]", call("delete_all"));
    let answer = site.post("/mcp", &batch).await;
    assert!(answer.contains("problem+json") && answer.contains("(tools/call delete_all)"), "{answer}");
    for refused in ["", "x", "{}", r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "method": "tools/call"}"#]
    {
        let answer = site.post("/mcp", refused).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{refused}: {answer}");
    }
    let encoded = "Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: 2";
    let answer =
        site.raw(&format!("POST /mcp HTTP/1.1\r\nHost: localhost:PORT\r\n{encoded}\r\n\r\nxx")).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(site.get("/mcp").await.starts_with("HTTP/1.1 200"), "a stream of answers");
}

#[tokio::test]
async fn bodies_end_at_the_limit_of_the_rule_and_of_the_budget() {
    let rule = r#"{"name": "put", AT, "http": [{"body": {"maxBytes": 5}}]}"#;
    let site = Site::new(rule).await;
    assert!(site.post("/", "12345").await.contains("\n12345"));
    assert!(site.post("/", "123456").await.starts_with("HTTP/1.1 403"));
    let chunked =
        "POST / HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert!(site.raw(&format!("{chunked}5\r\n12345\r\n0\r\n\r\n")).await.contains("\n12345"));
    assert!(!site.raw(&format!("{chunked}6\r\n123456\r\n0\r\n\r\n")).await.contains(" 200 "));
    let budget = r#", "budget": {"requests": 2, "requestsPer": "1h"}"#;
    let site = Site::with(r#"{"name": "all", AT, "http": [{}]}"#, budget).await;
    for expected in ["200", "200", "403"] {
        let answer = site.get("/").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{answer}");
    }
}

#[tokio::test]
async fn kept_connection_ends_when_its_rules_change_and_stays_when_others_do() {
    let site = Site::new(GET).await;
    let mut stream = site.connect("http/1.1").await;
    let request = format!("GET /simple/ HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", site.port);
    let other = format!(r#"{GET}, {{"name": "other", "hosts": ["other.example"]}}"#);
    for rules in [GET, &other] {
        site.sandbox.set_levels(levels(site.port, rules, ""));
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let count = stream.read(&mut answer).await.unwrap();
        assert!(answer[..count].starts_with(b"HTTP/1.1 200"), "{rules}");
    }
    site.sandbox.set_levels(levels(site.port, &GET.replace("/simple", "/other"), ""));
    let end = stream.read(&mut [0; 16]).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

#[tokio::test]
async fn kept_connection_holds_no_earlier_rules() {
    let site = Site::new(GET).await;
    let mut stream = site.connect("http/1.1").await;
    let request = format!("GET /simple/ HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", site.port);
    let earlier = Arc::downgrade(&site.sandbox.rules().levels[0]);
    for held in [true, false] {
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        assert_eq!(earlier.upgrade().is_some(), held);
        site.sandbox.set_levels(levels(site.port, GET, ""));
    }
}

#[tokio::test]
async fn connection_has_no_room_for_tls_and_requests() {
    let site = Site::new(GET).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let destination = "localhost".parse().unwrap();
    let size = size_of_val(&inspect(&site.sandbox, client, &destination, (Spoken::Tls, false), Vec::new()));
    // All connections of a sandbox keep it.
    assert!(size < 3 << 10, "{size}");
}

#[tokio::test]
async fn server_that_is_not_trusted_gets_no_request() {
    let site = Site::new(GET).await;
    let way = Arc::new(Way::new(site.keys.certificate.clone().into_bytes(), None));
    let sandbox = Sandbox::new(levels(site.port, GET, ""), way, Box::new(|_| ()), Box::new(|_| ()));
    sandbox.set_authority(Arc::new(Authority::new(&site.keys).unwrap()));
    let site = Site { sandbox, ..site };
    let answer = site.get("/simple/").await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("TLS to the server"), "{answer}");
}

#[tokio::test]
async fn headers_that_rules_and_servers_see_differently_are_refused() {
    let rule = r#"{"name": "tenant", AT, "http": [{"headers": [{"name": "x-tenant", "exact": "safe"}]}]}"#;
    let site = Site::new(rule).await;
    let send = async |headers: &str| {
        site.raw(&format!("GET / HTTP/1.1\r\nHost: localhost:PORT\r\n{headers}\r\n\r\n")).await
    };
    let allowed = "X-Tenant: safe\r\nConnection: close";
    assert!(send(allowed).await.starts_with("HTTP/1.1 200"));
    for headers in [
        "X-Tenant: safe\r\nConnection: close, x-tenant",
        "X-Tenant: safe\r\nConnection: close\r\nX_HTTP_Method_Override: DELETE",
        "X-Tenant: safe\r\nX-Other: \u{e9}\r\nConnection: close",
    ] {
        assert!(send(headers).await.starts_with("HTTP/1.1 403"), "{headers}");
    }
}

#[tokio::test]
async fn calls_in_another_encoding_are_refused() {
    let site = Site::new(r#"{"name": "tools", AT, "mcp": [{"tools": ["search_*"]}]}"#).await;
    let call = r#"{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "search_a"}}"#;
    let send = async |kinds: &str| {
        let head =
            format!("Host: localhost:PORT\r\nConnection: close\r\n{kinds}\r\nContent-Length: {}", call.len());
        site.raw(&format!("POST /mcp HTTP/1.1\r\n{head}\r\n\r\n{call}")).await
    };
    for kinds in ["Content-Type: application/json", "Content-Type: application/json; charset=\"UTF-8\""] {
        assert!(send(kinds).await.starts_with("HTTP/1.1 200"), "{kinds}");
    }
    for kinds in [
        "Content-Type: application/json; charset=utf-7",
        "Content-Type: application/json; charset=\"utf-7\"; x=charset=utf-8",
        "Content-Type: application/json; charset=utf-8; charset=utf-7",
        "Content-Type: application/json\r\nContent-Type: application/json; charset=utf-7",
    ] {
        assert!(send(kinds).await.starts_with("HTTP/1.1 403"), "{kinds}");
    }
}

#[tokio::test]
async fn calls_in_utf16_are_refused_also_where_other_bodies_are_allowed() {
    let rules = r#"{"name": "tools", AT, "mcp": [{"tools": ["search_*"]}]}, {"name": "all", AT, "http": [{"methods": ["POST"]}]}"#;
    let site = Site::new(rules).await;
    let send = async |body: &str| {
        let head = format!("Host: localhost:PORT\r\nConnection: close\r\nContent-Length: {}", body.len());
        site.raw(&format!("POST /mcp HTTP/1.1\r\n{head}\r\n\r\n{body}")).await
    };
    let wide = |text: &str| text.chars().flat_map(|letter| [letter, '\0']).collect::<String>();
    let call = r#"{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "delete"}}"#;
    assert!(send("{}").await.starts_with("HTTP/1.1 200"));
    assert!(send("a text").await.starts_with("HTTP/1.1 200"));
    let refused = send(&wide(call)).await;
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("its body is not UTF-8"), "{refused}");
    assert!(send(&wide("a text")).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn heads_count_in_the_budget_of_bytes() {
    let budget = r#", "budget": {"bytesOut": 1000, "per": "1h"}"#;
    let site = Site::with(r#"{"name": "all", AT, "http": [{}]}"#, budget).await;
    let long = format!("/{}", "a".repeat(600));
    assert!(site.get(&long).await.starts_with("HTTP/1.1 200"));
    assert!(site.get(&long).await.starts_with("HTTP/1.1 403"));
}
