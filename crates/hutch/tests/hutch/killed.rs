//! The proxy of `hutch up` is killed under load, and one sandbox opens more connections than it may.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hutch_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::Up;

/// Address of the servers. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.7.1";
/// Connections that are open when the proxy is killed.
const CONNECTIONS: usize = 50;
/// Maximum connections of a sandbox.
const MOST: usize = 512;
/// Maximum connections of a sandbox whose requests are read.
const READ_MOST: usize = 64;
/// Streams of each of them in a test, and maximum requests of a sandbox at once.
const STREAMS: usize = 4;
const REQUESTS: usize = 128;
/// Maximum descriptors of the proxy for one sandbox: two for each connection, and the listeners.
const DESCRIPTORS: usize = 1100;
/// Maximum memory of the proxy for one sandbox, in KiB.
const MEMORY: usize = 32 << 10;

/// A server that sends back everything, and counts.
#[derive(Default)]
struct Server {
    port: u16,
    opened: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind((SERVER, 0)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let server = Server { port, ..Server::default() };
        let (opened, open, bytes) = (server.opened.clone(), server.open.clone(), server.bytes.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                opened.fetch_add(1, Ordering::SeqCst);
                let (open, bytes) = (open.clone(), bytes.clone());
                std::thread::spawn(move || {
                    open.fetch_add(1, Ordering::SeqCst);
                    let _ = echo(client, &bytes);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        server
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

fn echo(mut client: TcpStream, bytes: &AtomicUsize) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = client.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        bytes.fetch_add(count, Ordering::SeqCst);
        client.write_all(&buffer[..count])?;
    }
}

/// A server with the Sandbox `a`, which may reach this port of `web.example`.
fn start(port: u16) -> Up {
    start_with(Up::start_with_hosts(&hosts()), port, &json!({"protocol": "TCP"}))
}

fn hosts() -> String {
    format!("127.0.0.1 localhost\n{SERVER} web.example\n")
}

/// Adds the Sandbox `a`, which may reach this port of `web.example` by a rule with these fields.
fn start_with(up: Up, port: u16, more: &Value) -> Up {
    let mut rule = json!({"name": "web", "hosts": ["web.example"], "ports": [port], "private": [SERVER]});
    let mut spec = json!({"appliesTo": {}});
    for (field, value) in more.as_object().expect("fields") {
        let part = if field == "scanner" { &mut spec } else { &mut rule };
        part[field] = value.clone();
    }
    spec["egress"] = json!({"rules": [rule]});
    let policy = json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {"name": "web"},
        "spec": spec,
    });
    let sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "a"},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]},
        ]}}},
    });
    for object in [policy, sandbox] {
        let file = up.folder().join("object.json");
        std::fs::write(&file, object.to_string()).expect("written");
        up.ok(&format!("apply -f {}", file.display()));
    }
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].reason}";
    up.eventually(&format!("get sandbox a -o {path}"), |found| found.trim() == "Enforced");
    up
}

/// A Python program in the sandbox. It ends when its input does.
struct Program {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(up: &Up, program: &str, arguments: &[usize]) -> Program {
        Program::start_in(up, &["python3", "-c", program], arguments)
    }

