//! Unused Sandboxes are frozen or suspended, and a request or a command wakes them, on one machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use hutch_testkit::swap::{Swap, anonymous_kib};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{self, Up, WAIT_LIMIT, binary};

/// Answers every request with the number of those before it.
const SERVER: &str = r#"
import http.server, itertools
count = itertools.count()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(next(count)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
Server(("0.0.0.0", 8888), Handler).serve_forever()
"#;

fn start() -> (Up, SocketAddr) {
    let up = Up::start(&["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"]);
    let address = up.router();
    (up, address)
}

/// Makes a Sandbox and waits until it is Ready.
fn sandbox(up: &Up, name: &str, own: Value, of_template: Value) {
    sandbox_of(up, name, SERVER, own, of_template);
}

/// The same with this script of Python.
fn sandbox_of(up: &Up, name: &str, script: &str, own: Value, of_template: Value) {
    let object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": own},
        "spec": {"podTemplate": {
            "metadata": {"annotations": of_template},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                "name": "main", "image": "hutch/host", "command": ["python3", "-u", "-c", script],
                "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1, "failureThreshold": 1},
            }]},
        }},
    });
    let file = up.folder().join(format!("{name}.json"));
    std::fs::write(&file, object.to_string()).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
    up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=60s"));
}

fn request(name: &str) -> String {
    format!("GET / HTTP/1.1\r\nhost: r\r\nx-sandbox-id: {name}\r\nconnection: close\r\n\r\n")
}

