//! Bounds on the number of connections.

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hutch_router::{Access, Config};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::routed::{backend, expect, head, quick, send, with, within};

#[tokio::test]
async fn upgraded_connection_keeps_its_place_until_it_ends() {
    let routed = with(Config { connections: 1, ..quick() }, Access::Anyone, None, None).await;
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        let switched = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: echo\r\n\r\n";
        send(&mut stream, switched).await;
        let (mut reader, mut writer) = stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    })
    .await;
    let mut upgraded = TcpStream::connect(routed.address).await.unwrap();
    let request = format!(
        "GET /x HTTP/1.1\r\nhost: r\r\nx-sandbox-id: a\r\nx-sandbox-port: {port}\r\nconnection: Upgrade\r\nupgrade: echo\r\n\r\n"
    );
    send(&mut upgraded, &request).await;
    assert!(head(&mut upgraded).await.starts_with("HTTP/1.1 101 "));
    let mut next = TcpStream::connect(routed.address).await.unwrap();
    send(&mut next, "GET /healthz HTTP/1.1\r\nhost: r\r\n\r\n").await;
    let mut byte = [0];
    let early = tokio::time::timeout(std::time::Duration::from_millis(200), next.peek(&mut byte)).await;
    assert!(early.is_err(), "there is one connection at a time");
    send(&mut upgraded, "still").await;
    expect(&mut upgraded, "still").await;
    drop(upgraded);
    assert!(head(&mut next).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn requests_of_one_http2_connection_share_a_bound_of_connections_to_sandboxes() {
    let routed = with(Config { connections: 2, ..quick() }, Access::Anyone, None, None).await;
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n").await;
        // The response continues until the client disconnects.
        head(&mut stream).await;
    })
    .await;
    let stream = TcpStream::connect(routed.address).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let ask = async || {
        let request = Request::get("http://r/x").header("x-sandbox-id", "a").header("x-sandbox-port", port);
        within(sender.clone().send_request(request.body(Body::empty()).unwrap())).await.unwrap()
    };
    let (first, second) = (ask().await, ask().await);
    assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
    let third = ask().await;
    assert_eq!(third.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(third.headers()["retry-after"], "1");
    let text = third.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "{\"detail\":\"Too many connections to sandboxes are in use.\"}");
    drop(first);
    assert_eq!(ask().await.status(), StatusCode::OK);
}
