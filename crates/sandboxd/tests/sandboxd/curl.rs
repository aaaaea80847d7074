//! curl, as an independent client.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::served::Answer;

/// Fetches a target on a port; `body` is the standard input of arguments with `@-`.
pub(crate) fn curl(port: u16, target: &str, arguments: &[&str], body: &[u8]) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    let (head, out) = (folder.path().join("head"), folder.path().join("body"));
    let mut child = Command::new("curl")
        .args(["--silent", "--show-error", "--path-as-is", "--max-time", "60", "--dump-header"])
        .arg(&head)
        .arg("--output")
        .arg(&out)
        .args(arguments)
        .arg(format!("http://127.0.0.1:{port}{target}"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // A request without a body need not read it.
    let _ = child.stdin.take().unwrap().write_all(body);
    assert!(child.wait().unwrap().success(), "curl {arguments:?} {target}");
    let head = std::fs::read_to_string(head).unwrap();
    // The last response counts, earlier ones are interim like 100; trailers follow its head.
    let head = head[head.rfind("HTTP/").unwrap()..].to_owned();
    let status = head.split(' ').nth(1).unwrap().trim().parse().unwrap();
    Answer { status, head, body: std::fs::read(out).unwrap_or_default() }
}
