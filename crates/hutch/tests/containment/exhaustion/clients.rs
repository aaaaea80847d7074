//! Clients of the API that open and create all that they can.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};

use super::quiet::Quiet;
use super::{Attacker, Bound, RESOURCES, Resource};
use crate::connections::{CONNECTIONS, DESCRIPTORS, address, idle_http2, tls};
use crate::harness::{Up, WAIT_LIMIT};
use crate::names::pod;
use crate::ordinary::apply;

/// Connections that the listener has with these descriptors.
const MOST_CONNECTIONS: usize = DESCRIPTORS as usize / 4;
/// Maximum Events of a namespace.
const EVENTS: usize = 4096;
/// Clients that create Events at the same time.
const WRITERS: usize = 8;

/// One user of the API, over HTTP/1.1.
#[derive(Clone)]
struct User {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    head: String,
}

impl User {
    /// The owner of the machine, or another one with the same rights.
    fn new(up: &Up, name: Option<&str>) -> User {
        let mut tls = (*tls(up)).clone();
        tls.alpn_protocols.clear();
        let token = up.ok("config view --raw -o jsonpath={.users[0].user.token}");
        let mut head = format!("Host: hutch\r\nAuthorization: Bearer {token}\r\n");
        if let Some(name) = name {
            head += &format!("Impersonate-User: {name}\r\nImpersonate-Group: system:masters\r\n");
        }
        User { address: address(up), tls: Arc::new(tls), head }
    }

    /// Sends the head of a request on a connection of its own.
    fn begin(&self, request: &str, more: &str) -> Connection {
        let mut connection = self.connect();
        connection.send(&format!("{request} HTTP/1.1\r\n{}{more}\r\n", self.head));
        connection
    }

    fn connect(&self) -> Connection {
        let name = rustls::pki_types::ServerName::IpAddress(self.address.ip().into());
        let client = ClientConnection::new(self.tls.clone(), name).expect("TLS");
        let socket = TcpStream::connect(self.address).expect("a connection");
        socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket");
        Connection { stream: StreamOwned::new(client, socket) }
    }
}

struct Connection {
    stream: StreamOwned<ClientConnection, TcpStream>,
}

/// Status code and body; the body is empty when it has no length.
type Answer = (u16, Vec<u8>);

impl Connection {
    fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).expect("sent");
        self.stream.flush().expect("sent");
    }

    fn answer(&mut self) -> Answer {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.stream.read_exact(&mut byte).expect("the head of an answer");
            head.extend(byte);
        }
        let head = String::from_utf8(head).expect("text").to_lowercase();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a length"))];
        self.stream.read_exact(&mut body).expect("the body");
        (code, body)
    }
}

/// The answer must be a `Status` with this code and reason.
#[track_caller]
fn assert_refused(answer: &Answer, resource: Resource) {
    let status: Value = serde_json::from_slice(&answer.1).expect("a Status");
    let Bound::Status(code, reason) = resource.bound() else { panic!("{resource:?} is not refused") };
    assert_eq!((status["kind"].as_str(), status["code"].as_u64()), (Some("Status"), Some(u64::from(code))));
    assert_eq!((answer.0, status["reason"].as_str()), (code, Some(reason)), "{status}");
    assert_eq!(status["details"]["retryAfterSeconds"], 1, "{status}");
}

/// Opens requests that last until one is refused. `opened` is the code of the others.
fn open_until_refused(resource: Resource, opened: u16, open: impl Fn() -> Connection) -> Vec<Connection> {
    let mut held = Vec::new();
    loop {
        let mut connection = open();
        let answer = connection.answer();
        if answer.0 != opened {
            assert_refused(&answer, resource);
            return held;
        }
        held.push(connection);
        assert!(held.len() < MOST_CONNECTIONS, "{resource:?} has no bound");
    }
}

