//! Each request is counted once in a budget, by whatever way a client makes it.

use super::*;

/// Opening of a connection by which a client names its destination.
#[derive(Debug, Clone, Copy)]
enum Way {
    Connect,
    Socks,
}

impl Site {
    /// Opens a connection at the door for clients of a proxy. Returns it with the answer of the proxy.
    async fn named(&self, way: Way, port: u16) -> (TcpStream, String) {
        let mut client = self.door().await;
        let opening = match way {
            Way::Connect => {
                format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n").into()
            }
            Way::Socks => [&b"\x05\x01\0\x05\x01\0\x03\x09localhost"[..], &port.to_be_bytes()].concat(),
        };
        client.write_all(&opening).await.unwrap();
        let mut answer = vec![0; 12];
        client.read_exact(&mut answer).await.unwrap();
        if let Way::Connect = way {
            while !answer.ends_with(b"\r\n\r\n") {
                answer.push(client.read_u8().await.unwrap());
            }
        }
        (client, String::from_utf8_lossy(&answer).into_owned())
    }

    async fn door(&self) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, sandbox) = (listener.accept().await.unwrap().0, self.sandbox.clone());
        tokio::spawn(async move { crate::explicit::serve_client(&sandbox, accepted).await });
        client
    }

    fn counted(&self) -> u64 {
        self.sandbox.usage.session().requests
    }
}

/// Starts a server without TLS.
pub(super) async fn plain() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_one(stream));
        }
    });
    port
}

/// Sends a request and returns the status of the answer.
async fn status(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 8192];
    let length = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..length]).split(' ').nth(1).unwrap_or_default().to_owned()
}

const PLAIN: &str = r#"{"name": "plain", AT, "plaintext": true}"#;
const TWO: &str = r#", "budget": {"requests": 2, "requestsPer": "1h"}"#;

#[tokio::test]
async fn http_within_connect_and_socks_counts_each_request_once() {
    let port = plain().await;
    for way in [Way::Connect, Way::Socks] {
        let site = Site::new(PLAIN).await;
        site.sandbox.set_levels(levels(port, PLAIN, TWO));
        let (mut client, opened) = site.named(way, port).await;
        assert!(opened.contains("200") || opened.starts_with("\u{5}\0"), "{opened:?}");
        let get = format!("GET /a HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
        for (counted, expected) in [(1, "200"), (2, "200"), (2, "403")] {
            assert_eq!(status(&mut client, &get).await, expected, "{way:?}");
            assert_eq!(site.counted(), counted, "{way:?}");
        }
        // The budget is used up: the connection is refused at once.
        let (_, refused) = site.named(way, port).await;
        assert!(refused.contains("403") || refused.starts_with("\u{5}\0\u{5}\u{2}"), "{refused:?}");
    }
}

#[tokio::test]
async fn request_with_a_whole_url_counts_once() {
    let port = plain().await;
    let site = Site::new(PLAIN).await;
    site.sandbox.set_levels(levels(port, PLAIN, TWO));
    let mut client = site.door().await;
    let get = format!("GET http://localhost:{port}/a HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    for (counted, expected) in [(1, "200"), (2, "200"), (2, "403")] {
        assert_eq!(status(&mut client, &get).await, expected);
        assert_eq!(site.counted(), counted);
    }
}

#[tokio::test]
async fn websocket_within_connect_counts_once_and_its_messages_do_not_count() {
    let port = plain().await;
    let site = Site::new(PLAIN).await;
    site.sandbox.set_levels(levels(port, PLAIN, TWO));
    let (mut client, _) = site.named(Way::Connect, port).await;
    assert_eq!(status(&mut client, &UPGRADE.replace("PORT", &port.to_string())).await, "101");
    for _ in 0..3 {
        client.write_all(b"frame").await.unwrap();
        client.read_exact(&mut [0; 5]).await.unwrap();
    }
    assert_eq!(site.counted(), 1);
}

#[tokio::test]
async fn connection_that_is_not_read_counts_once() {
    let site = Site::new(r#"{"name": "joined", AT}"#).await;
    let (client, _) = site.named(Way::Connect, site.port).await;
    let trusted = site.trusting(client, "http/1.1").await;
    assert!(trusted.is_err(), "the certificate is that of the server");
    assert_eq!(site.counted(), 1);
}

#[tokio::test]
async fn requests_and_calls_whose_tls_ends_at_the_proxy_count_once() {
    let call = r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a"}}"#;
    let batch = format!("[{call}, {call}]");
    for (rule, method, body) in [
        (r#"{"name": "all", AT, "http": [{}]}"#, "GET", ""),
        (r#"{"name": "tools", AT, "mcp": [{"tools": ["a"]}]}"#, "POST", call),
        (r#"{"name": "tools", AT, "mcp": [{"tools": ["a"]}]}"#, "POST", &batch),
    ] {
        let site = Site::with(rule, TWO).await;
        let (client, _) = site.named(Way::Connect, site.port).await;
        assert_eq!(site.counted(), 0, "nothing is requested yet");
        let mut client = site.trusting(client, "http/1.1").await.unwrap();
        let kind = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        let request =
            format!("{method} /a HTTP/1.1\r\nHost: localhost:{}\r\n{kind}\r\n\r\n{body}", site.port);
        for (counted, expected) in [(1, "200"), (2, "200"), (2, "403")] {
            assert_eq!(status(&mut client, &request).await, expected, "{rule}");
            assert_eq!(site.counted(), counted, "{rule}");
        }
    }
}
