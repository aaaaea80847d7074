//! Timeouts of slow clients and Sandboxes.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use hutch_router::{Access, ClientCertificates, Config, Limits, Tls, TlsFiles, Token};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::certificates::Authority;
use crate::routed::{Routed, backend, expect, head, quick, send, with, within};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(3600);
const PATIENT: Limits = Limits { head: LONG, idle: LONG, stall: LONG, body: LONG, body_least: 1 };

async fn limited(limits: Limits) -> Routed {
    with(Config { limits, ..quick() }, Access::Anyone, None, None).await
}

fn request(method: &str, port: u16, more: &str) -> String {
    format!("{method} /x HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\n{more}\r\n")
}

/// Sandbox that responds with that head, and neither reads nor writes more.
async fn deaf(answer: &'static str) -> u16 {
    let (port, _) = backend(move |mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, answer).await;
        std::future::pending::<()>().await;
    })
    .await;
    port
}

/// Sandbox whose response has no end, and that reports when it is no longer read.
async fn endless() -> (u16, mpsc::Receiver<()>) {
    let (told, ends) = mpsc::channel(4);
    let (port, _) = backend(move |mut stream| {
        let told = told.clone();
        async move {
            head(&mut stream).await;
            send(&mut stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
            while stream.write_all(&[b'x'; 16 << 10]).await.is_ok() {}
            told.send(()).await.unwrap();
        }
    })
    .await;
    (port, ends)
}

#[tokio::test]
async fn a_slow_request_head_times_out() {
    let routed = limited(Limits { head: SHORT, ..PATIENT }).await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, "GET / HTTP/1.1\r\nhost: ").await;
    within(async { while client.write_all(b"r").await.is_ok() && !ended(&mut client).await {} }).await;
    assert_eq!(routed.cluster.dialled.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// Returns true if the other side has closed; waits briefly.
async fn ended(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_millis(20), stream.read_u8()).await;
    matches!(read, Ok(Err(_)))
}

#[tokio::test]
async fn a_silent_client_times_out() {
    let routed = limited(Limits { idle: SHORT, ..PATIENT }).await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    assert_eq!(within(client.read(&mut [0; 1])).await.unwrap(), 0);
}

#[tokio::test]
async fn a_missing_tls_handshake_times_out() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.write(folder.path(), "localhost");
    let tls = Tls::open(TlsFiles {
        certificate: folder.path().join("tls.crt"),
        key: folder.path().join("tls.key"),
        client_authority: None,
        client: ClientCertificates::Off,
    });
    let config = Config { limits: Limits { head: SHORT, ..PATIENT }, ..quick() };
    let routed = with(config, Access::Anyone, Some(tls.unwrap()), None).await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    client.write_all(b"\x16\x03\x01").await.unwrap();
    assert_eq!(within(client.read(&mut [0; 1])).await.unwrap(), 0);
}

#[tokio::test]
async fn a_slow_request_body_times_out() {
    let routed = limited(Limits { body: SHORT, body_least: 1000, ..PATIENT }).await;
    let (seen, mut ends) = mpsc::channel(1);
    let (port, _) = backend(move |mut stream| {
        let seen = seen.clone();
        async move {
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
            seen.send(()).await.unwrap();
        }
    })
    .await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("POST", port, "content-length: 1000000\r\n")).await;
    let (mut reader, mut writer) = client.split();
    let trickle = async {
        while writer.write_all(b"x").await.is_ok() {
            tokio::time::sleep(SHORT / 10).await;
        }
    };
    let answer = async {
        let mut answer = Vec::new();
        let _ = reader.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    };
    let answer = within(async {
        tokio::select! {
            answer = answer => answer,
            () = trickle => unreachable!("the answer comes first"),
        }
    });
    let answer = answer.await;
    assert!(
        answer.starts_with("HTTP/1.1 408 ") && answer.ends_with(r#"{"detail":"Request body too slow."}"#),
        "{answer}"
    );
    assert_eq!(within(ends.recv()).await, Some(()), "its connection to the sandbox is not kept");
}

#[tokio::test]
async fn a_refused_client_cannot_continue_to_send() {
    let token = Token::new("correct-horse-battery").unwrap();
    let routed = with(Config { limits: PATIENT, ..quick() }, Access::Token(token), None, None).await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("POST", 1, "content-length: 1000000\r\n")).await;
    assert!(head(&mut client).await.starts_with("HTTP/1.1 401 "));
    within(async { while client.write_all(b"x").await.is_ok() && !ended(&mut client).await {} }).await;
}