fn attack(up: &Up, quiet: &Quiet<'_>, resource: Resource) {
    let noisy = User::new(up, Some("noisy"));
    let admin = User::new(up, None);
    let watch = "GET /api/v1/namespaces/noisy/configmaps?watch=true";
    let exec = "GET /api/v1/namespaces/noisy/pods/noisy/exec?command=sleep&command=1000&stdout=true";
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n";
    match resource {
        Resource::Watches => {
            let held = open_until_refused(resource, 200, || noisy.begin(watch, ""));
            assert_eq!(held.len(), MOST_CONNECTIONS / 4);
            for _ in 0..20 {
                assert_refused(&noisy.begin(watch, "").answer(), resource);
            }
            assert_eq!(admin.begin(watch, "").answer().0, 200);
            quiet.continues();
        }
        Resource::Streams => {
            let held = open_until_refused(resource, 101, || noisy.begin(exec, upgrade));
            assert_eq!(held.len(), MOST_CONNECTIONS / 8);
            for _ in 0..20 {
                assert_refused(&noisy.begin(exec, upgrade).answer(), resource);
            }
            assert_eq!(admin.begin(exec, upgrade).answer().0, 101);
            quiet.continues();
        }
        Resource::Requests => {
            // Bodies that do not come.
            let create = "POST /api/v1/namespaces/noisy/configmaps";
            let begin = || noisy.begin(create, "Content-Type: application/json\r\nContent-Length: 1000\r\n");
            let mut held: Vec<Connection> = (0..MOST_CONNECTIONS / 2).map(|_| begin()).collect();
            quiet.continues();
            // All but those within the bound have an answer.
            let refused = held.split_off(MOST_CONNECTIONS / 8);
            let mut answers = refused.into_iter().map(|mut connection| connection.answer());
            assert_refused(&answers.next_back().expect("an answer"), resource);
            quiet.continues();
        }
        Resource::Events => events(up, &noisy, quiet),
        Resource::Connections => {
            assert_eq!(resource.bound(), Bound::Closed);
            let bare: Vec<TcpStream> =
                (0..CONNECTIONS).filter_map(|_| TcpStream::connect(noisy.address).ok()).collect();
            quiet.continues();
            let http2 = tls(up);
            let idle = (0..CONNECTIONS / 2).filter_map(|_| idle_http2(noisy.address, &http2)).count();
            assert!(idle > 0, "new connections are taken");
            let closed = bare.into_iter().filter(|socket| {
                socket.set_nonblocking(true).expect("a socket");
                let mut socket = socket;
                !matches!(socket.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
            });
            assert!(closed.count() >= CONNECTIONS - MOST_CONNECTIONS);
            quiet.continues();
        }
        other => panic!("{other:?} is not attacked by a client"),
    }
}

/// Creates more Events than a namespace keeps.
fn events(up: &Up, noisy: &User, quiet: &Quiet<'_>) {
    let create = |connection: &mut Connection, count: usize| {
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("e-{count}")},
            "involvedObject": {"kind": "Pod", "name": "noisy", "namespace": "noisy"}, "reason": "Noise"});
        let event = event.to_string();
        let length = event.len();
        let path = "/api/v1/namespaces/noisy/events";
        let typed = "Content-Type: application/json";
        let head = &noisy.head;
        connection.send(&format!(
            "POST {path} HTTP/1.1\r\n{head}{typed}\r\nContent-Length: {length}\r\n\r\n{event}"
        ));
        assert_eq!(connection.answer().0, 201);
    };
    create(&mut noisy.connect(), 0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let mut connection = noisy.connect();
                (1..=EVENTS / WRITERS + 8)
                    .for_each(|count| create(&mut connection, count * WRITERS + writer));
            });
        }
        quiet.continues();
    });
    create(&mut noisy.connect(), usize::MAX);
    let (code, list) = noisy.begin("GET /api/v1/namespaces/noisy/events", "").answer();
    let list: Value = serde_json::from_slice(&list).expect("a list");
    let names: Vec<&str> = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|e| e["metadata"]["name"].as_str())
        .collect();
    assert_eq!((code, names.len()), (200, EVENTS));
    assert!(names.contains(&&*format!("e-{}", usize::MAX)), "the newest is kept");
    assert!(!names.contains(&"e-0"), "the oldest is dropped");
    assert!(up.ok("get events").contains("quiet-exec"), "events of other namespaces stay");
    quiet.continues();
}

#[test]
fn noisy_client_reaches_its_own_limits_and_others_continue() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start_limited(DESCRIPTORS);
    let quiet = Quiet::start(&up);
    up.ok("create namespace noisy");
    let container = json!({"name": "c", "image": "hutch/host", "command": ["sleep", "1000000"]});
    let mut noisy = pod("noisy", json!({"containers": [container], "terminationGracePeriodSeconds": 0}));
    noisy["metadata"]["namespace"] = "noisy".into();
    apply(&up, &noisy);
    up.ok("wait -n noisy --for=condition=Ready pod/noisy --timeout=90s");
    for resource in RESOURCES {
        if matches!(resource.attacker(), Attacker::Client) {
            attack(&up, &quiet, resource);
        }
    }
    quiet.continues();
}
