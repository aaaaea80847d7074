//! Header contract, over real connections.

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{ByteReader, Duplex, ExecRequest, Kubelet, LogRequest, PodId, Session, StreamError};
use hutch_router::{Access, Backend, Dial, DialError, Direct, Inside, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::routed::{self, backend, expect, head, routed, send};

fn detail(text: &str) -> String {
    serde_json::json!({ "detail": text }).to_string()
}

#[tokio::test]
async fn invalid_headers_have_documented_errors() {
    let routed = routed(Access::Anyone).await;
    let id = ("X-Sandbox-ID", "a");
    for (headers, text) in [
        (&[][..], "X-Sandbox-ID header is required."),
        (&[("x-sandbox-id", "A.b")], "Invalid sandbox ID format."),
        (&[id, ("X-SANDBOX-NAMESPACE", "a/b")], "Invalid namespace format."),
        (&[id, ("X-Sandbox-Port", "0")], "Invalid port format."),
        (&[id, ("X-Sandbox-Pod-IP", "nonsense")], "Invalid target IP address."),
        (&[id, ("X-Sandbox-Pod-IP", "169.254.169.254")], "Invalid target IP address."),
        (&[id, ("X-Sandbox-Pod-IP", "10.89.0.66")], "Invalid target IP address."),
        (&[id, ("X-Sandbox-Port", "+8888")], "Invalid port format."),
        (&[id, ("X-Sandbox-Port", "08888")], "Invalid port format."),
        (&[id, ("X-Sandbox-Pod-IP", "::ffff:10.89.0.7")], "Invalid target IP address."),
        (&[id, ("X-Sandbox-Pod-IP", "FD00::7")], "Invalid target IP address."),
        (&[id, ("X-Sandbox-Pod-IP", "127.0.0.1")], "Invalid target IP address."),
        (
            &[id, ("X-Sandbox-Pod-IP", "10.89.0.7"), ("x-sandbox-pod-ip", "10.89.0.7")],
            "Invalid target IP address.",
        ),
    ] {
        assert_eq!(routed.get("/x", headers).await, (400, detail(text)), "{headers:?}");
    }
    assert_eq!(routed.cluster.dialled.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn unreachable_sandboxes_are_a_bad_gateway() {
    let routed = routed(Access::Anyone).await;
    let text = |id: &str| detail(&format!("Could not connect to the backend sandbox: {id}"));
    assert_eq!(routed.get("/", &[("x-sandbox-id", "absent")]).await, (502, text("absent")));
    assert_eq!(
        routed.get("/", &[("x-sandbox-id", "a"), ("x-sandbox-namespace", "other")]).await,
        (502, text("a"))
    );
    // A port without a listener: four attempts.
    let (port, _) = backend(|_| async {}).await;
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert_ne!(port, free);
    assert_eq!(
        routed.get("/", &[("x-sandbox-id", "a"), ("x-sandbox-port", &free.to_string())]).await,
        (502, text("a"))
    );
    assert_eq!(routed.cluster.dialled.load(std::sync::atomic::Ordering::SeqCst), 4);
}

#[tokio::test]
async fn the_pod_ip_header_is_compared_and_never_used() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
    })
    .await;
    let port = port.to_string();
    let with = |ip: &'static str| {
        vec![("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str()), ("x-sandbox-pod-ip", ip)]
    };
    assert_eq!(routed.get("/", &with("10.89.0.7")).await, (200, "ok".into()));
    assert_eq!(routed.get("/", &with("fd00::7")).await, (200, "ok".into()));
    // After a restart of the Pod: its earlier address is accepted as late, an unknown address may be late,
    // and the address of another Sandbox is an error.
    routed.cluster.add("a", &["10.89.0.9"]);
    assert_eq!(routed.get("/", &with("10.89.0.9")).await, (200, "ok".into()));
    assert_eq!(routed.get("/", &with("10.89.0.7")).await, (200, "ok".into()));
    let unknown = detail("Could not connect to the backend sandbox: a");
    assert_eq!(routed.get("/", &with("10.89.0.8")).await, (502, unknown));
    assert_eq!(routed.get("/", &with("10.89.0.66")).await, (400, detail("Invalid target IP address.")));
}

#[tokio::test]
async fn a_token_is_required_and_not_forwarded() {
    let secret = "correct-horse-battery";
    let routed = routed(Access::Token(Token::new(secret).unwrap())).await;
    let (port, _) = backend(|mut stream| async move {
        let head = head(&mut stream).await;
        let body = head.contains("secret")
            || head.to_lowercase().contains("authorization")
            || head.contains("battery");
        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n{body:<5}");
        send(&mut stream, &text).await;
    })
    .await;
    let port = port.to_string();
    let base = [("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str())];
    let unauthenticated = (401, detail("unauthenticated"));
    assert_eq!(routed.get("/", &base).await, unauthenticated);
    assert_eq!(routed.get("/", &[]).await, unauthenticated, "authorization comes before the headers");
    assert_eq!(
        routed.get("/", &[&base[..], &[("authorization", "Bearer wrong-horse-battery!")]].concat()).await,
        unauthenticated
    );
    let right = format!("Bearer {secret}");
    assert_eq!(
        routed.get("/", &[&base[..], &[("authorization", &right)]].concat()).await,
        (200, "false".into())
    );
    assert_eq!(routed.get("/healthz", &[]).await, (200, r#"{"status":"ok"}"#.into()));
    assert_eq!(routed.get("/readyz", &[]).await, (200, "ok".into()));
    routed.cluster.sandboxes.lock().unwrap().clear();
    assert_eq!(routed.get("/readyz", &[]).await.0, 503);
}

#[tokio::test]
async fn requests_are_forwarded_byte_for_byte() {
    let routed = routed(Access::Anyone).await;
    let (seen, mut heads) = mpsc::channel(4);
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            seen.send(head(&mut stream).await).await.unwrap();
            send(&mut stream, "HTTP/1.1 307 Temporary Redirect\r\nlocation: /x\r\ncontent-length: 0\r\nconnection: close\r\nx-own: 1\r\n\r\n").await;
        }
    })
    .await;
    let request = format!(
        "PROPFIND //download/%2Fapp%2fx/../%2e%2e/y?q=%20+&r=//../ HTTP/1.1\r\nHost: outside\r\nX-Sandbox-ID: a\r\n\
         X-Sandbox-Port: {port}\r\nConnection: close, x-mine\r\nX-Mine: 1\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n"
    );
    let answer = routed.exchange(&request).await;
    assert!(answer.starts_with("HTTP/1.1 307 ") && answer.contains("\r\nlocation: /x\r\n"), "{answer}");
    assert!(answer.contains("\r\nx-own: 1\r\n"), "{answer}");
    let head = heads.recv().await.unwrap();
    assert!(
        head.starts_with("PROPFIND //download/%2Fapp%2fx/../%2e%2e/y?q=%20+&r=//../ HTTP/1.1\r\n"),
        "{head}"
    );
    let lower = head.to_lowercase();
    for line in [
        format!("host: 10.89.0.7:{port}"),
        "x-forwarded-for: 127.0.0.1".into(),
        "x-forwarded-host: outside".into(),
        "x-forwarded-proto: http".into(),
        "x-sandbox-id: a".into(),
    ] {
        assert!(lower.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
    assert!(
        !lower.contains("x-mine") && !lower.contains("203.0.113.9") && !lower.contains("connection:"),
        "{head}"
    );
    let tunnel = routed
        .exchange("CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\nx-sandbox-id: a\r\nconnection: close\r\n\r\n")
        .await;
    assert!(tunnel.starts_with("HTTP/1.1 405 "), "{tunnel}");
}

#[tokio::test]
async fn an_ambiguous_length_never_becomes_two_requests() {
    let routed = routed(Access::Anyone).await;
    let (seen, mut requests) = mpsc::channel(4);
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            let head = head(&mut stream).await;
            let mut body = vec![0; 64];
            let count = if head.contains("chunked") { stream.read(&mut body).await.unwrap() } else { 0 };
            seen.send((head, String::from_utf8_lossy(&body[..count]).into_owned())).await.unwrap();
            send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            let mut more = Vec::new();
            stream.read_to_end(&mut more).await.unwrap();
            assert_eq!(more, b"", "nothing follows the one request");
        }
    })
    .await;
    let start = format!(
        "POST /x HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n"
    );
    let both = format!(
        "{start}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: r\r\n\r\n"
    );
    let answer = routed.exchange(&both).await;
    if answer.starts_with("HTTP/1.1 200 ") {
        let (head, body) = requests.recv().await.unwrap();
        assert!(!head.to_lowercase().contains("content-length") && body == "0\r\n\r\n", "{head}{body}");
        assert!(!answer[8..].contains("HTTP/1.1"), "one answer: {answer}");
    } else {
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    for wrong in [
        "content-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        "content-length: +1\r\n\r\nx",
        "transfer-encoding: gzip\r\n\r\nx",
        "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "content-length : 1\r\n\r\nx",
    ] {
        let answer = routed.exchange(&format!("{start}{wrong}")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{wrong:?}: {answer}");
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn a_forwarded_stream_needs_no_token() {
    let routed = routed(Access::Token(Token::new("0123456789abcdef").unwrap())).await;
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let _ = stream.read_u8().await;
    })
    .await;
    let (mut client, server) = tokio::io::duplex(4096);
    let router = routed.router.clone();
    let served = tokio::spawn(async move { router.serve_connection(server, Access::Authorized).await });
    let request = format!(
        "GET / HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n\r\n"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("ok"), "{text}");
    served.await.unwrap();
}

#[tokio::test]
async fn unrequested_upgrades_are_refused() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        let head = head(&mut stream).await.to_lowercase();
        if head.starts_with("get /refuse ") {
            return send(&mut stream, "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await;
        }
        if head.starts_with("get /echo ") {
            assert!(head.contains("\r\nupgrade: chat/1\r\n") && head.contains("\r\nconnection: upgrade\r\n"), "{head}");
            assert!(!head.contains("origin"), "{head}");
        }
        send(&mut stream, "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: chat/1\r\nx-own: 1\r\n\r\nhello").await;
        let mut buffer = [0; 64];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            let _ = stream.write_all(&buffer[..count]).await;
        }
    })
    .await;
    let unasked =
        "Backend attempted a WebSocket upgrade over HTTP. Connect using the WebSocket protocol instead.";
    let port = port.to_string();
    let headers = [("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str())];
    assert_eq!(routed.get("/", &headers).await, (502, detail(unasked)));
    let ask = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\n\
             connection: keep-alive, Upgrade\r\nupgrade: chat/1\r\norigin: http://o\r\n\r\n"
        )
    };
    let mut stream = TcpStream::connect(routed.address).await.unwrap();
    send(&mut stream, &ask("/refuse")).await;
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 403 "));
    let mut stream = TcpStream::connect(routed.address).await.unwrap();
    send(&mut stream, &ask("/echo")).await;
    let answer = head(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.contains("x-own: 1"), "{answer}");
    expect(&mut stream, "hello").await;
    send(&mut stream, "and back").await;
    expect(&mut stream, "and back").await;
    routed.shutdown.trigger();
    let mut rest = Vec::new();
    let _ = routed::within(stream.read_to_end(&mut rest)).await;
}

