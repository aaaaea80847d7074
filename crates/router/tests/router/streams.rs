//! Streaming bodies, WebSockets, ends from either side, and numbers of sent requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};
use hutch_router::Access;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};

use crate::routed::{backend, expect, head, routed, send, within};

fn request(method: &str, port: u16, more: &str) -> String {
    format!("{method} /x HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\n{more}\r\n")
}

#[tokio::test]
async fn responses_are_streamed_with_trailers() {
    let routed = routed(Access::Anyone).await;
    let (go, gone) = mpsc::channel::<()>(1);
    let gone = Arc::new(Mutex::new(gone));
    let (port, _) = backend(move |mut stream| {
        let gone = gone.clone();
        async move {
            head(&mut stream).await;
            send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntrailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n").await;
            send(&mut stream, "9\r\ndata: 1\n\n\r\n").await;
            gone.lock().await.recv().await;
            send(&mut stream, "9\r\ndata: 2\n\n\r\n0\r\nx-end: done\r\n\r\n").await;
        }
    })
    .await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("GET", port, "te: trailers\r\n")).await;
    let answer = head(&mut client).await;
    assert!(answer.contains("\r\ncontent-type: text/event-stream\r\n"), "{answer}");
    expect(&mut client, "9\r\ndata: 1\n\n\r\n").await;
    go.send(()).await.unwrap();
    expect(&mut client, "9\r\ndata: 2\n\n\r\n0\r\nx-end: done\r\n\r\n").await;
}

#[tokio::test]
async fn requests_are_streamed() {
    let routed = routed(Access::Anyone).await;
    let (seen, mut pieces) = mpsc::channel(8);
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            head(&mut stream).await;
            for length in [6, 6, 5] {
                let mut piece = vec![0; length];
                stream.read_exact(&mut piece).await.unwrap();
                seen.send(String::from_utf8(piece).unwrap()).await.unwrap();
            }
            send(&mut stream, "HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    })
    .await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("PUT", port, "transfer-encoding: chunked\r\n")).await;
    send(&mut client, "1\r\na\r\n").await;
    assert_eq!(within(pieces.recv()).await.unwrap(), "1\r\na\r\n");
    send(&mut client, "1\r\nb\r\n").await;
    assert_eq!(within(pieces.recv()).await.unwrap(), "1\r\nb\r\n");
    send(&mut client, "0\r\n\r\n").await;
    assert_eq!(within(pieces.recv()).await.unwrap(), "0\r\n\r\n");
    assert!(head(&mut client).await.starts_with("HTTP/1.1 204 "));
}

#[tokio::test]
async fn a_websocket_goes_through() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|stream| async move {
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        while let Some(Ok(message)) = socket.next().await {
            if message.is_text() || message.is_binary() {
                socket.send(message).await.unwrap();
            }
        }
    })
    .await;
    let mut request = format!("ws://{}/socket?x=1", routed.address).into_client_request().unwrap();
    request.headers_mut().insert("x-sandbox-id", "a".parse().unwrap());
    request.headers_mut().insert("x-sandbox-port", port.to_string().parse().unwrap());
    let (mut socket, answer) = tokio_tungstenite::connect_async(request).await.unwrap();
    assert_eq!(answer.status(), 101);
    let large = Message::binary(vec![7; 1 << 20]);
    for message in [Message::text("hello"), large, Message::text("")] {
        socket.send(message.clone()).await.unwrap();
        assert_eq!(within(socket.next()).await.unwrap().unwrap(), message);
    }
    socket.close(None).await.unwrap();
    assert!(within(socket.next()).await.unwrap().unwrap().is_close());
}

#[tokio::test]
async fn large_bodies_are_forwarded_in_both_directions() {
    const SIZE: usize = 48 << 20;
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        let head = head(&mut stream).await;
        assert!(head.contains(&format!("content-length: {SIZE}\r\n")), "{head}");
        send(&mut stream, &format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\nconnection: close\r\n\r\n"))
            .await;
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut (&mut reader).take(SIZE as u64), &mut writer).await.unwrap();
    })
    .await;
    let client = TcpStream::connect(routed.address).await.unwrap();
    let (mut reader, mut writer) = client.into_split();
    let head = request("POST", port, &format!("content-length: {SIZE}\r\nconnection: close\r\n"));
    let writing = tokio::spawn(async move {
        writer.write_all(head.as_bytes()).await.unwrap();
        for number in 0..SIZE / 4096 {
            writer.write_all(&[number as u8; 4096]).await.unwrap();
        }
        writer
    });
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(60), reader.read_to_end(&mut answer)).await.unwrap().unwrap();
    writing.await.unwrap();
    let body = &answer[answer.len() - SIZE..];
    assert!(
        body.chunks(4096).enumerate().all(|(number, piece)| piece.iter().all(|byte| *byte == number as u8))
    );
}

