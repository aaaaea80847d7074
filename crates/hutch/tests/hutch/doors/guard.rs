//! `hutch mcp-guard`: a server of MCP on standard input and output, whose calls are decided.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hutch_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Site;
use crate::harness::{HUTCH, refused, text};

/// A server of MCP: raw JSON-RPC, one message on a line. Each call that arrives is a line in a file.
const SERVER: &str = r#"
import json, signal, sys, time
calls = open(sys.argv[1], "a")
def stop(number, frame):
    print("server got", number, file=calls, flush=True)
    sys.exit(40 + number)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, stop)
def send(message):
    print(json.dumps(message), flush=True)
print("Starting the server ...", flush=True)
for line in sys.stdin:
    messages = json.loads(line)
    for message in messages if isinstance(messages, list) else [messages]:
        print(message.get("method"), message.get("params", {}).get("name"), file=calls, flush=True)
        method, answer = message.get("method"), {"jsonrpc": "2.0", "id": message.get("id")}
        if method == "tools/list":
            names = ["read_file", "read_secret", "delete", "echo", "exit"]
            send(answer | {"result": {"tools": [{"name": name, "inputSchema": {}} for name in names]}})
        elif method == "tools/call" and message["params"]["name"] == "exit":
            send(answer | {"result": "x" * 500000})
            sys.exit(7)
        elif "id" in message:
            send(answer | {"result": message.get("params")})
print("end of input", file=calls, flush=True)
sys.exit(3)
"#;

/// A guard with a server.
struct Guard {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    calls: std::path::PathBuf,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rules() -> Value {
    json!({"rules": [
        {"name": "tools", "hosts": ["stdio"], "mcp": [
            {"tools": ["read_*", "echo", "exit"]}, {"tools": ["read_secret"], "decision": "Deny"},
        ]},
        {"name": "web", "any": true},
    ]})
}

impl Guard {
    fn start(site: &Site) -> Guard {
        let policy = site.policy("tools", &rules());
        let calls = site.path("calls");
        let _ = std::fs::remove_file(&calls);
        let mut command = Command::new(HUTCH);
        command.args(["mcp-guard", "--policy", &policy, "--", "python3", "-c", SERVER]).arg(&calls);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("hutch");
        let output = BufReader::new(child.stdout.take().expect("output"));
        Guard { input: child.stdin.take(), output, child, calls }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("input"), "{line}").expect("written");
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.calls).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a pid");
        kill_process(pid, signal).expect("a signal");
    }

    /// Waits for the end; returns the status and standard error.
    fn end(&mut self) -> (Option<i32>, String) {
        self.input = None;
        let mut errors = String::new();
        self.child.stderr.take().expect("errors").read_to_string(&mut errors).expect("text");
        (self.child.wait().expect("ends").code(), errors)
    }
}

fn call(id: impl Into<Value>, tool: &str) -> String {
    let params = json!({"name": tool, "arguments": {}});
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": params}).to_string()
}