    fn start_in(up: &Up, interpreter: &[&str], arguments: &[usize]) -> Program {
        let arguments: Vec<String> = arguments.iter().map(usize::to_string).collect();
        let mut words = [&["exec", "-i", "a", "--"], interpreter].concat();
        words.extend(arguments.iter().map(String::as_str));
        let mut kubectl = up.kubectl_command(&words);
        let mut child = kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("kubectl");
        let output = BufReader::new(child.stdout.take().expect("output"));
        Program { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    /// Ends its input, and returns what it then prints.
    fn end(&mut self) -> String {
        drop(self.child.stdin.take());
        self.line()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Process id of the proxy.
fn proxy(up: &Up) -> Option<Pid> {
    std::fs::read_dir("/proc").expect("/proc").flatten().find_map(|entry| {
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let parent = format!("\nPPid:\t{}\n", up.pid());
        let is_proxy = status.starts_with("Name:\thutch-egress\n") && status.contains(&parent);
        is_proxy.then(|| Pid::from_raw(id)).flatten()
    })
}

/// Rounds of a test that takes long, and what they are with `scripts/slow-tests`.
pub(crate) fn rounds(few: usize, all: usize) -> usize {
    if std::env::var_os("HUTCH_SLOW_TESTS").is_some_and(|value| value == "1") { all } else { few }
}

#[test]
fn proxy_that_is_killed_under_connections_serves_again_and_opens_nothing() {
    hutch_testkit::require!(root, kubectl, python);
    let (server, denied) = (Server::start(), Server::start());
    let up = start(server.port);
    let ports = [server.port.into(), denied.port.into(), CONNECTIONS];
    let mut program = Program::start(&up, include_str!("fixtures/killed.py"), &ports);
    assert_eq!(program.line(), "open");
    let mut times = Vec::new();
    for round in 0..rounds(20, 100) {
        let pid = proxy(&up).expect("a proxy");
        until("all connections are open", || server.open() == CONNECTIONS);
        let opened = server.opened();
        kill_process(pid, Signal::KILL).expect("kill");
        let killed = Instant::now();
        until("a connection is open again", || server.opened() > opened);
        times.push(killed.elapsed().as_millis());
        until("all are open again", || {
            server.open() == CONNECTIONS && server.opened() >= opened + CONNECTIONS
        });
        assert_eq!(denied.opened(), 0, "round {round}");
    }
    let result: Value = serde_json::from_str(&program.end()).expect("JSON");
    let counts = &result["counts"];
    assert_eq!((denied.opened(), denied.bytes.load(Ordering::SeqCst)), (0, 0), "{result}");
    assert!(counts["denied: ECONNRESET"].as_u64() > Some(0), "{result}");
    // The listeners outlive the proxy, so that connections wait instead of being refused.
    // An open connection breaks, and does not look as if the server had ended it.
    for never in ["ECONNREFUSED", "denied: ECONNREFUSED", "end"] {
        assert_eq!(counts[never], Value::Null, "{result}");
    }
    times.sort_unstable();
    let (middle, last) = (times[times.len() / 2], times[times.len() - 1]);
    hutch_testkit::say(&format!(
        "killed {} times under {CONNECTIONS} connections: a new one after {middle} ms (p50), {last} ms (most); {result}\n",
        times.len()
    ));
}

/// Opens a connection of HTTP, on which an answer has begun, and one of TLS that ends at the proxy. Prints what becomes of
/// each, and whether it is known at once.
const READ: &str = "
import os, socket, ssl, sys, time
port = int(sys.argv[1])
plain = socket.create_connection(('web.example', port), 60)
plain.sendall(b'GET / HTTP/1.1\\r\\nHost: web.example:%d\\r\\n\\r\\n' % port)
answer = b''
while not answer.endswith(b'part'): answer += plain.recv(100)
tls = socket.create_connection(('web.example', port), 60)
tls = ssl.create_default_context().wrap_socket(tls, server_hostname='web.example')
print('open', flush=True)
for sock in (plain, tls):
    begin = time.monotonic()
    # Below TLS: the module ssl of Python takes a reset for an end.
    below = socket.socket(fileno=os.dup(sock.fileno()))
    below.settimeout(60)
    try:
        while below.recv(4096): pass
        end = 'end'
    except OSError as error: end = type(error).__name__
    print(end, time.monotonic() - begin < 20, flush=True)
";

#[test]
fn connections_that_are_read_are_reset_when_the_proxy_is_killed() {
    hutch_testkit::require!(root, kubectl, python);
    let listener = TcpListener::bind((SERVER, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npart");
            open.push(client);
        }
    });
    let rule = json!({"plaintext": true, "http": [{"methods": ["GET"]}]});
    let up = start_with(Up::start_with_hosts(&hosts()), port, &rule);
    let mut program = Program::start(&up, READ, &[port.into()]);
    assert_eq!(program.line(), "open");
    kill_process(proxy(&up).expect("a proxy"), Signal::KILL).expect("kill");
    for what in ["HTTP", "TLS"] {
        assert_eq!(program.line(), "ConnectionResetError True", "{what}");
    }
}

/// Number of descriptors of a process, and its resident memory in KiB.
fn usage(process: Pid) -> (usize, usize) {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()));
    (descriptors.expect("descriptors").count(), memory(process, "VmRSS:"))
}

/// Memory of a process in KiB: `VmRSS:`, or `VmHWM:` for the most that was resident so far.
fn memory(process: Pid, field: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()));
    let status = status.expect("status");
    let memory = status.lines().find_map(|line| line.strip_prefix(field)).expect(field);
    memory.split_whitespace().next().and_then(|size| size.parse().ok()).expect("a number")
}