#[tokio::test]
async fn a_client_disconnect_closes_the_sandbox_connection() {
    let routed = routed(Access::Anyone).await;
    let (seen, mut ends) = mpsc::channel(4);
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            let head = head(&mut stream).await;
            if head.starts_with("GET") {
                send(&mut stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n").await;
            }
            seen.send("there").await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            seen.send("gone").await.unwrap();
        }
    })
    .await;
    // Once while it waits for a response, once in the middle of one.
    for method in ["POST", "GET"] {
        let mut client = TcpStream::connect(routed.address).await.unwrap();
        send(&mut client, &request(method, port, "")).await;
        assert_eq!(within(ends.recv()).await, Some("there"));
        drop(client);
        assert_eq!(within(ends.recv()).await, Some("gone"), "{method}");
    }
}

#[tokio::test]
async fn a_request_is_sent_at_most_once() {
    let routed = routed(Access::Anyone).await;
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    // The server reads the request and closes.
    let (port, connections) = backend(move |mut stream| {
        let counted = counted.clone();
        async move {
            head(&mut stream).await;
            counted.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let port = port.to_string();
    let headers = [("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str())];
    let (status, body) = routed.get("/", &headers).await;
    assert_eq!((status, body.contains("Could not connect to the backend sandbox: a")), (502, true));
    assert_eq!((requests.load(Ordering::SeqCst), connections.load(Ordering::SeqCst)), (1, 1));
    // Connecting is retried; afterwards the request is sent once.
    routed.cluster.failing.store(3, Ordering::SeqCst);
    assert_eq!(routed.get("/", &headers).await.0, 502);
    assert_eq!((requests.load(Ordering::SeqCst), routed.cluster.failing.load(Ordering::SeqCst)), (2, 0));
    routed.cluster.failing.store(4, Ordering::SeqCst);
    assert_eq!(routed.get("/", &headers).await.0, 502);
    assert_eq!(requests.load(Ordering::SeqCst), 2, "after four tries nothing was sent");
}

#[tokio::test]
async fn live_connections_are_reused() {
    let routed = routed(Access::Anyone).await;
    let (port, connections) = backend(|mut stream| async move {
        // Three responses, then it closes while idle.
        for _ in 0..3 {
            if head(&mut stream).await.is_empty() {
                return;
            }
            send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    })
    .await;
    let port = port.to_string();
    let headers = [("x-sandbox-id", "a"), ("x-sandbox-port", port.as_str())];
    for number in 1..=6_usize {
        assert_eq!(routed.get("/", &headers).await, (200, "ok".into()), "{number}");
        // The connection is pooled, or detected as closed, shortly after the response.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(connections.load(Ordering::SeqCst), number.div_ceil(3), "{number}");
    }
    // A new Pod has a new connection.
    routed.cluster.add("a", &["10.89.0.10"]);
    assert_eq!(routed.get("/", &headers).await, (200, "ok".into()));
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn the_clients_timeout_bounds_only_the_response_head() {
    let routed = routed(Access::Anyone).await;
    let (port, _) = backend(|mut stream| async move {
        let head = head(&mut stream).await;
        if head.contains("content-length: 4") {
            stream.read_exact(&mut [0; 4]).await.unwrap();
        } else if head.starts_with("POST") {
            // Silent until the other side disconnects.
            let _ = stream.read_u8().await;
            return;
        }
        send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n").await;
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            send(&mut stream, "x").await;
        }
    })
    .await;
    let begun = Instant::now();
    let limit = "x-sandbox-timeout: 0.3\r\nconnection: close\r\n";
    let silent = routed.exchange(&request("POST", port, limit)).await;
    assert!(silent.starts_with("HTTP/1.1 504 "), "{silent}");
    assert!(silent.ends_with(r#"{"detail":"Timed out waiting for the backend sandbox: a"}"#), "{silent}");
    assert!((0.3..5.0).contains(&begun.elapsed().as_secs_f64()));
    // A body that takes longer than the limit is not cut off.
    let slow = routed.exchange(&request("GET", port, limit)).await;
    assert!(slow.starts_with("HTTP/1.1 200 ") && slow.ends_with("\r\n\r\nxxxx"), "{slow}");
    // Neither is a request whose body takes longer, while it makes progress.
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("PUT", port, &format!("content-length: 4\r\n{limit}"))).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        send(&mut client, "x").await;
    }
    assert!(head(&mut client).await.starts_with("HTTP/1.1 200 "));
}