#[test]
fn refused_calls_are_answered_and_never_reach_the_server() {
    hutch_testkit::require!(python);
    let site = Site::new();
    let mut guard = Guard::start(&site);
    guard.send(r#"{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"a": 1}}"#);
    assert_eq!(guard.receive(), json!({"jsonrpc": "2.0", "id": 0, "result": {"a": 1}}));
    guard.send(r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#);
    guard.send(r#"{"jsonrpc": "2.0", "id": "list", "method": "tools/list"}"#);
    let list = guard.receive();
    let names: Vec<&str> = list["result"]["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| tool["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["read_file", "echo", "exit"]);
    guard.send(&call(1, "read_file"));
    assert_eq!(guard.receive()["result"]["name"], "read_file");
    for (id, line) in [
        (json!(2), call(2, "delete")),
        (json!("three"), call("three", "read_secret")),
        (json!(4), call(4, "read_file").replacen('{', r#"{"method": "ping", "#, 1)),
        (json!(5), call(5, "read_file").replacen('{', r#"{"METHOD": "ping", "#, 1)),
        (
            json!(6),
            r#"{"jsonrpc": "2.0", "id": 6, "method": "resources/read", "params": {"uri": "file:///etc"}}"#
                .into(),
        ),
        (Value::Null, "delete".into()),
        (Value::Null, format!("{{\"a\": \"{}\"}}", "x".repeat(5 << 20))),
        (
            json!(7),
            format!(
                "{{\"jsonrpc\": \"2.0\", \"id\": 7, \"method\": \"ping\", \"params\":\r{}\r}}",
                call(8, "delete")
            ),
        ),
    ] {
        guard.send(&line);
        let answer = guard.receive();
        assert_eq!(answer["id"], id, "{answer}");
        assert!(
            answer["error"]["message"].as_str().is_some_and(|text| text.starts_with("refused")),
            "{answer}"
        );
    }
    guard.send(&format!(
        "[{}, {}, {{\"jsonrpc\": \"2.0\", \"method\": \"notifications/x\"}}]",
        call(9, "echo"),
        call(10, "delete")
    ));
    let answers = guard.receive();
    assert_eq!(
        (&answers[0]["id"], &answers[1]["id"], answers.as_array().map(Vec::len)),
        (&json!(9), &json!(10), Some(2))
    );
    guard.send(r#"{"jsonrpc": "2.0", "method": "resources/unsubscribe"}"#);
    guard.send(&format!("[{}, {}]", call(11, "echo"), call(12, "read_file")));
    assert_eq!((guard.receive()["id"].clone(), guard.receive()["id"].clone()), (json!(11), json!(12)));
    let (status, errors) = guard.end();
    assert_eq!(status, Some(3), "{errors}");
    assert_eq!(
        guard.calls(),
        [
            "initialize None",
            "notifications/initialized None",
            "tools/list None",
            "tools/call read_file",
            "tools/call echo",
            "tools/call read_file",
            "end of input"
        ]
    );
    let lines: Vec<Value> = errors.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let count = |decision: &str| lines.iter().filter(|line| line["decision"] == decision).count();
    // A line of the server that is no message is refused too.
    assert_eq!((count("allow"), count("deny")), (5, 11), "{errors}");
    let denied = lines.iter().find(|line| line["calls"][0] == "tools/call read_secret").expect("a line");
    assert_eq!(
        (&denied["destination"], &denied["policy"], &denied["rule"]),
        (&json!("stdio"), &json!("tools"), &json!("tools"))
    );
    assert!(lines.iter().any(|line| line["destination"] == "client"), "{errors}");
}

#[test]
fn messages_that_are_too_long_are_answered_with_their_ids() {
    hutch_testkit::require!(python);
    let site = Site::new();
    let mut guard = Guard::start(&site);
    // The server writes six bytes for each of these characters.
    let arguments = json!({"a": "\u{e9}".repeat(1 << 20)}).to_string();
    for (id, line) in [
        (json!(1), call(1, &"x".repeat(5 << 20))),
        (json!("two"), call("two", "echo").replace("{}", &arguments)),
    ] {
        guard.send(&line);
        let answer = guard.receive();
        assert_eq!(answer["id"], id, "{answer}");
        let message = answer["error"]["message"].as_str().expect("an error");
        assert!(message.starts_with("refused") && message.contains("too long"), "{message}");
    }
    guard.send(&call(3, "echo"));
    assert_eq!(guard.receive()["id"], 3);
}

#[test]
fn end_of_the_server_is_the_end_and_its_last_answer_arrives() {
    hutch_testkit::require!(python);
    let site = Site::new();
    let mut guard = Guard::start(&site);
    guard.send(&call(1, "exit"));
    // Its input stays open, and what it has written is larger than a pipe.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(guard.receive()["result"].as_str().map(str::len), Some(500_000));
    assert_eq!(guard.child.wait().expect("ends").code(), Some(7));
}

#[test]
fn signals_are_passed_on_and_the_client_that_goes_ends_the_server() {
    hutch_testkit::require!(python);
    let site = Site::new();
    for (signal, status) in [(Signal::TERM, 55), (Signal::USR1, 50)] {
        let mut guard = Guard::start(&site);
        guard.send(&call(1, "echo"));
        guard.receive();
        guard.signal(signal);
        assert_eq!(guard.child.wait().expect("ends").code(), Some(status));
        assert_eq!(guard.calls().len(), 2, "{:?}", guard.calls());
    }
    // Killed by a signal.
    let policy = site.policy("tools", &rules());
    let run = |script: &str| {
        let mut guard = Command::new(HUTCH);
        guard.args(["mcp-guard", "--policy", &policy, "--", "sh", "-c", script]).stdin(Stdio::null());
        guard.output().expect("hutch")
    };
    assert_eq!(run("kill -9 $$").status.code(), Some(137));
    // Another process holds the output open.
    let begun = Instant::now();
    let output = run("sleep 120 2>/dev/null & echo '{\"a\": 1}'");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "{\"a\": 1}\n"));
    assert!(begun.elapsed() < Duration::from_secs(115), "{:?}", begun.elapsed());
    // The client reads no more.
    let mut guard = Guard::start(&site);
    guard.send(&call(1, "echo"));
    guard.receive();
    let errors = guard.child.stderr.take().expect("errors");
    std::thread::spawn(move || BufReader::new(errors).lines().for_each(drop));
    guard.output = empty();
    guard.send(&call(2, "echo"));
    guard.send(&call(3, "delete"));
    until("the server has ended", || guard.calls().last().is_some_and(|line| line == "end of input"));
    assert_eq!(guard.child.wait().expect("ends").code(), Some(3));
}

/// Returns an output that has ended.
fn empty() -> BufReader<ChildStdout> {
    let mut other = Command::new("true").stdout(Stdio::piped()).spawn().expect("true");
    other.wait().expect("ends");
    BufReader::new(other.stdout.take().expect("output"))
}

#[test]
fn slow_client_gets_everything() {
    hutch_testkit::require!(python);
    let site = Site::new();
    let mut guard = Guard::start(&site);
    let count = 3000;
    let mut input = guard.input.take().expect("input");
    let writer = std::thread::spawn(move || {
        for id in 0..count {
            let tool = if id % 3 == 0 { "delete" } else { "echo" };
            let padding = "y".repeat(1000);
            let line =
                call(id, tool).replace("\"arguments\":{}", &format!("\"arguments\":{{\"a\":\"{padding}\"}}"));
            writeln!(input, "{line}").expect("written");
        }
    });
    let mut errors = guard.child.stderr.take().expect("errors");
    let logged = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).expect("text");
        text.lines().count()
    });
    std::thread::sleep(Duration::from_secs(1));
    let mut ids: Vec<i64> = (0..count).map(|_| guard.receive()["id"].as_i64().expect("a number")).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..count).collect::<Vec<_>>());
    writer.join().expect("written");
    assert_eq!(guard.child.wait().expect("ends").code(), Some(3));
    // One more for the first line of the server.
    assert_eq!(logged.join().expect("read"), 3001);
}

#[test]
fn policy_without_a_rule_for_it_and_missing_servers_are_refused() {
    let site = Site::new();
    let web = site.policy("web", &json!({"rules": [{"name": "web", "any": true}]}));
    let tools = site.policy("tools", &rules());
    let run = |arguments: &[&str]| {
        Command::new(HUTCH).arg("mcp-guard").args(arguments).stdin(Stdio::null()).output().expect("hutch")
    };
    refused(&run(&["--policy", &web, "--", "true"]), 125, &["--policy", "hosts: [stdio]"]);
    refused(&run(&["--policy", &tools, "--", "/nonexistent/server"]), 127, &["/nonexistent/server"]);
    refused(&run(&["--policy", &tools]), 125, &["COMMAND"]);
    refused(&run(&["--", "true"]), 125, &["--policy"]);
    assert_eq!(run(&["--policy", &tools, "--", "true"]).status.code(), Some(0));
}