#[tokio::test]
async fn a_sandbox_that_reads_no_body_times_out() {
    let routed = limited(Limits { stall: SHORT, ..PATIENT }).await;
    let port = deaf("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n").await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("POST", port, &format!("content-length: {}\r\n", 1_u64 << 40))).await;
    within(async { while client.write_all(&[0; 64 << 10]).await.is_ok() {} }).await;
    // Before the response has begun, the client receives an error.
    let port = deaf("").await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("POST", port, &format!("content-length: {}\r\n", 1_u64 << 40))).await;
    let (mut reader, mut writer) = client.split();
    let sending = async {
        while writer.write_all(&[0; 64 << 10]).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    let mut answer = [0; 13];
    let read = within(async {
        tokio::select! {
            read = reader.read_exact(&mut answer) => read,
            () = sending => unreachable!("the answer comes first"),
        }
    });
    read.await.unwrap();
    assert_eq!(answer, *b"HTTP/1.1 504 ");
}

#[tokio::test]
async fn a_client_that_reads_no_response_times_out() {
    let routed = limited(Limits { stall: SHORT, ..PATIENT }).await;
    let (port, mut ends) = endless().await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("GET", port, "")).await;
    within(ends.recv()).await.unwrap();
    // On HTTP/2 the connection continues; only this response stalls.
    let stream = TcpStream::connect(routed.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let get = Request::get(format!("http://{}/x", routed.address))
        .header("x-sandbox-id", "a")
        .header("x-sandbox-port", port.to_string());
    let answer = within(sender.send_request(get.body(Body::empty()).unwrap())).await.unwrap();
    within(ends.recv()).await.unwrap();
    let _ = within(connection).await.unwrap();
    drop(answer);
}

#[tokio::test]
async fn silence_does_not_time_out() {
    let limits = Limits { head: SHORT, idle: SHORT, stall: SHORT, body: SHORT, body_least: 1000 };
    let routed = limited(limits).await;
    let silence = SHORT * 4;
    let (port, _) = backend(move |mut stream| async move {
        let head = head(&mut stream).await;
        if head.contains("upgrade: x") {
            send(
                &mut stream,
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
            )
            .await;
        } else if head.contains("transfer-encoding: chunked") {
            expect(&mut stream, "1\r\na\r\n").await;
            expect(&mut stream, "1\r\nb\r\n0\r\n\r\n").await;
        } else if head.starts_with("POST") {
            tokio::time::sleep(silence).await;
        }
        send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nab").await;
        tokio::time::sleep(silence).await;
        send(&mut stream, "cd").await;
    })
    .await;
    let begin = async |method: &str, more: &str| {
        let mut client = TcpStream::connect(routed.address).await.unwrap();
        send(&mut client, &request(method, port, more)).await;
        client
    };
    // Rare events, and a command without output until it ends.
    let (mut events, mut command) = (begin("GET", "").await, begin("POST", "content-length: 0\r\n").await);
    let mut upload = begin("PUT", "transfer-encoding: chunked\r\n").await;
    let mut socket = begin("GET", "connection: upgrade\r\nupgrade: x\r\n").await;
    send(&mut upload, "1\r\na\r\n").await;
    tokio::time::sleep(silence).await;
    send(&mut upload, "1\r\nb\r\n0\r\n\r\n").await;
    for client in [&mut events, &mut command, &mut upload] {
        assert!(head(client).await.starts_with("HTTP/1.1 200 "));
        expect(client, "abcd").await;
    }
    assert!(head(&mut socket).await.starts_with("HTTP/1.1 101 "));
    assert!(head(&mut socket).await.starts_with("HTTP/1.1 200 "), "what comes now is not HTTP to the router");
    expect(&mut socket, "abcd").await;
}

#[tokio::test]
async fn a_slow_response_continues_until_the_client_disconnects() {
    let routed =
        limited(Limits { head: SHORT, idle: SHORT, stall: SHORT, body: SHORT, body_least: 1000 }).await;
    let (told, mut ends) = mpsc::channel(1);
    let (port, _) = backend(move |mut stream| {
        let told = told.clone();
        async move {
            head(&mut stream).await;
            send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await;
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(SHORT / 3).await;
            }
            told.send(()).await.unwrap();
        }
    })
    .await;
    let mut client = TcpStream::connect(routed.address).await.unwrap();
    send(&mut client, &request("GET", port, "")).await;
    assert!(head(&mut client).await.starts_with("HTTP/1.1 200 "));
    expect(&mut client, &"x".repeat(12)).await;
    drop(client);
    within(ends.recv()).await.unwrap();
}