/// Node whose only Pod uses this machine's loopback.
struct Node;

impl Kubelet for Node {
    fn exec<'a>(&'a self, _: &'a PodId, _: ExecRequest) -> BoxFuture<'a, Result<Session, StreamError>> {
        async { Err(StreamError::BadRequest("this node only connects".into())) }.boxed()
    }

    fn attach<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        self.exec(pod, request)
    }

    fn connect<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        async move {
            if pod.uid != "here" {
                return Err(StreamError::NotFound("another life of it".into()));
            }
            let stream = TcpStream::connect(("127.0.0.1", port)).await;
            stream
                .map(|stream| Box::new(stream) as Box<dyn Duplex>)
                .map_err(|error| StreamError::Unavailable(error.to_string()))
        }
        .boxed()
    }

    fn logs<'a>(&'a self, _: &'a PodId, _: LogRequest) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        async { Err(StreamError::BadRequest("this node only connects".into())) }.boxed()
    }
}

#[tokio::test]
async fn pods_are_reached_through_namespace_or_address() {
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 200 OK\r\n\r\n").await;
    })
    .await;
    let pod = |uid: &str| PodId { namespace: "default".into(), name: "a".into(), uid: uid.into() };
    let backend = |uid: &str, ip: &str| Backend {
        sandbox: "s".into(),
        pod: pod(uid),
        ips: vec![ip.parse().unwrap()],
        idle_timeout: None,
    };
    let inside = Inside(std::sync::Arc::new(Node));
    let direct = Direct { allow_loopback: true };
    let dials: [(&dyn Dial, Backend); 2] =
        [(&inside, backend("here", "10.89.0.7")), (&direct, backend("x", "127.0.0.1"))];
    for (dial, backend) in dials {
        let mut stream = dial.dial(&backend, port).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "HTTP/1.1 200 OK\r\n\r\n");
        assert!(matches!(dial.dial(&backend, 1).await, Err(DialError::Retry(_))), "port 1 has no listener");
    }
    assert!(matches!(inside.dial(&backend("gone", "10.89.0.7"), port).await, Err(DialError::Gone(_))));
    for address in ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1"] {
        let refused = Direct::default().dial(&backend("x", address), port).await;
        assert!(matches!(refused, Err(DialError::Gone(_))), "a Pod's status that says {address}");
    }
}
