//! kubectl in the Pod of a Sandbox.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::Value;

use super::{Shared, shared, text};
use crate::client_commands::checks::same;

#[test]
fn kubectl_exec_cp_port_forward_and_logs_work() {
    hutch_testkit::require!(root, kubernetes, kubectl);
    let shared = shared();
    shared.sandbox("pod", Value::Null);
    shared.ready("pod");
    let exec = ["exec", "pod", "--", "sh", "-c", "echo $WHO; exit 9"];
    let output = shared.command("kubectl", &exec).output().expect("kubectl starts");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("pod\n", Some(9)));
    let mut child = shared.command("kubectl", &["exec", "-i", "pod", "--", "sh"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("kubectl starts");
    child.stdin.take().expect("stdin").write_all(b"echo in; exit 0\n").expect("written");
    assert_eq!(text(&child.wait_with_output().expect("wait").stdout), "in\n");
    assert!(shared.kubectl(&["logs", "pod"]).contains("serving"));

    let here = tempfile::tempdir().expect("a folder");
    let path = |name: &str| here.path().join(name).display().to_string();
    std::fs::create_dir_all(here.path().join("tree/deep")).expect("mkdir");
    std::fs::write(here.path().join("tree/deep/bytes"), vec![7; 1 << 20]).expect("written");
    shared.kubectl(&["cp", &path("tree"), "pod:app/tree"]);
    shared.kubectl(&["cp", "pod:app/tree", &path("back")]);
    same(&here.path().join("tree"), &here.path().join("back"));

    a_forward_reaches_the_pod_and_ends_at_its_next_use_without_it(shared);
}

/// Returns the answer of the Pod's sandboxd; nothing if the connection breaks.
fn asked(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("kubectl listens");
    let mut answer = String::new();
    let _ = stream.write_all(b"GET /v1/health HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n");
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn forward(shared: &Shared) -> (Child, u16) {
    let mut command = shared.command("kubectl", &["port-forward", "--address=127.0.0.1", "pod/pod", ":8080"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("kubectl starts");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let line = lines.next().expect("a line");
    // It continues to print, and must not stop at a closed pipe.
    std::thread::spawn(move || lines.count());
    let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
    (child, port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{line}")))
}

fn a_forward_reaches_the_pod_and_ends_at_its_next_use_without_it(shared: &Shared) {
    let (mut child, port) = forward(shared);
    for _ in 0..3 {
        let answer = asked(port);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("ok"), "{answer}");
    }
    shared.ok(&["suspend", "pod"]);
    // Neither a kubelet nor kube-apiserver reports to kubectl that the Pod has gone.
    assert_eq!(asked(port), "");
    assert_eq!(child.wait().expect("wait").code(), Some(1));
}
