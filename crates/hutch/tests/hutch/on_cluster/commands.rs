//! `hutch exec`, `hutch shell`, `hutch logs`.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use super::{Shared, refused, shared, text};
use crate::client_commands::checks::{NOW, bytes_pass_both_ways_at_once, output_is_not_delayed};

#[test]
fn command_runs_in_a_sandbox_of_a_cluster() {
    hutch_testkit::require!(root, kubernetes, kubectl);
    let shared = shared();
    shared.sandbox("commands", Value::Null);
    // It may still be starting: the command waits, and standard error reports that.
    let output = shared.run(&["exec", "commands", "--", "sh", "-c", "echo out $WHO; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "out commands\n");
    assert!(text(&output.stderr).ends_with("err\n"), "{}", text(&output.stderr));
    let output = shared.run(&["exec", "commands", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(137), String::new()));
    bytes_pass_both_ways_at_once(shared.hutch(&["exec", "-i", "commands", "--", "cat"]));
    failed_start_names_the_command(shared);
    a_shell_reads_a_script(shared);
    output_is_not_delayed(shared.hutch(&[&["exec", "-i", "commands", "--"][..], &NOW].concat()));
}

fn failed_start_names_the_command(shared: &Shared) {
    let exec = |command: &str| shared.run(&["exec", "commands", "--", command]);
    refused(&exec("no-such-command"), 127, &["commands", "no-such-command"]);
    refused(&exec("/no/such/command"), 127, &["/no/such/command"]);
    refused(&exec("./app"), 126, &["./app"]);
    let other = shared.run(&["exec", "-c", "side", "commands", "--", "true"]);
    refused(&other, 125, &["--container side", "main"]);
    refused(&shared.run(&["exec", "missing", "--", "true"]), 125, &["Sandbox or SandboxClaim missing"]);
}

fn a_shell_reads_a_script(shared: &Shared) {
    let mut child = shared.hutch(&["shell", "commands"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hutch starts");
    child.stdin.take().expect("stdin").write_all(b"echo \"[$WHO]\"\nexit 6\n").expect("written");
    let output = child.wait_with_output().expect("wait");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("[commands]\n", Some(6)));
}

#[test]
fn claim_resolves_to_its_sandbox_on_a_cluster() {
    hutch_testkit::require!(root, kubernetes, kubectl);
    let shared = shared();
    let manifest = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxTemplate\nmetadata: {name: two}\n\
        spec:\n  podTemplate:\n    spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n\
        \x20     - {name: first, image: i, command: [sleep, infinity], env: [{name: WHO, value: first}]}\n\
        \x20     - {name: second, image: i, command: [sleep, infinity], env: [{name: WHO, value: second}]}\n\
        ---\napiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxWarmPool\nmetadata: {name: two}\n\
        spec: {replicas: 1, sandboxTemplateRef: {name: two}}\n\
        ---\napiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxClaim\nmetadata: {name: mine}\n\
        spec: {warmPoolRef: {name: two}}\n";
    let file = shared.plane.file("claim.yaml");
    std::fs::write(&file, manifest).expect("written");
    shared.kubectl(&["create", "-f", &file]);
    assert_eq!(shared.ok(&["exec", "mine", "--", "sh", "-c", "echo $WHO"]), "first\n");
    assert_eq!(shared.ok(&["exec", "-c", "second", "claim/mine", "--", "sh", "-c", "echo $WHO"]), "second\n");
}

#[test]
fn log_of_a_sandbox_of_a_cluster_is_read_and_followed() {
    hutch_testkit::require!(root, kubernetes, kubectl);
    let shared = shared();
    let script = "for i in 1 2 3; do echo line $i; done; while sleep 0.1; do echo later; done";
    shared.sandbox("talker", json!([{"name": "main", "image": "i", "command": ["sh", "-c", script]}]));
    shared.ready("talker");
    until("it has printed something", || shared.ok(&["logs", "talker"]).contains("later"));
    assert!(shared.ok(&["logs", "talker"]).starts_with("line 1\nline 2\nline 3\n"));
    assert_eq!(shared.ok(&["logs", "--tail", "1", "-c", "main", "talker"]), "later\n");
    assert!(shared.ok(&["logs", "--since", "1h", "talker"]).starts_with("line 1\n"));
    let mut follow = shared.hutch(&["logs", "-f", "--tail", "1", "talker"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().expect("hutch starts");
    let lines = BufReader::new(follow.stdout.take().expect("stdout")).lines();
    assert_eq!(lines.map_while(Result::ok).filter(|line| line == "later").take(5).count(), 5);
    // The next line ends it, because the reader has gone.
    assert_eq!(follow.wait().expect("wait").code(), Some(141));
    refused(&shared.run(&["logs", "-c", "side", "talker"]), 1, &["--container side", "main"]);
}
