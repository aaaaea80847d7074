//! Commands without a terminal: streams, exit statuses, names, signals.

use std::io::{Read, Write};
use std::process::Stdio;

use hutch_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};

use super::checks::{NOW, bytes_pass_both_ways_at_once, output_is_not_delayed};
use super::{hutch, ok, refused, run, started};
use crate::harness::{Up, running, text};

#[test]
fn command_runs_in_a_sandbox() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    streams_are_separate_and_the_status_is_that_of_the_command(&up);
    bytes_pass_both_ways_at_once(hutch(&up, &["exec", "-i", "notes", "--", "cat"]));
    output_is_not_delayed(hutch(&up, &[&["exec", "-i", "notes", "--"][..], &NOW].concat()));
    standard_input_is_not_read_without_the_flag(&up);
    failed_start_names_the_command(&up);
    missing_object_is_named(&up);
    a_signal_ends_the_command(&up);
    closed_output_ends_the_command(&up);
    a_shell_reads_a_script(&up);
}

/// The Sandbox may still be starting, which shows on standard error.
fn streams_are_separate_and_the_status_is_that_of_the_command(up: &Up) {
    let output = run(up, &["exec", "notes", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "out\n");
    assert!(text(&output.stderr).ends_with("err\n"), "{}", text(&output.stderr));
    let output = run(up, &["exec", "notes", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!((output.status.code(), output.stderr), (Some(137), Vec::new()));
}

fn standard_input_is_not_read_without_the_flag(up: &Up) {
    let mut child = hutch(up, &["exec", "notes", "--", "cat"]);
    let mut child = child.stdin(Stdio::piped()).spawn().expect("hutch starts");
    // Open here, ended inside.
    let _open = child.stdin.take();
    assert_eq!(child.wait().expect("wait").code(), Some(0));
}

fn failed_start_names_the_command(up: &Up) {
    refused(&run(up, &["exec", "notes", "--", "no-such-command"]), 127, &["notes", "no-such-command"]);
    refused(&run(up, &["exec", "notes", "--", "/no/such/command"]), 127, &["/no/such/command"]);
    refused(&run(up, &["exec", "notes", "--", "/etc/hostname"]), 126, &["/etc/hostname"]);
}

fn missing_object_is_named(up: &Up) {
    refused(
        &run(up, &["exec", "other", "--", "true"]),
        125,
        &["Sandbox or SandboxClaim other", "default", "kubectl get"],
    );
    refused(&run(up, &["exec", "-n", "nowhere", "notes", "--", "true"]), 125, &["nowhere"]);
    refused(&run(up, &["exec", "claim/notes", "--", "true"]), 125, &["SandboxClaim notes"]);
    refused(&run(up, &["exec", "-c", "side", "notes", "--", "true"]), 125, &["--container side", "main"]);
    refused(&run(up, &["exec", "notes"]), 125, &["COMMAND"]);
    refused(
        &run(up, &["exec", "--kubeconfig", "/nonexistent", "notes", "--", "true"]),
        125,
        &["--kubeconfig"],
    );
}

fn a_signal_ends_the_command(up: &Up) {
    for (signal, status, marker) in [(Signal::INT, 130, "86391"), (Signal::TERM, 143, "86392")] {
        let mut child =
            hutch(up, &["exec", "notes", "--", "sh", "-c", &format!("echo up; sleep {marker}; true")]);
        let mut child = child.stdout(Stdio::piped()).spawn().expect("hutch starts");
        let mut up = [0; 3];
        child.stdout.as_mut().expect("stdout").read_exact(&mut up).expect("it runs");
        kill_process(Pid::from_child(&child), signal).expect("signal");
        assert_eq!(child.wait().expect("wait").code(), Some(status));
        until("the command has ended", || !running(&format!("sleep {marker}")));
    }
}

fn closed_output_ends_the_command(up: &Up) {
    let mut child = hutch(up, &["exec", "notes", "--", "yes"]);
    let mut child = child.stdout(Stdio::piped()).spawn().expect("hutch starts");
    let mut some = [0; 2];
    child.stdout.take().expect("stdout").read_exact(&mut some).expect("some");
    assert_eq!(child.wait().expect("wait").code(), Some(141));
}

fn a_shell_reads_a_script(up: &Up) {
    let mut child = hutch(up, &["shell", "notes"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hutch starts");
    child.stdin.take().expect("stdin").write_all(b"echo \"[$BASH]\"\nexit 6\n").expect("written");
    let output = child.wait_with_output().expect("wait");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("[/usr/bin/bash]\n", Some(6)));
}

#[test]
fn claim_resolves_to_its_sandbox() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let file = up.folder().join("pool.yaml");
    let pool = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxTemplate\nmetadata: {name: two}\n\
        spec:\n  podTemplate:\n    spec:\n      terminationGracePeriodSeconds: 0\n      containers:\n\
        \x20     - {name: first, image: hutch/host, command: [sleep, infinity], env: [{name: WHO, value: first}]}\n\
        \x20     - {name: second, image: hutch/host, command: [sleep, infinity], env: [{name: WHO, value: second}]}\n\
        ---\napiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxWarmPool\nmetadata: {name: two}\n\
        spec: {replicas: 1, sandboxTemplateRef: {name: two}}\n";
    let claim = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxClaim\nmetadata: {name: mine}\n\
        spec: {warmPoolRef: {name: two}}\n";
    std::fs::write(&file, pool).expect("written");
    up.ok(&format!("create -f {}", file.display()));
    // With an empty pool, a Sandbox with the name of the claim would be created.
    up.ok("wait --for=jsonpath={.status.readyReplicas}=1 sandboxwarmpool/two --timeout=60s");
    std::fs::write(&file, claim).expect("written");
    up.ok(&format!("create -f {}", file.display()));
    // The claim may have no Sandbox yet: it is waited for.
    for (words, who) in [
        (&["exec", "mine", "--", "sh", "-c", "echo $WHO"][..], "first\n"),
        (&["exec", "-c", "second", "claim/mine", "--", "sh", "-c", "echo $WHO"], "second\n"),
    ] {
        assert_eq!(ok(&up, words), who);
    }
    refused(&run(&up, &["exec", "sandbox/mine", "--", "true"]), 125, &["no Sandbox mine"]);
    let name = up.ok("get sandboxclaim mine -o jsonpath={.status.sandbox.name}");
    assert_eq!(ok(&up, &["suspend", "mine"]), format!("sandbox {name} is suspended\n"));
}
