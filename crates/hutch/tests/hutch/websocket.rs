//! A WebSocket from outside through the router to a server inside a jail.

use futures::{SinkExt, StreamExt};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::harness::Up;

/// Takes one connection, switches it, and gives back each short text in capitals.
pub(crate) const SERVER: &str = r#"
import base64, hashlib, socket

def serve(peer, head):
    key = next(l.split(b":", 1)[1].strip() for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key:"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    stream = peer.makefile("rb")
    while True:
        start = stream.read(2)
        if len(start) < 2 or start[0] & 15 != 1:
            return
        mask, length = stream.read(4), start[1] & 127
        text = bytes(b ^ mask[i % 4] for i, b in enumerate(stream.read(length))).upper()
        peer.sendall(bytes([129, len(text)]) + text)

listener = socket.create_server(("0.0.0.0", 9000))
while True:
    peer, _ = listener.accept()
    head = b""
    while b"\r\n\r\n" not in head:
        more = peer.recv(4096)
        if not more:
            break
        head += more
    else:
        serve(peer, head)
    peer.close()
"#;

#[test]
fn websocket_passes_through_the_router_into_a_jail() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start(&["--router-listen", "127.0.0.1:0"]);
    let sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "talker"},
        "spec": {"podTemplate": {"spec": {"containers": [{
            "name": "main", "image": "hutch/host", "command": ["python3", "-u", "-c", SERVER],
            "readinessProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1},
        }]}}},
    });
    let file = up.folder().join("sandbox.json");
    std::fs::write(&file, sandbox.to_string()).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
    up.ok("wait --for=condition=Ready sandbox/talker --timeout=60s");
    let address = up.router();
    let token = std::fs::read_to_string(up.data().join("ca/router.token")).expect("the router's token");

    let ask = |token: Option<&str>| {
        let mut request = format!("ws://{address}/talk").into_client_request().expect("a request");
        let headers = request.headers_mut();
        headers.insert("x-sandbox-id", "talker".parse().expect("a value"));
        headers.insert("x-sandbox-port", "9000".parse().expect("a value"));
        if let Some(token) = token {
            headers.insert("authorization", format!("Bearer {}", token.trim()).parse().expect("a value"));
        }
        tokio_tungstenite::connect_async(request)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let refused = ask(None).await.expect_err("refused without a token");
        assert!(refused.to_string().contains("401"), "{refused}");
        let (mut socket, _) = ask(Some(&token)).await.expect("switched");
        for word in ["hello", "again"] {
            socket.send(Message::text(word)).await.expect("sent");
            let answer = socket.next().await.expect("an answer").expect("a message");
            assert_eq!(answer.into_text().expect("text").as_str(), word.to_uppercase());
        }
    });
}
