//! Streams to processes: exec, terminals, attach, logs that are followed, and what happens when a client goes away.

use std::time::Duration;

use hutch_kubelet::{ExecRequest, Exit, Kubelet, LogRequest, TerminalSize};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::machine::{Machine, id};

fn command(command: &[&str]) -> ExecRequest {
    ExecRequest {
        command: command.iter().map(|text| (*text).to_owned()).collect(),
        stdin: true,
        stdout: true,
        stderr: true,
        ..ExecRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_output_and_the_end_of_both() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    machine.run("p", "exec sleep 1000", json!({})).await;
    let pod = machine.ready("p").await;
    let session = machine.node.exec(&id(&pod), command(&["sh", "-c", "wc -c; echo bad >&2"])).await.unwrap();
    let mut stdin = session.stdin.unwrap();
    // More than any buffer on the way, and not text.
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    stdin.write_all(&bytes).await.unwrap();
    stdin.shutdown().await.unwrap();
    drop(stdin);
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.unwrap().read_to_string(&mut out).await.unwrap();
    session.stderr.unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!((out.trim(), err.as_str(), session.exit.await), ("1048576", "bad\n", Exit::Code(0)));
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_a_size_and_a_path() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    machine.run("p", "exec sleep 1000", json!({})).await;
    let pod = machine.ready("p").await;
    let request =
        ExecRequest { tty: true, stderr: false, ..command(&["sh", "-c", "read x; stty size; tty; exit 5"]) };
    let session = machine.node.exec(&id(&pod), request).await.unwrap();
    session.resize.as_ref().unwrap().send(TerminalSize { columns: 91, rows: 37 }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    session.stdin.unwrap().write_all(b"go\n").await.unwrap();
    let mut out = String::new();
    session.stdout.unwrap().read_to_string(&mut out).await.unwrap();
    assert!(out.contains("37 91") && out.contains("/dev/pts/"), "{out}");
    assert_eq!(session.exit.await, Exit::Code(5));
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_client_went_away_is_ended() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    machine.run("p", "exec sleep 1000", json!({})).await;
    let pod = machine.ready("p").await;
    let count = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 7[7]7'"];
    let session = machine.node.exec(&id(&pod), command(&["sh", "-c", "sleep 777; true"])).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_ne!(machine.exec(&pod, &count).await.1, "0\n");
    drop(session);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(machine.exec(&pod, &count).await.1, "0\n");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_and_follow_see_what_the_main_process_prints() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let spec = json!({"main": {"stdin": true, "stdinOnce": true}, "restartPolicy": "Never"});
    machine.run("p", "echo begin; while read line; do echo got $line; done; echo end", spec).await;
    let pod = machine.ready("p").await;
    let follow = LogRequest { follow: true, ..LogRequest::default() };
    let mut log = machine.node.logs(&id(&pod), follow).await.unwrap();
    // Attached is what is printed from now on.
    while machine.log(&pod, LogRequest::default()).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut session =
        machine.node.attach(&id(&pod), ExecRequest { command: Vec::new(), ..command(&[]) }).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"one\n").await.unwrap();
    let mut answer = [0; 8];
    session.stdout.as_mut().unwrap().read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"got one\n");
    stdin.shutdown().await.unwrap();
    drop(stdin);
    let mut rest = String::new();
    session.stdout.take().unwrap().read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "end\n");
    assert_eq!(session.exit.await, Exit::Code(0));
    let mut all = String::new();
    log.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "begin\ngot one\nend\n");
    machine.phase("p", "Succeeded").await;
    machine.stop().await;
}
