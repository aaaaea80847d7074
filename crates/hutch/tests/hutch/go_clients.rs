//! Programs of client-go and controller-runtime against `hutch up`: the checks are in `tests/go`.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Up, text};

/// Number of checks of the program.
const CHECKS: usize = 18;

#[test]
fn client_go_and_controller_runtime_find_what_they_find_in_kubernetes() {
    hutch_testkit::require!(root, go_clients);
    let up = Up::start(&[]);
    let program = hutch_testkit::tool("go-clients").expect("a program");
    let mut command = Command::new(program);
    let output =
        command.env("KUBECONFIG", up.kubeconfig()).stdin(Stdio::null()).output().expect("go-clients");
    let (printed, said) = (text(&output.stdout), text(&output.stderr));
    let mut failed = Vec::new();
    for line in printed.lines() {
        let check: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no check: {line}"));
        failed.extend(check["error"].as_str().map(|error| format!("{}: {error}", check["name"])));
    }
    assert!(failed.is_empty() && output.status.success(), "{}\n{said}", failed.join("\n"));
    assert_eq!(printed.lines().count(), CHECKS, "{printed}");
}
