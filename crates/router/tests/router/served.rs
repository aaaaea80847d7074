//! Listeners of the router: TLS, HTTP/2, gRPC, draining, metrics and the access log.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt, StreamBody};
use hutch_router::{Access, AccessLog, ClientCertificates, Config, LogSink, Tls, TlsFiles, Token};
use hutch_serve::Shutdown;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::certificates::{Authority, client_config};
use crate::routed::{backend, expect, head, quick, routed, send, with, within};

async fn h2(stream: TcpStream) -> hyper::client::conn::http2::SendRequest<Body> {
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn http2_requests_are_forwarded_over_http11() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        let head = head(&mut stream).await;
        assert!(head.starts_with("POST //a/%2F?b HTTP/1.1\r\n"), "{head}");
        assert!(
            head.contains("cookie: a=1; b=2\r\n") && head.contains("x-forwarded-host: out.example\r\n"),
            "{head}"
        );
        send(
            &mut stream,
            "HTTP/1.1 200 OK\r\nconnection: close\r\nkeep-alive: 1\r\ncontent-length: 4\r\n\r\nmade",
        )
        .await;
    })
    .await;
    let mut sender = h2(TcpStream::connect(routed.address).await.unwrap()).await;
    for _ in 0..3 {
        let request = Request::post("http://out.example//a/%2F?b")
            .header("x-sandbox-id", "a")
            .header("x-sandbox-port", port.to_string())
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(Body::from("x"))
            .unwrap();
        let answer = within(sender.send_request(request)).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_2));
        assert!(!answer.headers().contains_key("connection") && !answer.headers().contains_key("keep-alive"));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "made");
    }
}

/// Echoes each gRPC call as it arrives, with a status in the trailers.
async fn echo_calls() -> u16 {
    let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
        assert_eq!(request.version(), Version::HTTP_2);
        assert_eq!(request.headers()["te"], "trailers");
        assert!(
            request.uri().path() == "/process.v1.ProcessService/Start"
                && !request.headers().contains_key("authorization")
        );
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        let end = futures::stream::iter([Ok(Frame::trailers(trailers))]);
        let frames = futures::StreamExt::chain(http_body_util::BodyStream::new(request.into_body()), end);
        let response = Response::builder().header("content-type", "application/grpc");
        Ok::<_, std::convert::Infallible>(response.body(StreamBody::new(frames)).unwrap())
    });
    let (port, _) = backend(move |stream| async move {
        let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        let _ = served.await;
    })
    .await;
    port
}

