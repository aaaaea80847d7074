//! Hostile code inside the sandbox does not stop the program from answering.

use std::io::{Read, Write};

use hutch_testkit::require;
use hutch_testkit::wait::until;
use serde_json::json;

use crate::curl::curl;
use crate::served::{Answer, Served, alive, connect, serve, serve_under};

fn execute(served: &Served, words: &[&str]) -> Answer {
    let body = json!({"config": {"command": words}}).to_string();
    let kind = ["-H", "Content-Type: application/json", "--data-binary", "@-"];
    curl(served.grpc, "/process.v1.ProcessService/Execute", &kind, body.as_bytes())
}

fn put(served: &Served, target: &str, content: &[u8]) -> Answer {
    curl(served.rest, target, &["-X", "PUT", "--data-binary", "@-"], content)
}

#[test]
fn a_fork_bomb_ends_with_its_client() {
    require!(root, curl, python);
    // With a user of its own, so that its process limit applies to no other test.
    let limited = ["setpriv", "--reuid=54321", "--clear-groups", "prlimit", "--nproc=96"];
    let served = serve_under(&limited);
    // Every process forks, and retries when it fails.
    let bomb = "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.05)\n";
    let body = json!({"config": {"command": ["python3", "-c", bomb]}}).to_string();
    let frame = [&[0][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), body.as_bytes()].concat();
    let mut bomb = connect(served.grpc);
    let head = "POST /process.v1.ProcessService/Start HTTP/1.1\r\nhost: x\r\ncontent-type: application/connect+json\r\n";
    write!(bomb, "{head}content-length: {}\r\n\r\n", frame.len()).unwrap();
    bomb.write_all(&frame).unwrap();
    until("no process can be started", || execute(&served, &["true"]).status == 500);
    for number in 0..20 {
        assert_eq!(curl(served.rest, "/v1/health", &[], b"").status, 200);
        assert_eq!(put(&served, &format!("/v1/files/{number}"), b"x").status, 204);
        assert_eq!(curl(served.rest, "/v1/files/", &[], b"").status, 200);
    }
    drop(bomb);
    until("processes can be started again", || execute(&served, &["true"]).status == 200);
    let own = served.pid().to_string();
    let children = move || std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
    until("all of its processes are buried", || children().is_empty());
}

#[test]
fn a_full_disk_is_reported_and_leaves_no_partial_file() {
    require!(root, curl);
    // The last argument is the base folder.
    let script = "for app; do :; done; mkdir -p $app; mount -t tmpfs -o size=1m none $app && exec \"$@\"";
    let served = serve_under(&["unshare", "--mount", "sh", "-c", script, "sh"]);
    assert_eq!(put(&served, "/v1/files/small", b"kept").status, 204);
    for target in ["/v1/files/large", "/v1/files/small"] {
        let full = put(&served, target, &vec![7; 5_000_000]);
        let expected = json!({"code": "INTERNAL", "message": "No space left on device"});
        assert_eq!((full.status, full.json()), (500, expected), "{target}");
    }
    let listed = curl(served.rest, "/v1/files/", &[], b"").json();
    let names: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["small"]);
    assert_eq!(curl(served.rest, "/v1/files/small", &[], b"").body, b"kept");
    assert_eq!(execute(&served, &["echo", "on"]).json()["stdout"], "b24K");
}

#[test]
fn a_shutdown_kills_processes_that_ignore_sigterm() {
    require!(curl);
    let mut served = serve();
    let body =
        json!({"config": {"command": ["sh", "-c", "trap '' TERM; sleep 84.5; sleep 84.5"]}}).to_string();
    let mut stream = connect(served.grpc);
    let head =
        "POST /process.v1.ProcessService/Execute HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    until("the command runs", || alive("sleep 84.5"));
    assert_eq!(served.stop().code(), Some(0));
    until("the command is gone", || !alive("sleep 84.5"));
}

#[test]
fn malformed_requests_are_refused() {
    let served = serve();
    let huge = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    for port in [served.port, served.rest, served.grpc] {
        for bytes in [
            &b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"[..],
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nX",
            b"GET / HTTP/1.1\r\nhost: x\r\n obs: fold\r\n\r\n",
            b"GET /\0 HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            huge.as_bytes(),
        ] {
            let mut stream = connect(port);
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let text = String::from_utf8_lossy(&answer);
            assert!(!text.starts_with("HTTP/1.1 2") || bytes.starts_with(b"POST"), "{text}");
            assert_eq!(text.matches("HTTP/1.1 ").count().min(1), text.matches("HTTP/1.1 ").count(), "{text}");
        }
    }
    assert_eq!(served.get("/").status, 200);
}
