//! Clients of TLS whose destination is refused.

use std::io::ErrorKind;

use super::*;
use crate::sandbox::REFUSING;

/// A server that no rule allows, and which counts as reached if a connection to it is made.
fn closed() -> (std::net::TcpListener, u16) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Connects to this port of `localhost`, as a program of the sandbox does.
async fn captured(site: &Site, port: u16) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let captured = listener.accept().await.unwrap().0;
    let (sandbox, destination) = (site.sandbox.clone(), format!("localhost:{port}").parse().unwrap());
    tokio::spawn(async move { sandbox.serve_to(captured, destination).await });
    client
}

#[tokio::test]
async fn refused_client_of_tls_gets_the_reason_and_nothing_reaches_the_server() {
    let mut site = Site::new(GET).await;
    let (server, port) = closed();
    let expected = format!("refused localhost:{port}: no rule of policy \\\"test\\\" allows it");
    let mut stream = site.trusting(captured(&site, port).await, "http/1.1").await.unwrap();
    let request = format!("GET /secret HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(answer.contains("application/problem+json") && answer.contains(&expected), "{answer}");

    let stream = site.trusting(captured(&site, port).await, "h2").await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("https://localhost:{port}/secret"));
    let response = sender.send_request(request.body(Full::new(Bytes::from_static(b"x"))).unwrap()).await;
    let response = response.unwrap();
    assert_eq!(response.status().as_u16(), 403);
    let body = response.collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains(&expected), "{body:?}");
    connection.await.unwrap().unwrap();

    let stream = site.trusting(captured(&site, port).await, "h2").await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::head(format!("https://localhost:{port}/secret"));
    let response = sender.send_request(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
    assert_eq!(response.status().as_u16(), 403);
    assert!(response.collect().await.unwrap().to_bytes().is_empty());

    assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "a connection was made");
    for _ in 0..3 {
        assert_eq!(site.refused.try_recv().unwrap().destination, format!("localhost:{port}"));
    }
    assert!(site.refused.try_recv().is_err(), "each is reported once");
}

#[tokio::test]
async fn client_of_tls_that_sends_the_name_of_another_host_gets_the_reason_for_that_name() {
    let site = Site::new(GET).await;
    let (_server, port) = closed();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let accepted = listener.accept().await.unwrap().0;
    let (sandbox, destination) = (site.sandbox.clone(), format!("192.0.2.1:{port}").parse().unwrap());
    tokio::spawn(async move { sandbox.serve_to(accepted, destination).await });
    let mut stream = site.trusting(client, "http/1.1").await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(&format!("refused 192.0.2.1:{port}: ")), "{answer}");
}

#[tokio::test]
async fn advice_to_a_refused_client_names_the_sandbox() {
    let site = Site::new(GET).await;
    let (_server, port) = closed();
    let sandbox =
        hutch_policy::Identity { name: "mine".into(), namespace: "team".into(), ..Default::default() };
    site.sandbox.set_levels([].into());
    site.sandbox.set_facts(hutch_policy::Facts { sandbox, ..Default::default() });
    let mut stream = site.trusting(captured(&site, port).await, "http/1.1").await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let expected = format!("nothing allows it; to allow it: hutch allow -n team mine localhost:{port}");
    assert!(answer.contains(&expected), "{answer}");
}

#[tokio::test]
async fn refused_client_that_cannot_be_answered_is_reset() {
    let site = Site::new(GET).await;
    let (_server, port) = closed();
    let reset = async |mut client: TcpStream, bytes: &[u8]| {
        client.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap_err().kind()
    };
    // A record of TLS that is no ClientHello.
    let client = captured(&site, port).await;
    assert_eq!(reset(client, b"\x16\x03\x01\x00\x05abcde").await, ErrorKind::ConnectionReset);
    // No HTTP within TLS.
    let mut stream = site.trusting(captured(&site, port).await, "http/1.1").await.unwrap();
    stream.write_all(b"EHLO mail.example\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let error = stream.read_to_end(&mut answer).await.unwrap_err();
    assert_eq!((error.kind(), answer.len()), (ErrorKind::ConnectionReset, 0));
    // All places are taken.
    let places = site.sandbox.refusing.acquire_many(u32::try_from(REFUSING).unwrap()).await.unwrap();
    let error = site.trusting(captured(&site, port).await, "http/1.1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    drop(places);
    assert!(site.trusting(captured(&site, port).await, "http/1.1").await.is_ok());
}

#[tokio::test]
async fn client_of_tls_is_reset_without_an_authority_and_where_the_server_fails() {
    // No server listens at this port, to which connections are joined.
    let (server, port) = closed();
    drop(server);
    let joined = format!(
        r#"{{"name": "joined", "hosts": ["localhost"], "ports": [{port}], "private": ["127.0.0.0/8", "::1"]}}"#
    );
    let site = Site::new(&joined).await;
    let error = site.trusting(captured(&site, port).await, "http/1.1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let level = levels(1, GET, "");
    let sandbox = Sandbox::new(level, Arc::default(), Box::new(|_| ()), Box::new(|_| ()));
    let site = Site { sandbox, ..site };
    let error = site.trusting(captured(&site, port).await, "http/1.1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    site.sandbox.set_authority_keys(site.keys.clone());
    assert!(site.trusting(captured(&site, port).await, "http/1.1").await.is_ok());
}
