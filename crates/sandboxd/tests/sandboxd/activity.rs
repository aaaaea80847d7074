//! `GET /v1/activity`: the activity that sandboxd reports.

use std::io::{BufRead, BufReader, Write};

use hutch_testkit::wait::until;
use serde_json::Value;

use crate::served::{Served, connect, read_answer, serve, serve_with};

fn report(served: &Served) -> Value {
    let mut stream = connect(served.rest);
    stream.write_all(b"GET /v1/activity HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let answer = read_answer(&mut BufReader::new(stream));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn idle(served: &Served) -> u64 {
    report(served)["idle_seconds"].as_u64().unwrap()
}

#[test]
fn open_requests_are_activity_and_idle_time_follows() {
    let served = serve();
    assert_eq!(report(&served)["requests"], 0);
    until("time runs from the start", || idle(&served) >= 1);
    let mut watch = connect(served.rest);
    watch.write_all(b"GET /v1/watch/ HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut watch = BufReader::new(watch);
    let mut line = String::new();
    watch.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    std::thread::sleep(std::time::Duration::from_millis(1200));
    assert_eq!(report(&served), serde_json::json!({"idle_seconds": 0, "requests": 1}), "still in progress");
    drop(watch);
    until("the client has gone", || report(&served)["requests"] == 0);
    until("time runs again", || idle(&served) >= 1);
    until("a command is activity", || {
        served.execute("true");
        idle(&served) == 0
    });
}

#[test]
fn probes_and_unauthenticated_requests_are_not_activity() {
    let token = "0123456789abcdef";
    let served = serve_with(&[("SANDBOXD_TOKEN", token)]);
    let ask = |port: u16, path: &str, more: &str| {
        let mut stream = connect(port);
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n").as_bytes()).unwrap();
        read_answer(&mut BufReader::new(stream))
    };
    let bearer = format!("authorization: Bearer {token}\r\n");
    assert_eq!(ask(served.rest, "/v1/activity", "").status, 401, "the activity needs the token");
    let idle = || ask(served.rest, "/v1/activity", &bearer).json()["idle_seconds"].as_u64().unwrap();
    until("none of these counts", || {
        assert_eq!(ask(served.port, "/", "").status, 200);
        assert_eq!(ask(served.port, "/list/", "").status, 401);
        assert_eq!(ask(served.rest, "/v1/health", "").status, 200);
        assert_eq!(ask(served.rest, "/v1/files/", "").status, 401);
        idle() >= 1
    });
    assert_eq!(ask(served.rest, "/v1/files/", &bearer).status, 200);
    assert_eq!(idle(), 0);
}
