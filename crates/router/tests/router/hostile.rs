//! Clients and Sandboxes that violate the protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hutch_router::{Access, Backend, Claims, Config, TokenKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::routed::{backend, head, quick, routed, send, with, within};

/// Sandbox that reports every request head and responds `ok`.
async fn witness() -> (u16, mpsc::UnboundedReceiver<String>) {
    let (seen, heads) = mpsc::unbounded_channel();
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            loop {
                let head = head(&mut stream).await;
                if head.is_empty() {
                    return;
                }
                seen.send(head).unwrap();
                send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            }
        }
    })
    .await;
    (port, heads)
}

/// Sandbox that responds to each request with these bytes and closes.
async fn answering(bytes: impl Into<Vec<u8>>) -> u16 {
    let bytes: Arc<Vec<u8>> = Arc::new(bytes.into());
    backend(move |mut stream| {
        let bytes = bytes.clone();
        async move {
            head(&mut stream).await;
            let _ = stream.write_all(&bytes).await;
        }
    })
    .await
    .0
}

#[tokio::test]
async fn ambiguous_requests_are_not_forwarded() {
    let routed = routed(Access::Anyone).await;
    let (port, mut heads) = witness().await;
    let own = format!("x-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n");
    for request in [
        // A header line with a continuation line.
        format!("GET / HTTP/1.1\r\nhost: r\r\n{own}x-folded: a\r\n b\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: r\r\n{own}x-name : a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: r\r\n{own}x-nul: a\0b\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: r\r\n{own}no colon\r\n\r\n"),
        format!("GET /a\0b HTTP/1.1\r\nhost: r\r\n{own}\r\n"),
        format!("GET /a b HTTP/1.1\r\nhost: r\r\n{own}\r\n"),
        format!("GET / HTTP/1.1\r\nhost: r\r\n{own}content-length: 1\r\ncontent-length: 2\r\n\r\nxx"),
        format!("GET / HTTP/1.1\r\nhost: r\r\n{own}content-length: 1, 2\r\n\r\nxx"),
        format!("GET / HTTP/1.1\r\nhost: r\r\n{own}transfer-encoding: chunked, gzip\r\n\r\n"),
        format!("GET / HTTP/1.0\r\nhost: r\r\n{own}transfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("GET / HTTP/3.0\r\nhost: r\r\n{own}\r\n"),
        format!("\x16\x03\x01 / HTTP/1.1\r\n{own}\r\n"),
    ] {
        let answer = routed.exchange(&request).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.0 400 "),
            "{request:?}: {answer}"
        );
    }
    assert!(heads.try_recv().is_err(), "nothing of it arrived");
}