/// Opens so many connections and sends 64 KiB to and fro on each. Prints how many are open, how many were refused, and
/// after the end of its input, whether one more opens.
const GREEDY: &str = "
import socket, sys
port, wanted = int(sys.argv[1]), int(sys.argv[2])
address = socket.gethostbyname('web.example')
data = bytes(64 << 10)
kept, refused = [], 0
for _ in range(wanted):
    try:
        sock = socket.create_connection((address, port), 60)
        sock.sendall(data)
        if len(sock.makefile('rb').read(len(data))) < len(data): raise ConnectionResetError
        kept.append(sock)
    except OSError:
        refused += 1
print(len(kept), refused, flush=True)
sys.stdin.read()
kept.clear()
while True:
    try:
        with socket.create_connection((address, port), 60) as sock:
            sock.sendall(b'x')
            if sock.recv(1): break
    except OSError: pass
print('another', flush=True)
";

#[test]
fn sandbox_has_a_bounded_number_of_connections_and_descriptors() {
    hutch_testkit::require!(root, kubectl, python);
    let server = Server::start();
    let up = start(server.port);
    let pid = proxy(&up).expect("a proxy");
    let before = usage(pid);
    let mut program = Program::start(&up, GREEDY, &[server.port.into(), 600]);
    assert_eq!(program.line(), format!("{MOST} {}", 600 - MOST));
    assert_eq!((server.open(), server.opened()), (MOST, MOST));
    let (descriptors, memory) = usage(pid);
    let memory = memory.saturating_sub(before.1);
    assert!(memory < MEMORY, "{memory} KiB");
    assert!(descriptors <= before.0 + DESCRIPTORS, "{descriptors} descriptors, {} before", before.0);
    assert!(descriptors >= before.0 + 2 * MOST, "{descriptors} descriptors, {} before", before.0);
    assert_eq!(proxy(&up), Some(pid), "it is the same process");
    assert_eq!(program.end(), "another");
    until("the connections are closed", || usage(pid).0 <= before.0 + 4);
    hutch_testkit::say(&format!(
        "{MOST} connections: {} descriptors and {memory} KiB more in the proxy\n",
        descriptors - before.0
    ));
}

/// Sends bodies that the server does not read, until no connection takes more. Prints how many are open, and ends with its input.
const STALLED: &str = "
import socket, sys, time
port, wanted = int(sys.argv[1]), int(sys.argv[2])
address = socket.gethostbyname('web.example')
head = b'POST / HTTP/1.1\\r\\nHost: web.example:%d\\r\\nContent-Length: 1000000000\\r\\n\\r\\n' % port
kept = []
for _ in range(wanted):
    sock = socket.create_connection((address, port), 60)
    sock.sendall(head)
    sock.recv(12)
    sock.setblocking(False)
    kept.append(sock)
quiet, data = 0, bytes(64 << 10)
while quiet < 20:
    quiet += 1
    for sock in kept:
        try:
            if sock.send(data): quiet = 0
        except BlockingIOError: pass
    time.sleep(0.05)
print(len(kept), flush=True)
sys.stdin.read()
";

/// A server that reads the start of each request, and answers with a body that does not end.
fn talker() -> u16 {
    let listener = TcpListener::bind((SERVER, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = client.read(&mut [0; 4096]);
                let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
                while client.write_all(&[b'x'; 64 << 10]).is_ok() {}
            });
        }
    });
    port
}

#[test]
fn connections_that_are_read_and_blocked_both_ways_have_bounded_memory() {
    hutch_testkit::require!(root, kubectl, python);
    let port = talker();
    let rule = json!({"plaintext": true, "http": [{"methods": ["POST"]}]});
    let up = start_with(Up::start_with_hosts(&hosts()), port, &rule);
    let pid = proxy(&up).expect("a proxy");
    let before = usage(pid).1;
    let mut program = Program::start(&up, STALLED, &[port.into(), READ_MOST]);
    assert_eq!(program.line(), READ_MOST.to_string());
    let memory = usage(pid).1.saturating_sub(before);
    assert!(memory < MEMORY, "{memory} KiB");
    hutch_testkit::say(&format!("{READ_MOST} connections that are read: {memory} KiB more in the proxy\n"));
}

