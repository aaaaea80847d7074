//! curl, as a client that we did not write.
#![allow(dead_code)]

use std::io::Write;
use std::process::{Command, Stdio};

pub(crate) struct Fetched {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Fetched {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Fetches an address below a port; `body` goes through standard input for those arguments that name `@-`.
pub(crate) fn curl(port: u16, target: &str, arguments: &[&str], body: &[u8]) -> Fetched {
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
    // Who needs no body does not read it.
    let _ = child.stdin.take().unwrap().write_all(body);
    assert!(child.wait().unwrap().success(), "curl {arguments:?} {target}");
    let head = std::fs::read_to_string(head).unwrap();
    // The last answer counts, others are like 100; trailers come after its head.
    let head = head[head.rfind("HTTP/").unwrap()..].to_owned();
    let status = head.split(' ').nth(1).unwrap().trim().parse().unwrap();
    Fetched { status, head, body: std::fs::read(out).unwrap_or_default() }
}