#[tokio::test]
async fn repeated_or_malformed_routing_headers_are_refused() {
    let routed = routed(Access::Anyone).await;
    let (port, mut heads) = witness().await;
    let port = port.to_string();
    let (plus, zero) = (format!("+{port}"), format!("0{port}"));
    let (id, good) = (("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str()));
    for headers in [
        &[id, id, good][..],
        &[id, ("X-Sandbox-ID", "b"), good],
        &[id, good, good],
        &[id, ("x-sandbox-port", &plus)],
        &[id, ("x-sandbox-port", &zero)],
        &[id, good, ("x-sandbox-namespace", "default"), ("x-sandbox-namespace", "other")],
        &[id, good, ("x-sandbox-namespace", "../default")],
        &[id, good, ("x-sandbox-pod-ip", "10.89.7")],
        &[id, good, ("x-sandbox-pod-ip", "0x0a590007")],
        &[id, good, ("x-sandbox-pod-ip", "::ffff:10.89.0.7")],
        &[("x-sandbox-id", "a/../b"), good],
    ] {
        assert_eq!(routed.get("/", headers).await.0, 400, "{headers:?}");
    }
    assert!(heads.try_recv().is_err());
    // `Connection` cannot remove a routing header before it is parsed.
    let request = format!(
        "GET / HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close, x-sandbox-id\r\n\r\n"
    );
    assert!(routed.exchange(&request).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn paths_are_forwarded_byte_for_byte() {
    let routed = routed(Access::Anyone).await;
    let (port, mut heads) = witness().await;
    let port = port.to_string();
    let headers = [("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str())];
    for path in [
        "//",
        "//etc/passwd",
        "/%2F",
        "/a/../b",
        "/..",
        "/%2e%2e/%2E",
        "/a%00b",
        "/a%0d%0ab",
        "/?a=//../%2F",
        "/;x",
        "/%zz",
    ] {
        assert_eq!(routed.get(path, &headers).await.0, 200, "{path}");
        let head = heads.recv().await.unwrap();
        assert!(head.starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{path}: {head}");
    }
    // In the absolute form the router replaces the host; the path stays.
    assert_eq!(routed.get("http://169.254.169.254/latest//x", &headers).await.0, 200);
    let head = heads.recv().await.unwrap();
    assert!(
        head.starts_with("GET /latest//x HTTP/1.1\r\n")
            && head.contains(&format!("host: 10.89.0.7:{port}\r\n")),
        "{head}"
    );
    let star = format!(
        "OPTIONS * HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n\r\n"
    );
    assert!(routed.exchange(&star).await.starts_with("HTTP/1.1 405 "));
}

#[tokio::test]
async fn heads_are_bounded_on_both_sides() {
    let routed = routed(Access::Anyone).await;
    let (port, mut heads) = witness().await;
    let port_text = port.to_string();
    let long = "x".repeat(200 << 10);
    let headers = [("x-sandbox-id", "a"), ("x-sandbox-port", port_text.as_str()), ("x-long", &long)];
    let mut stream = TcpStream::connect(routed.address).await.unwrap();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let _ = stream.write_all(format!("GET / HTTP/1.1\r\n{lines}\r\n").as_bytes()).await;
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await;
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let many: String = (0..500).map(|number| format!("x-{number}: 1\r\n")).collect();
    let answer = routed
        .exchange(&format!("GET / HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\n{many}\r\n"))
        .await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(heads.try_recv().is_err());
    let bomb = answering(format!("HTTP/1.1 200 OK\r\nx-long: {long}\r\n\r\n")).await.to_string();
    assert_eq!(routed.get("/", &[("x-sandbox-id", "a"), ("x-sandbox-port", &bomb)]).await.0, 502);
}

#[tokio::test]
async fn garbage_responses_are_a_bad_gateway() {
    let routed = routed(Access::Anyone).await;
    let answers: [&[u8]; 12] = [
        b"",
        b"\0\0\0\0",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 999999 Much\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-folded: a\r\n b\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-nul: a\0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"<html>",
    ];
    for answer in answers {
        let port = answering(answer).await.to_string();
        let (status, body) = routed.get("/", &[("x-sandbox-id", "a"), ("x-sandbox-port", &port)]).await;
        assert_eq!(status, 502, "{}: {body}", String::from_utf8_lossy(answer));
    }
}

#[tokio::test]
async fn bytes_after_a_response_are_discarded() {
    let routed = routed(Access::Anyone).await;
    // An unrequested second response must not reach the next request.
    let (port, connections) = backend(|mut stream| async move {
        while !head(&mut stream).await.is_empty() {
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            send(&mut stream, &format!("{answer}HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")).await;
        }
    })
    .await;
    let port = port.to_string();
    for _ in 0..10 {
        assert_eq!(
            routed.get("/", &[("x-sandbox-id", "a"), ("x-sandbox-port", &port)]).await,
            (200, "ok".into())
        );
    }
    assert_eq!(connections.load(Ordering::SeqCst), 10, "such a connection is not used again");
}

#[tokio::test]
async fn endless_1xx_heads_are_cut_off() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        let head = head(&mut stream).await;
        if head.starts_with("GET /few ") {
            send(&mut stream, &"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".repeat(3)).await;
            return send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
        while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {}
    })
    .await;
    let port = port.to_string();
    let headers = [("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str())];
    assert_eq!(routed.get("/few", &headers).await, (200, "ok".into()));
    assert_eq!(within(routed.get("/endless", &headers)).await.0, 502);
}

#[tokio::test]
async fn a_slow_response_head_times_out() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 200 OK\r\n").await;
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let port = port.to_string();
    let headers = [("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str()), ("x-sandbox-timeout", "0.3")];
    assert_eq!(within(routed.get("/", &headers)).await.0, 504);
}

#[tokio::test]
async fn nothing_is_decompressed() {
    let routed = routed(Access::Anyone).await;
    // A gzip stream that would expand is forwarded like any bytes.
    let body = [b"\x1f\x8b\x08\0\0\0\0\0\0\x03".as_slice(), &[0xff; 64]].concat();
    let mut answer =
        format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", body.len())
            .into_bytes();
    answer.extend(&body);
    let port = answering(answer).await;
    let mut stream = TcpStream::connect(routed.address).await.unwrap();
    send(
        &mut stream,
        &format!("GET / HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n\r\n"),
    )
    .await;
    let mut all = Vec::new();
    within(stream.read_to_end(&mut all)).await.unwrap();
    assert!(all.ends_with(&body) && String::from_utf8_lossy(&all).contains("content-encoding: gzip"));
}

#[tokio::test]
async fn redirects_are_passed_to_the_client() {
    let routed = routed(Access::Anyone).await;
    let location = format!("http://{}/again", routed.address);
    let port =
        answering(format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")).await;
    let answer = routed
        .exchange(&format!(
            "GET / HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n\r\n"
        ))
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 302 ") && answer.contains(&format!("location: {location}\r\n")),
        "{answer}"
    );
    assert_eq!(routed.cluster.dialled.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_half_closed_client_counts_as_disconnected() {
    let routed = routed(Access::Anyone).await;
    let (seen, mut ends) = mpsc::channel(4);
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            head(&mut stream).await;
            seen.send("there").await.unwrap();
            let _ = stream.read_u8().await;
            seen.send("gone").await.unwrap();
        }
    })
    .await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &format!("GET / HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\n\r\n")).await;
    assert_eq!(within(ends.recv()).await, Some("there"));
    client.shutdown().await.unwrap();
    assert_eq!(within(ends.recv()).await, Some("gone"), "its connection to the sandbox is not kept");
}

#[tokio::test]
async fn a_half_closed_upgrade_continues_in_the_other_direction() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
            .await;
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        send(&mut stream, &format!("had {all}")).await;
    })
    .await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    );
    send(&mut client, &request).await;
    assert!(head(&mut client).await.starts_with("HTTP/1.1 101 "));
    send(&mut client, "all of it").await;
    client.shutdown().await.unwrap();
    let mut rest = String::new();
    within(client.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "had all of it");
}

#[tokio::test]
async fn bodies_are_bounded_by_the_configured_limit() {
    let bounded = Config { body_limit: Some(4), ..quick() };
    let routed = with(bounded, Access::Anyone, None, None).await;
    let read = Arc::new(AtomicUsize::new(0));
    let counted = read.clone();
    let (port, _) = backend(move |mut stream| {
        let counted = counted.clone();
        async move {
            head(&mut stream).await;
            let mut rest = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut rest).await {
                counted.fetch_add(count, Ordering::SeqCst);
            }
        }
    })
    .await;
    let start =
        format!("POST / HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n");
    let declared = routed.exchange(&format!("{start}content-length: 5\r\n\r\nxxxxx")).await;
    assert!(
        declared.starts_with("HTTP/1.1 413 ")
            && declared.ends_with(r#"{"detail":"Request body too large."}"#),
        "{declared}"
    );
    assert_eq!(routed.cluster.dialled.load(Ordering::SeqCst), 0);
    let chunked =
        routed.exchange(&format!("{start}transfer-encoding: chunked\r\n\r\n5\r\nxxxxx\r\n0\r\n\r\n")).await;
    assert!(chunked.starts_with("HTTP/1.1 413 "), "{chunked}");
    assert_eq!(read.load(Ordering::SeqCst), 0, "the sandbox was not given the end of it");
}

#[tokio::test]
async fn unauthorized_clients_cannot_probe_for_sandboxes() {
    let token = hutch_router::Token::new("correct-horse-battery").unwrap();
    let routed = routed(Access::Token(token)).await;
    let mut answers = Vec::new();
    for headers in [
        &[][..],
        &[("x-sandbox-id", "a")],
        &[("x-sandbox-id", "absent")],
        &[("x-sandbox-id", "A.b")],
        &[("x-sandbox-id", "a"), ("x-sandbox-port", "0")],
        &[("x-sandbox-id", "a"), ("x-sandbox-namespace", "other"), ("accept", "text/html")],
    ] {
        answers.push(routed.get("/", headers).await);
    }
    let first = (401, r#"{"detail":"unauthenticated"}"#.to_owned());
    assert!(answers.iter().all(|answer| *answer == first), "{answers:?}");
    let right = ("authorization", "Bearer correct-horse-battery");
    let (status, page) =
        routed.get("/", &[("x-sandbox-id", "absent"), ("accept", "text/html,*/*"), right]).await;
    assert!(status == 502 && page.starts_with("<!doctype html>") && page.contains("absent"), "{page}");
}

#[tokio::test]
async fn other_tenants_names_are_forbidden_alike() {
    let key = TokenKey::new(&[b'k'; 32]).unwrap();
    let claims = Claims { ns: "default".into(), name: "a".into(), exp: u64::MAX, uid: None };
    let right = format!("Bearer {}", key.mint(&claims).unwrap());
    let routed = routed(Access::Scoped(Arc::new(key))).await;
    let (port, mut heads) = witness().await;
    let port = port.to_string();
    let base = [("authorization", right.as_str()), ("x-sandbox-port", port.as_str())];
    for other in [
        // An existing Sandbox, an absent one, one in another namespace, and each with the headers that a
        // client may know.
        &[("x-sandbox-id", "b")][..],
        &[("x-sandbox-id", "absent")],
        &[("x-sandbox-id", "a"), ("x-sandbox-namespace", "other")],
        &[("x-sandbox-id", "b"), ("x-sandbox-uid", "uid-of-a")],
        &[("x-sandbox-id", "b"), ("x-sandbox-pod-ip", "10.89.0.7")],
    ] {
        let answer = routed.get("/", &[&base[..], other].concat()).await;
        assert_eq!(answer, (403, r#"{"detail":"forbidden"}"#.into()), "{other:?}");
    }
    // A token for one's own Sandbox does not admit requests to another.
    for own in [("x-sandbox-uid", "uid-of-b"), ("x-sandbox-pod-ip", "10.89.0.66")] {
        let (status, _) = routed.get("/", &[&base[..], &[("x-sandbox-id", "a"), own]].concat()).await;
        assert!(status == 400 || status == 200, "{own:?}: {status}");
        if status == 200 {
            assert!(
                heads.recv().await.unwrap().contains("host: 10.89.0.7:"),
                "its own Pod, whatever was written"
            );
        }
    }
    assert!(heads.try_recv().is_err());
}

#[tokio::test]
async fn a_token_for_a_recreated_sandbox_is_refused() {
    let key = TokenKey::new(&[b'k'; 32]).unwrap();
    let claims =
        Claims { ns: "default".into(), name: "a".into(), exp: u64::MAX, uid: Some("uid-of-a".into()) };
    let right = format!("Bearer {}", key.mint(&claims).unwrap());
    let routed = routed(Access::Scoped(Arc::new(key))).await;
    let (port, _heads) = witness().await;
    let port = port.to_string();
    let headers =
        [("authorization", right.as_str()), ("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str())];
    assert_eq!(routed.get("/", &headers).await.0, 200);
    let anew = routed.cluster.sandboxes.lock().unwrap()["a"].as_ref().clone();
    let anew = Arc::new(Backend { sandbox: "uid-of-a-later-a".into(), ..anew });
    routed.cluster.sandboxes.lock().unwrap().insert("a".into(), anew);
    // The pooled connection to the earlier Sandbox is not used either.
    assert_eq!(routed.get("/", &headers).await, (403, r#"{"detail":"forbidden"}"#.into()));
}

#[tokio::test]
async fn compressed_requests_are_forwarded_unchanged() {
    let routed = routed(Access::Anyone).await;
    let bomb = [b"\x1f\x8b\x08\0\0\0\0\0\0\x03".as_slice(), &[0xff; 64]].concat();
    let (seen, mut bodies) = mpsc::channel(1);
    let length = bomb.len();
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            assert!(head(&mut stream).await.contains("content-encoding: gzip\r\n"));
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.unwrap();
            seen.send(body).await.unwrap();
            send(&mut stream, "HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    })
    .await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    let start = format!("POST / HTTP/1.1\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\n");
    send(&mut client, &format!("{start}content-encoding: gzip\r\ncontent-length: {length}\r\n\r\n")).await;
    client.write_all(&bomb).await.unwrap();
    assert_eq!(within(bodies.recv()).await.unwrap(), bomb);
    assert!(head(&mut client).await.starts_with("HTTP/1.1 204 "));
}