/// A server of HTTP/2 over TLS that reads no body, and answers with one that does not end. Arguments: address, folder of the
/// certificate.
const TALKER: &str = "
const [, address, folder] = process.argv;
const fs = require('fs');
const read = (name) => fs.readFileSync(`${folder}/${name}`);
const server = require('http2').createSecureServer({key: read('key.pem'), cert: read('cert.pem')});
const piece = Buffer.alloc(64 << 10);
server.on('session', (session) => session.on('error', () => {}));
server.on('stream', (stream) => {
  stream.on('error', () => {});
  stream.respond({':status': 200});
  const more = () => { while (stream.write(piece)); };
  stream.on('drain', more);
  more();
});
server.listen(0, address, () => console.log(`port ${server.address().port}.`));
";

/// Sends bodies in streams of HTTP/2 and reads no answer, until nothing happens for two seconds. Prints how many streams have an
/// answer, and ends with its input.
const STALLED_STREAMS: &str = "
const [, port, sessions, streams] = process.argv;
let [answered, last] = [0, Date.now()];
const body = Buffer.alloc(1 << 20);
for (let number = 0; number < Number(sessions); number++) {
  const session = require('http2').connect(`https://web.example:${port}`);
  session.on('error', () => {});
  for (let each = 0; each < Number(streams); each++) {
    const stream = session.request({':method': 'POST', ':path': '/'});
    stream.on('error', () => {});
    stream.on('response', () => { answered++; last = Date.now(); });
    stream.write(body);
  }
}
const check = setInterval(() => {
  if (answered === 0 || Date.now() - last < 2000) return;
  console.log(answered);
  clearInterval(check);
}, 100);
process.stdin.resume();
process.stdin.on('end', () => process.exit());
";

#[test]
fn streams_over_tls_that_are_blocked_both_ways_have_bounded_memory() {
    hutch_testkit::require!(root, kubectl, node, openssl);
    let folder = tempfile::tempdir().expect("tempdir");
    crate::inspected::authority(folder.path(), &["web.example"]);
    let mut node = Command::new("node");
    node.args(["-e", TALKER, SERVER]).arg(folder.path());
    let (_server, port) = crate::inspected::with_port(node, &folder.path().join("log"));
    let authority = folder.path().join("ca.pem");
    let up = Up::start_outside(&hosts(), &[("SSL_CERT_FILE", &authority)], &[]);
    let up = start_with(up, port, &json!({"http": [{"methods": ["POST"]}]}));
    let pid = proxy(&up).expect("a proxy");
    let before = usage(pid).1;
    let mut program =
        Program::start_in(&up, &["node", "-e", STALLED_STREAMS], &[port.into(), READ_MOST, STREAMS]);
    let answered: usize = program.line().parse().expect("a number");
    let memory = usage(pid).1.saturating_sub(before);
    hutch_testkit::say(&format!("{answered} streams over TLS: {memory} KiB more in the proxy\n"));
    // The others wait.
    assert_eq!(answered, REQUESTS);
    assert!(memory < MEMORY, "{memory} KiB");
}

/// Sends all of a compressed body but its end on each connection, as far as the proxy takes it. Prints how many are open, and
/// after the end of its input, how many bodies are answered once they have ended.
const HELD: &str = "
import random, socket, sys, threading, time, zlib
port, wanted = int(sys.argv[1]), int(sys.argv[2])
address = socket.gethostbyname('web.example')
words = b' '.join(random.choice((b'some', b'words', b'of', b'a', b'text')) for _ in range(1 << 19))[:2 << 20]
packed = zlib.compressobj(0, zlib.DEFLATED, 31)
body = packed.compress(words) + packed.flush()
head = 'POST / HTTP/1.1\\r\\nHost: web.example:%d\\r\\nContent-Encoding: gzip\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n'
head = (head % (port, len(body))).encode()
kept = []
for _ in range(wanted):
    sock = socket.create_connection((address, port), 60)
    sock.sendall(head)
    sock.setblocking(False)
    kept.append([sock, 0])
quiet = 0
while quiet < 20:
    quiet += 1
    for one in kept:
        rest = body[one[1]:-1]
        try:
            if rest:
                one[1] += one[0].send(rest)
                quiet = 0
        except BlockingIOError: pass
    time.sleep(0.05)
print(len(kept), flush=True)
sys.stdin.read()
answers = []
def finish(sock, sent):
    sock.settimeout(300)
    sock.sendall(body[sent:])
    answers.append(sock.recv(12))
threads = [threading.Thread(target=finish, args=one) for one in kept]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(answers.count(b'HTTP/1.1 200'), flush=True)
";

