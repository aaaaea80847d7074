//! A request is sent once and has one response.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use hutch_router::{Access, Config};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::routed::{backend, head, quick, routed, send, with, within};

#[tokio::test]
async fn a_body_arrives_once_after_connect_retries() {
    const SIZE: usize = 1 << 20;
    let routed = routed(Access::Anyone).await;
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let (port, _) = backend(move |mut stream| {
        let counted = counted.clone();
        async move {
            let head = head(&mut stream).await;
            counted.fetch_add(1, Ordering::SeqCst);
            let mut body = vec![0; SIZE];
            stream.read_exact(&mut body).await.unwrap();
            let whole = body.iter().enumerate().all(|(place, byte)| *byte == place as u8);
            assert!(head.starts_with("PUT /x HTTP/1.1\r\n") && whole, "{head}");
            send(&mut stream, "HTTP/1.1 201 Created\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        }
    })
    .await;
    let body: Vec<u8> = (0..SIZE).map(|place| place as u8).collect();
    for (number, failing) in [0, 1, 3].into_iter().enumerate() {
        routed.cluster.failing.store(failing, Ordering::SeqCst);
        let mut client = TcpStream::connect(routed.address).await.unwrap();
        let lines =
            format!("host: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\ncontent-length: {SIZE}\r\n");
        send(&mut client, &format!("PUT /x HTTP/1.1\r\n{lines}\r\n")).await;
        client.write_all(&body).await.unwrap();
        assert!(head(&mut client).await.starts_with("HTTP/1.1 201 "), "after {failing} tries that failed");
        assert_eq!(requests.load(Ordering::SeqCst), number + 1);
    }
    routed.cluster.failing.store(4, Ordering::SeqCst);
    let lines = format!("host: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n");
    let answer = routed.exchange(&format!("PUT /x HTTP/1.1\r\n{lines}content-length: 1\r\n\r\nx")).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(requests.load(Ordering::SeqCst), 3, "nothing of it was sent");
}

/// Parses the responses to requests with these methods: status and body.
fn answers(mut text: &str, methods: &[&str]) -> Vec<(u16, String)> {
    let mut answers = Vec::new();
    for method in methods {
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { break };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.filter(|_| *method != "HEAD").map_or(0, |length| length.parse().unwrap());
        answers.push((head[9..12].parse().unwrap(), rest[..length].to_owned()));
        text = &rest[length..];
    }
    assert_eq!(text, "", "nothing but the answers");
    answers
}

#[tokio::test]
async fn pipelined_requests_have_one_response_each_in_order() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        loop {
            let head = head(&mut stream).await;
            let answer = match head.split(' ').nth(1) {
                Some("/two") => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",
                Some("/early") => "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
                Some("/garbage") => "SSH-2.0-OpenSSH_9.9\r\n",
                Some("/none") => "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone",
                Some("/empty") => "HTTP/1.1 204 No Content\r\n\r\n",
                Some("/") => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
                _ => return,
            };
            // A response to HEAD has no body.
            let end = answer.find("\r\n\r\n").map_or(answer.len(), |end| end + 4);
            send(&mut stream, if head.starts_with("HEAD") { &answer[..end] } else { answer }).await;
            if head.contains(" /garbage ") {
                return;
            }
        }
    })
    .await;
    let asked = [
        ("GET", "/", port, 200, "ok"),
        ("GET", "/two", port, 200, "ok"),
        ("GET", "/gone", port, 502, ""),
        ("HEAD", "/none", port, 404, ""),
        ("GET", "/early", port, 200, "ok"),
        ("GET", "/garbage", port, 502, ""),
        ("GET", "/", 0, 400, ""),
        ("GET", "/empty", port, 204, ""),
        ("GET", "/none", port, 404, "none"),
        ("GET", "/", port, 200, "ok"),
    ];
    let last = asked.len() - 1;
    let mut requests = String::new();
    for (number, (method, path, port, ..)) in asked.iter().enumerate() {
        let close = if number == last { "connection: close\r\n" } else { "" };
        requests += &format!(
            "{method} {path} HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\n{close}\r\n"
        );
    }
    let text = routed.exchange(&requests).await;
    let found = answers(&text, &asked.map(|(method, ..)| method));
    assert_eq!(found.len(), asked.len(), "{text}");
    for ((status, body), (method, path, _, wanted, said)) in found.iter().zip(asked) {
        assert!(
            *status == wanted && (*status == 400 || *status == 502 || body == said),
            "{method} {path}: {status} {body}"
        );
    }
}

#[tokio::test]
async fn the_header_timeout_limit_bounds_the_clients_timeout() {
    let short = Duration::from_millis(300);
    let config = Config { header_timeout: short, header_timeout_limit: short, ..quick() };
    let routed = with(config, Access::Anyone, None, None).await;
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        let _ = stream.read_u8().await;
    })
    .await;
    for more in ["", "x-sandbox-timeout: 3600\r\n", "x-sandbox-timeout: 0.1\r\n"] {
        let lines =
            format!("host: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: close\r\n{more}");
        let answer = routed.exchange(&format!("GET / HTTP/1.1\r\n{lines}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 504 "), "{more}: {answer}");
    }
}

#[tokio::test]
async fn a_wrong_http2_length_never_becomes_two_requests() {
    let routed = routed(Access::Anyone).await;
    let (seen, mut bodies) = mpsc::unbounded_channel();
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            let mut all = Vec::new();
            let _ = tokio::time::timeout(Duration::from_secs(1), stream.read_to_end(&mut all)).await;
            seen.send(String::from_utf8_lossy(&all).into_owned()).unwrap();
        }
    })
    .await;
    let smuggled = "xGET /smuggled HTTP/1.1\r\nhost: r\r\n\r\n";
    for length in ["1", "0", "4000"] {
        let stream = TcpStream::connect(routed.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post("http://r/x")
            .header("x-sandbox-id", "a")
            .header("x-sandbox-port", port.to_string())
            .header("content-length", length)
            // As a stream, so that the test's client does not detect the wrong length.
            .body(Body::from_stream(futures::stream::iter([Ok::<_, std::io::Error>(smuggled)])))
            .unwrap();
        let answer = within(sender.send_request(request)).await;
        assert!(answer.as_ref().map_or(true, |answer| !answer.status().is_success()), "{length}: {answer:?}");
    }
    let mut arrived = Vec::new();
    while let Ok(Some(text)) = tokio::time::timeout(Duration::from_secs(2), bodies.recv()).await {
        arrived.push(text);
    }
    for text in arrived {
        // Bytes within the declared length are the body; none may follow.
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let declared = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let most = declared.map_or(0, |length| length.parse().unwrap());
        assert!(body.len() <= most, "{text}");
    }
}
