//! `hutch suspend`, `hutch resume`.

use serde_json::Value;

use super::{refused, shared, text};

#[test]
fn sandbox_of_a_cluster_is_suspended_and_resumed_with_progress() {
    hutch_testkit::require!(root, kubernetes, kubectl);
    let shared = shared();
    shared.sandbox("sleeper", Value::Null);
    let before = shared.ok(&["exec", "sleeper", "--", "sh", "-c", "echo $POD_IP"]);
    let output = shared.run(&["suspend", "sleeper"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "sandbox sleeper is suspended\n".into())
    );
    // No terminal: a line for each thing that was waited for.
    let stderr = text(&output.stderr);
    let waits = |stderr: &str, start: &str| {
        stderr.lines().all(|line| line.starts_with(start)) && !stderr.contains('\r')
    };
    assert!(
        !stderr.is_empty() && waits(&stderr, "hutch: waiting for sandbox sleeper to be suspended: "),
        "{stderr}"
    );
    assert_eq!(
        shared.kubectl(&["get", "pod", "sleeper", "--ignore-not-found"]),
        "",
        "the Pod is gone after the command"
    );
    let exec = ["exec", "sleeper", "--", "true"];
    refused(&shared.run(&exec), 125, &["sleeper", "suspended", "--resume", "hutch resume sleeper"]);
    refused(&shared.run(&["logs", "sleeper"]), 1, &["suspended", "hutch resume sleeper"]);

    let output = shared.run(&["resume", "sleeper"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "sandbox sleeper is ready\n".into()));
    let stderr = text(&output.stderr);
    assert!(
        !stderr.is_empty() && waits(&stderr, "hutch: waiting for sandbox sleeper to be ready: "),
        "{stderr}"
    );
    let after = shared.ok(&["exec", "sleeper", "--", "sh", "-c", "echo $POD_IP"]);
    assert_ne!(before, after, "it is another Pod");

    assert_eq!(shared.ok(&["suspend", "--wait", "0", "sleeper"]), "sandbox sleeper is suspending\n");
    assert_eq!(shared.ok(&["exec", "--resume", "sleeper", "--", "sh", "-c", "echo $WHO"]), "sleeper\n");
}