/// A server that reads each request to its end, and answers.
fn reader() -> u16 {
    let listener = TcpListener::bind((SERVER, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut client, mut length) = (BufReader::new(client), 0);
                loop {
                    let mut line = String::new();
                    client.read_line(&mut line)?;
                    let line = line.trim_end().to_ascii_lowercase();
                    if let Some(value) = line.strip_prefix("content-length: ") {
                        length = value.parse().map_err(std::io::Error::other)?;
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                std::io::copy(&mut client.by_ref().take(length), &mut std::io::sink())?;
                client
                    .get_mut()
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            });
        }
    });
    port
}

#[test]
fn compressed_bodies_that_the_scanner_holds_have_bounded_memory_and_all_pass() {
    const BODIES: usize = 40;
    hutch_testkit::require!(root, kubectl, python);
    let port = reader();
    let fields =
        json!({"plaintext": true, "http": [{"methods": ["POST"]}], "scanner": {"outbound": "Block"}});
    let up = start_with(Up::start_with_hosts(&hosts()), port, &fields);
    let pid = proxy(&up).expect("a proxy");
    let before = usage(pid).1;
    let mut program = Program::start(&up, HELD, &[port.into(), BODIES]);
    assert_eq!(program.line(), BODIES.to_string());
    let held = usage(pid).1.saturating_sub(before);
    assert!(held < MEMORY, "{held} KiB");
    assert_eq!(program.end(), BODIES.to_string());
    let most = memory(pid, "VmHWM:").saturating_sub(before);
    assert!(most < MEMORY, "{most} KiB while they were scanned");
    let text = format!("{BODIES} bodies of 2 MiB: {held} KiB more in the proxy, and {most} KiB at most\n");
    hutch_testkit::say(&text);
}

/// Descriptors that the proxy may have in a test.
const LIMIT: usize = 400;

#[test]
fn proxy_refuses_connections_before_its_descriptors_run_out() {
    hutch_testkit::require!(root, kubectl, python, curl);
    let server = Server::start();
    let options = ["--metrics-listen", "127.0.0.1:0"];
    let up = start_with(Up::start_outside(&hosts(), &[], &options), server.port, &json!({"protocol": "TCP"}));
    let first = proxy(&up).expect("a proxy");
    // The next process has the limit of its parent.
    let mut limit = std::process::Command::new("prlimit");
    limit.args(["--pid", &up.pid().to_string(), &format!("--nofile={LIMIT}:{LIMIT}")]);
    assert!(limit.status().expect("prlimit").success());
    kill_process(first, Signal::KILL).expect("kill");
    until("another process runs", || proxy(&up).is_some_and(|pid| pid != first));
    let pid = proxy(&up).expect("a proxy");
    // It has all that it opens at its start when it has served a connection.
    let mut program = Program::start(&up, GREEDY, &[server.port.into(), 1]);
    assert_eq!((program.line().as_str(), program.end().as_str()), ("1 0", "another"));
    until("the connection is closed", || server.open() == 0);
    // The connection to the sandbox may still be closing.
    let before = usage(pid).0;
    let mut program = Program::start(&up, GREEDY, &[server.port.into(), 300]);
    let line = program.line();
    let (kept, refused) = line.split_once(' ').expect("two numbers");
    let (kept, refused): (usize, usize) =
        (kept.parse().expect("a number"), refused.parse().expect("a number"));
    assert!(kept > 120 && refused > 50, "{line}");
    let (descriptors, _) = usage(pid);
    assert!(descriptors < LIMIT - 20 && descriptors >= 2 * kept, "{descriptors} for {kept} connections");
    assert_eq!(proxy(&up), Some(pid), "it is the same process");
    let url = up.printed.iter().find_map(|line| line.strip_prefix("metrics")).expect("an address").trim();
    let metrics =
        std::process::Command::new("curl").args(["-sS", "--noproxy", "*", url]).output().expect("curl");
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    assert!(metrics.contains(&format!("hutch_egress_no_descriptor_total {refused}\n")), "{metrics}");
    let log = std::fs::read_to_string(up.folder().join("log")).expect("a log");
    assert_eq!(log.matches("the proxy has no descriptors left").count(), 1, "{log}");
    up.eventually("get events", |events| events.contains("no descriptors left"));
    assert_eq!(program.end(), "another");
    until("the connections are closed", || usage(pid).0 <= before + 4);
}
