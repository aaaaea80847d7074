//! Users with client certificates: what they may do, and that deleting one ends what it has open.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::harness::{Up, binary, refused, running, text};

/// Runs `hutch user` with the admin credential.
fn user(up: &Up, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("user").args(words).arg("--kubeconfig").arg(up.kubeconfig());
    command.output().expect("hutch user runs")
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// kubectl with the credential of a user.
fn kubectl(kubeconfig: &Path, words: &str) -> Command {
    let mut command = Command::new(hutch_testkit::tool("kubectl").expect("kubectl"));
    command.arg("--kubeconfig").arg(kubeconfig).args(words.split(' '));
    command
}

#[test]
fn deleted_user_loses_its_exec_and_its_watch_at_once() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let file = up.folder().join("alice.kubeconfig");
    let path = file.to_str().expect("a path");
    succeeds(&user(&up, &["create", "alice", "--group", "devs", "--output", path]));
    assert_eq!(std::fs::metadata(&file).expect("the kubeconfig").mode() & 0o777, 0o600);
    refused(&user(&up, &["create", "alice"]), 1, &["alice", "hutch user delete alice"]);
    assert!(
        succeeds(&user(&up, &["list"]))
            .lines()
            .any(|line| line.starts_with("alice ") && line.ends_with("devs"))
    );
    let denied = kubectl(&file, "get pods").output().expect("kubectl");
    assert!(
        text(&denied.stderr).contains("User \"alice\" cannot list resource \"pods\""),
        "{}",
        text(&denied.stderr)
    );
    up.ok("create rolebinding devs --clusterrole=edit --group=devs");
    up.ok("run waiting --image=hutch/host --restart=Never --command -- sleep 1000");
    up.ok("wait pod/waiting --for=condition=Ready --timeout=30s");
    let open = |words: &str| {
        let mut command = kubectl(&file, words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kubectl")
    };
    let mut open =
        [open("exec waiting -- sleep 1234567"), open("get pods --watch"), open("logs --follow waiting")];
    while !running("sleep 1234567") {
        std::thread::sleep(Duration::from_millis(20));
    }
    succeeds(&user(&up, &["delete", "alice"]));
    for child in &mut open {
        let _ = child.wait().expect("kubectl ends");
    }
    let after = kubectl(&file, "get pods").output().expect("kubectl");
    assert!(text(&after.stderr).contains("Unauthorized"), "{}", text(&after.stderr));
    refused(&user(&up, &["delete", "alice"]), 1, &["alice"]);
}

#[test]
fn user_whose_kubeconfig_cannot_be_written_is_not_created() {
    hutch_testkit::require!(root);
    let up = Up::start(&[]);
    refused(&user(&up, &["create", "bob", "--output", "/proc/bob"]), 1, &["cannot write", "/proc/bob"]);
    assert!(!succeeds(&user(&up, &["list"])).contains("bob"));
    succeeds(&user(&up, &["create", "bob"]));
}