/// The status and the body of an answer.
fn ask(address: SocketAddr, name: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(request(name).as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
    (status, answer.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned())
}

fn get(up: &Up, name: &str) -> Value {
    serde_json::from_str(&up.ok(&format!("get sandbox {name} -o json"))).expect("JSON")
}

fn says(sandbox: &Value, kind: &str) -> String {
    let conditions = sandbox["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or("absent").to_owned()
}

#[track_caller]
fn until(up: &Up, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let sandbox = get(up, name);
        if holds(&sandbox) {
            return sandbox;
        }
        assert!(started.elapsed() < WAIT_LIMIT, "{name} is not {what}: {sandbox:#}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

#[track_caller]
fn frozen(up: &Up, name: &str) -> Value {
    until(up, name, "frozen", |sandbox| says(sandbox, "Frozen") == "True")
}

#[test]
fn idle_sandbox_is_frozen_and_any_use_thaws_it() {
    hutch_testkit::require!(root, kubectl, python);
    let (mut up, mut address) = start();
    sandbox(&up, "s", json!({}), json!({"hutch.dev/idle-after": "1s"}));
    assert_eq!(ask(address, "s"), ("200".to_owned(), "0".to_owned()));
    let asleep = frozen(&up, "s");
    assert_eq!(says(&asleep, "Ready"), "True");
    assert_ne!(asleep["spec"]["operatingMode"], "Suspended");
    until(&up, "s", "annotated", |s| s["metadata"]["annotations"]["hutch.dev/frozen-since"].is_string());

    // The same process answers: its memory was kept.
    assert_eq!(ask(address, "s"), ("200".to_owned(), "1".to_owned()));
    let awake = until(&up, "s", "awake", |sandbox| {
        says(sandbox, "Frozen") == "absent"
            && sandbox["metadata"]["annotations"]["hutch.dev/frozen-since"].is_null()
    });
    assert_eq!(says(&awake, "Ready"), "True");

    frozen(&up, "s");
    assert_eq!(up.ok("exec s -- echo hello"), "hello\n");
    frozen(&up, "s");
    let file = up.folder().join("file");
    std::fs::write(&file, "text").expect("written");
    up.ok(&format!("cp {} s:/tmp/file", file.display()));
    assert_eq!(up.ok("exec s -- cat /tmp/file"), "text");

    frozen(&up, "s");
    at_once(address, 1000);
    measure(&up, address);

    // Neither a stop nor a death of the node finds it unable to end.
    frozen(&up, "s");
    up.kill();
    up.restart();
    address = up.router();
    // It may still be Ready by what was stored before.
    until(&up, "s", "answering", |_| ask(address, "s").0 == "200");
    until(&up, "s", "reported as awake", |s| {
        s["metadata"]["annotations"]["hutch.dev/frozen-since"].is_null() && says(s, "Frozen") == "absent"
    });
    frozen(&up, "s");
    assert_eq!(up.stop(), Some(0));
    up.restart();
    up.ok("wait --for=condition=Ready sandbox/s --timeout=60s");
    frozen(&up, "s");
    up.ok("delete sandbox s --wait --timeout=60s");
    up.eventually("get pods -o name", |names| !names.contains("pod/s"));
}

/// Holds 48 MiB of random bytes. Answers every request with its process id and the sum of the bytes.
const HEAP: &str = r#"
import http.server, os
data = os.urandom(48 << 20)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = f"{os.getpid()} {sum(data[::512])}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8888), Handler).serve_forever()
"#;

#[test]
fn idle_sandbox_is_paged_out_and_a_request_on_an_open_connection_wakes_it() {
    hutch_testkit::require!(root, kubectl, python, swap);
    let _swap = Swap::new(256 << 20);
    let (mut up, address) = start();
    let marker = format!("# sandbox of {}", up.folder().display());
    let own = json!({"hutch.dev/idle-after": "1s", "hutch.dev/page-out-after": "2s"});
    sandbox_of(&up, "s", &format!("{marker}{HEAP}"), own, json!({}));
    let kib = || anonymous_kib(&marker).expect("the process");
    let paged_out = |up: &Up| {
        let reason = |sandbox: &Value| {
            let all = sandbox["status"]["conditions"].as_array().cloned().unwrap_or_default();
            all.iter().any(|one| one["type"] == "Frozen" && one["reason"] == "PagedOut")
        };
        let sandbox = until(up, "s", "paged out", reason);
        assert_eq!((says(&sandbox, "Ready"), says(&sandbox, "Frozen")), ("True".into(), "True".into()));
    };
    let mut connection = TcpStream::connect(address).expect("connected");
    let mut ask = || {
        let kept = request("s").replace("connection: close\r\n", "");
        connection.write_all(kept.as_bytes()).expect("sent");
        let mut answer = String::new();
        while !answer.contains("\r\n\r\n") || answer.ends_with("\r\n\r\n") {
            let mut part = [0; 4096];
            let length = connection.read(&mut part).expect("an answer");
            assert!(length > 0, "closed after {answer:?}");
            answer.push_str(&harness::text(&part[..length]));
        }
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned()
    };
    let first = ask();
    assert!(kib() > 48 << 10, "{} KiB", kib());
    for _ in 0..2 {
        paged_out(&up);
        assert!(kib() < 4 << 10, "{} KiB", kib());
        assert_eq!(ask(), first, "the same process with the same content");
    }
    paged_out(&up);
    assert_eq!(up.ok("exec s -- echo hello"), "hello\n");

    // An order of states that cannot be.
    up.ok("annotate sandbox s hutch.dev/suspend-after=2s");
    let invalid = until(&up, "s", "invalid", |sandbox| says(sandbox, "SleepInvalid") == "True").to_string();
    assert!(
        invalid.contains("hutch.dev/page-out-after") && invalid.contains("less than hutch.dev/suspend-after")
    );
    up.ok("annotate sandbox s hutch.dev/suspend-after-");

    // The end of the node ends what is paged out.
    paged_out(&up);
    up.kill();
    hutch_testkit::wait::until("no process stays", || anonymous_kib(&marker).is_none());
    up.restart();
    up.ok("wait --for=condition=Ready sandbox/s --timeout=60s");
    paged_out(&up);
    up.ok("delete sandbox s --wait --timeout=60s");
    hutch_testkit::wait::until("no process stays", || anonymous_kib(&marker).is_none());
}

#[test]
fn removed_sleep_time_thaws_a_frozen_sandbox() {
    hutch_testkit::require!(root, kubectl, python);
    let (up, _) = start();
    sandbox(&up, "s", json!({}), json!({"hutch.dev/idle-after": "1s"}));
    frozen(&up, "s");
    until(&up, "s", "annotated", |s| s["metadata"]["annotations"]["hutch.dev/frozen-since"].is_string());
    up.ok("annotate sandbox s hutch.dev/idle-after=");
    until(&up, "s", "awake", |sandbox| {
        says(sandbox, "Frozen") == "absent"
            && sandbox["metadata"]["annotations"]["hutch.dev/frozen-since"].is_null()
    });
    up.ok("annotate sandbox s hutch.dev/idle-after-");
    frozen(&up, "s");
}

/// So many requests at once for a frozen sandbox: each is answered, once.
fn at_once(address: SocketAddr, count: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let one = async move || {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connected");
        stream.write_all(request("s").as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert_eq!(answer.split(' ').nth(1), Some("200"), "{answer}");
        answer.rsplit("\r\n\r\n").next().and_then(|body| body.parse::<usize>().ok()).expect("a number")
    };
    let mut numbers = runtime.block_on(futures::future::join_all((0..count).map(|_| one())));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "each was answered by a call of its own");
    assert_eq!(numbers.last().unwrap() - numbers[0], count - 1, "and none was sent twice");
}

/// Prints what it costs that a sandbox is frozen.
fn measure(up: &Up, address: SocketAddr) {
    let timed = || {
        let start = Instant::now();
        assert_eq!(ask(address, "s").0, "200");
        start.elapsed()
    };
    let mut asleep: Vec<_> = (0..10)
        .map(|_| {
            frozen(up, "s");
            timed()
        })
        .collect();
    let mut awake: Vec<_> = (0..50).map(|_| timed()).collect();
    for times in [&mut asleep, &mut awake] {
        times.sort();
    }
    println!("a request: awake p50 {:?}, frozen p50 {:?}, worst {:?}", awake[25], asleep[5], asleep[9]);
}

#[test]
fn idle_sandbox_is_suspended_and_a_connection_or_a_time_resumes_it() {
    hutch_testkit::require!(root, kubectl, python);
    let (up, address) = start();
    let own = json!({"hutch.dev/suspend-after": "2s", "hutch.dev/wake-on-connect": "true"});
    sandbox(&up, "s", own, json!({}));
    let suspended = |sandbox: &Value| says(sandbox, "Suspended") == "True";
    let asleep = until(&up, "s", "asleep", suspended);
    assert_eq!(asleep["spec"]["operatingMode"], "Suspended");
    let generation = asleep["metadata"]["generation"].to_string();
    assert_eq!(asleep["metadata"]["annotations"]["hutch.dev/asleep-generation"], generation.as_str());

    // The first request wakes it; as long as they come it stays awake. A machine that pauses may let it sleep.
    let stays_awake = || {
        let began = Instant::now();
        let mut awake = true;
        while began.elapsed() < Duration::from_secs(6) {
            assert_eq!(ask(address, "s").0, "200");
            awake &= get(&up, "s")["spec"]["operatingMode"] != "Suspended";
            std::thread::sleep(Duration::from_millis(100));
        }
        awake
    };
    assert!((0..5).any(|_| stays_awake()), "it falls asleep in use");

    until(&up, "s", "asleep again", suspended);
    up.ok("annotate sandbox s hutch.dev/wake-at=2026-01-01T00:00:00Z");
    until(&up, "s", "woken by the clock", |sandbox| {
        says(sandbox, "Ready") == "True" && sandbox["metadata"]["annotations"]["hutch.dev/wake-at"].is_null()
    });

    // What a user has suspended stays so.
    up.ok("annotate sandbox s hutch.dev/suspend-after-");
    assert_eq!(ask(address, "s").0, "200");
    let change = r#"{"spec":{"operatingMode":"Suspended"}}"#;
    up.ok_args(&["patch", "sandbox", "s", "--type=merge", "-p", change]);
    until(&up, "s", "suspended", suspended);
    assert_eq!(ask(address, "s").0, "502");
    let refused = up.kubectl("exec s -- true");
    let told = harness::text(&refused.stderr);
    assert!(told.contains("(NotFound)") && told.contains("Sandbox s is suspended"), "{told}");

    up.ok("annotate sandbox s hutch.dev/suspend-after=soon");
    until(&up, "s", "reported as an invalid duration", |sandbox| says(sandbox, "SleepInvalid") == "True");
}

#[test]
fn busy_sandbox_is_not_suspended() {
    hutch_testkit::require!(root, kubectl, python);
    let (up, _) = start();
    let work = "import threading\ndef work():\n  while True: pass\nthreading.Thread(target=work).start()\n";
    sandbox_of(&up, "s", &format!("{work}{SERVER}"), json!({"hutch.dev/suspend-after": "3s"}), json!({}));
    // A machine that pauses may let it sleep.
    let stays_awake = || {
        up.ok_args(&[
            "patch",
            "sandbox",
            "s",
            "--type=merge",
            "-p",
            r#"{"spec":{"operatingMode":"Running"}}"#,
        ]);
        up.ok("wait --for=condition=Ready sandbox/s --timeout=60s");
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(9) {
            if get(&up, "s")["spec"]["operatingMode"] != "Running" {
                return false;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        true
    };
    assert!((0..3).any(|_| stays_awake()), "it falls asleep at work");
}

#[test]
fn doctor_reports_what_an_idle_sandbox_can_become_here() {
    hutch_testkit::require!(root);
    let doctor = |option: &[&str]| {
        let output = Command::new(binary()).arg("doctor").args(option).output();
        String::from_utf8(output.expect("hutch doctor").stdout).expect("text")
    };
    let report: Value = serde_json::from_str(&doctor(&["--json"])).expect("JSON");
    let tiers = report["tiers"].as_array().expect("tiers");
    let names: Vec<_> = tiers.iter().map(|tier| tier["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["frozen", "paged out", "memory on disk", "disk only"]);
    let missing: Vec<_> = tiers.iter().map(|tier| tier["missing"].as_str()).collect();
    // Other tests of this file freeze Sandboxes.
    assert_eq!((missing[0], missing[3]), (None, None), "{report:#}");
    let no_swap = (report["swapBytes"] == 0).then_some("no swap: idle memory stays in RAM");
    assert_eq!(missing[1], no_swap, "{report:#}");
    let text = doctor(&[]);
    assert!(text.contains("\nidle: frozen                yes\n"), "{text}");
}