#[tokio::test]
async fn grpc_streams_both_ways_with_trailers_over_one_connection() {
    let routed = routed(Access::Anyone).await;
    let port = echo_calls().await;
    let mut sender = h2(TcpStream::connect(routed.address).await.unwrap()).await;
    for round in 0..3 {
        let (send, body) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
        let body = futures::stream::unfold(body, async |mut body| Some((body.recv().await?, body)));
        let request = Request::post(format!("http://{}/process.v1.ProcessService/Start", routed.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("x-sandbox-id", "a")
            .header("x-sandbox-port", port.to_string())
            .header("authorization", "Bearer x")
            .body(Body::new(StreamBody::new(body)))
            .unwrap();
        let answer = within(sender.send_request(request)).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut body = answer.into_body();
        for piece in ["one", "two"] {
            send.send(Ok(Frame::data(Bytes::from(piece)))).await.unwrap();
            let frame = within(body.frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), piece, "{round}: before the call has ended");
        }
        drop(send);
        let trailers = within(body.collect()).await.unwrap().trailers().cloned().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
    }
    assert_eq!(routed.cluster.dialled.load(std::sync::atomic::Ordering::SeqCst), 1);
}

fn files(folder: &std::path::Path, client: ClientCertificates) -> TlsFiles {
    TlsFiles {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        client_authority: Some(folder.join("ca.crt")),
        client,
    }
}

/// Sends GET /healthz over TLS; returns the serial number of the server's certificate.
async fn greet(address: std::net::SocketAddr, config: rustls::ClientConfig) -> std::io::Result<Vec<u8>> {
    let name = "localhost".try_into().unwrap();
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let request = b"GET /healthz HTTP/1.1\r\nhost: r\r\nconnection: close\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    Ok(certificate)
}

#[tokio::test]
async fn certificates_are_reloaded_when_files_change() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    authority.write(folder.path(), "localhost");
    let tls = Tls::open(files(folder.path(), ClientCertificates::Off)).unwrap();
    let routed = with(quick(), Access::Anyone, Some(tls.clone()), None).await;
    let following = Shutdown::new();
    tokio::spawn(tls.follow(routed.router.metrics().clone(), following.clone()));
    let first = greet(routed.address, client_config(&authority, None)).await.unwrap();
    let count = |outcome: &str| {
        let text = routed.router.metrics().text();
        text.contains(&format!("sandbox_router_cert_reloads_total{{outcome=\"{outcome}\"}} 1\n"))
    };
    let until = async |outcome: &str| {
        within(async {
            while !count(outcome) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    std::fs::write(folder.path().join("tls.key"), "nonsense").unwrap();
    until("failure").await;
    assert_eq!(
        greet(routed.address, client_config(&authority, None)).await.unwrap(),
        first,
        "the old one stays"
    );
    authority.write(folder.path(), "localhost");
    until("success").await;
    assert_ne!(greet(routed.address, client_config(&authority, None)).await.unwrap(), first);
    following.trigger();
}

#[tokio::test]
async fn client_certificates_are_required_as_configured() {
    let (authority, other) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    authority.write(folder.path(), "localhost");
    for (mode, without, foreign) in [
        (ClientCertificates::Off, true, true),
        (ClientCertificates::Optional, true, false),
        (ClientCertificates::Required, false, false),
    ] {
        let tls = Tls::open(files(folder.path(), mode)).unwrap();
        let routed = with(quick(), Access::Anyone, Some(tls), None).await;
        let greets = async |client: Option<&Authority>| {
            greet(routed.address, client_config(&authority, client)).await.is_ok()
        };
        assert!(greets(Some(&authority)).await, "{mode:?}");
        assert_eq!((greets(None).await, greets(Some(&other)).await), (without, foreign), "{mode:?}");
    }
    let missing =
        TlsFiles { key: folder.path().join("nothing"), ..files(folder.path(), ClientCertificates::Off) };
    let Err(error) = Tls::open(missing) else { panic!("opened") };
    assert!(error.to_string().contains("nothing"), "{error}");
}

#[tokio::test]
async fn the_client_authority_is_reloaded_when_its_file_changes() {
    let (authority, other) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    authority.write(folder.path(), "localhost");
    let tls = Tls::open(files(folder.path(), ClientCertificates::Required)).unwrap();
    let routed = with(quick(), Access::Anyone, Some(tls.clone()), None).await;
    let following = Shutdown::new();
    tokio::spawn(tls.follow(routed.router.metrics().clone(), following.clone()));
    let greets = async |client: &Authority| {
        greet(routed.address, client_config(&authority, Some(client))).await.is_ok()
    };
    assert_eq!((greets(&authority).await, greets(&other).await), (true, false));
    other.write_itself(folder.path());
    within(async {
        while !greets(&other).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(!greets(&authority).await, "the earlier authority opens nothing any more");
    following.trigger();
}

#[tokio::test]
async fn draining_completes_requests_in_progress() {
    let mut routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab").await;
        let _ = stream.read_u8().await;
        send(&mut stream, "cd").await;
    })
    .await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(
        &mut client,
        &format!("POST / HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\ncontent-length: 1\r\n\r\n"),
    )
    .await;
    assert!(head(&mut client).await.starts_with("HTTP/1.1 200 "));
    expect(&mut client, "ab").await;
    assert_eq!(routed.get("/readyz", &[]).await, (200, "ok".into()));
    routed.router.drain();
    assert_eq!(routed.get("/readyz", &[]).await, (503, r#"{"status":"draining"}"#.into()));
    routed.drain.trigger();
    within(async {
        while TcpStream::connect(routed.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    send(&mut client, "x").await;
    expect(&mut client, "cd").await;
    within(routed.served.take().unwrap()).await.unwrap();
}

/// Log that a test can read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn requests_are_logged_and_counted_without_secrets() {
    let (log, token) = (Log::default(), "correct-horse-battery");
    let sink = LogSink::start(log.clone()).unwrap();
    let config = Config { access_log: AccessLog::Lines(sink.clone()), ..quick() };
    let routed = with(config, Access::Token(Token::new(token).unwrap()), None, None).await;
    let (port, _) = backend(|mut stream| async move {
        let id = head(&mut stream)
            .await
            .lines()
            .find_map(|line| Some(line.strip_prefix("x-request-id: ")?.to_owned()));
        send(
            &mut stream,
            &format!(
                "HTTP/1.1 200 OK\r\nx-seen: {}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
                id.unwrap()
            ),
        )
        .await;
    })
    .await;
    let port = port.to_string();
    let base = [("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str()), ("user-agent", "tests/1")];
    let own = ("x-request-id", "mine-1");
    let right = format!("Bearer {token}");
    let answer = routed
        .exchange(&format!(
            "GET /p?secret=1 HTTP/1.1\r\nhost: r\r\nconnection: close\r\nauthorization: {right}\r\nx-request-id: mine-1\r\n{}\r\n",
            base.map(|(name, value)| format!("{name}: {value}\r\n")).concat()
        ))
        .await;
    assert!(answer.contains("x-request-id: mine-1\r\n") && answer.contains("x-seen: mine-1\r\n"), "{answer}");
    assert_eq!(
        routed.get("/p", &[&base[..], &[own, ("authorization", "Bearer wrong")]].concat()).await.0,
        401
    );
    let free =
        tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port().to_string();
    let dead = [("x-sandbox-id", "a"), ("x-sandbox-port", free.as_str()), ("authorization", right.as_str())];
    assert_eq!(routed.get("/p", &dead).await.0, 502);
    assert_eq!(routed.get("/healthz", &[]).await.0, 200);
    sink.flush(Duration::from_secs(10));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains(token) && !text.contains("secret") && !text.contains("wrong"), "{text}");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{text}");
    let expected = serde_json::json!({
        "level": "info", "ts": lines[0]["ts"], "msg": "request", "method": "GET", "path": "/p", "status": 200,
        "duration_ms": lines[0]["duration_ms"], "client_ip": "127.0.0.1", "sandbox_id": "a", "sandbox_namespace": "default",
        "bytes_out": 2, "user_agent": "tests/1", "request_id": "mine-1",
    });
    assert_eq!(lines[0], expected);
    let metrics = routed.router.metrics().text();
    for line in [
        r#"sandbox_router_requests_total{code="200",method="GET",sandbox_namespace="default"} 1"#,
        r#"sandbox_router_requests_total{code="401",method="GET",sandbox_namespace="default"} 1"#,
        r#"sandbox_router_request_duration_seconds_bucket{code="200",method="GET",sandbox_namespace="default",le="180"} 1"#,
        "sandbox_router_inflight_requests 0",
        r#"sandbox_router_upstream_errors_total{reason="dial",sandbox_namespace="default"} 1"#,
        r#"sandbox_router_upstream_retries_total{sandbox_namespace="default"} 3"#,
        r#"sandbox_router_authz_decisions_total{decision="allow",sandbox_namespace="-"} 1"#,
        r#"sandbox_router_authz_decisions_total{decision="deny",sandbox_namespace="default"} 1"#,
        r#"sandbox_router_cert_reloads_total{outcome="failure"} 0"#,
        "sandbox_router_build_info{",
    ] {
        assert!(metrics.contains(line), "{line}:\n{metrics}");
    }
}

#[tokio::test]
async fn the_request_timeout_does_not_bound_upgrades() {
    let config = Config { exchange_timeout: Some(Duration::from_millis(300)), ..quick() };
    let routed = with(config, Access::Anyone, None, None).await;
    let (port, _) = backend(|mut stream| async move {
        let head = head(&mut stream).await;
        if head.contains("upgrade: x") {
            send(
                &mut stream,
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
            )
            .await;
            tokio::time::sleep(Duration::from_millis(600)).await;
            return send(&mut stream, "late").await;
        }
        if head.starts_with("GET /body ") {
            send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbegun").await;
        }
        let _ = stream.read_u8().await;
    })
    .await;
    let start = |path: &str, more: &str| {
        format!("GET {path} HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\n{more}\r\n")
    };
    assert!(routed.exchange(&start("/head", "connection: close\r\n")).await.starts_with("HTTP/1.1 504 "));
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &start("/body", "")).await;
    let mut all = Vec::new();
    let _ = within(client.read_to_end(&mut all)).await;
    assert!(all.starts_with(b"HTTP/1.1 200 ") && all.ends_with(b"begun"), "cut in the middle");
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &start("/", "connection: upgrade\r\nupgrade: x\r\n")).await;
    assert!(head(&mut client).await.starts_with("HTTP/1.1 101 "));
    expect(&mut client, "late").await;
}
