//! Code inside that stops or crowds what starts in its sandbox does not hold up the server or other sandboxes.

use serde_json::json;

use crate::harness::{Up, succeeded};
use crate::ordinary::apply;

/// Stops every process that it may signal, again and again, for ten seconds.
const STOPPER: &str = "import os, signal, time\n\
    end = time.monotonic() + 10\n\
    while time.monotonic() < end:\n\
    \x20   try: os.kill(-1, signal.SIGSTOP)\n\
    \x20   except ProcessLookupError: pass\n";

#[test]
fn stopped_children_block_no_sandbox() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start(&[]);
    let pod = |name: &str, command: serde_json::Value| {
        apply(
            &up,
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "c", "image": "hutch/host", "command": command}]}}),
        );
    };
    pod("quiet", json!(["sleep", "1000000"]));
    pod("stopper", json!(["python3", "-c", STOPPER]));
    up.ok("wait --for=condition=Ready pod/quiet pod/stopper --timeout=60s");
    let mut clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = up.kubectl_command(&["exec", "stopper", "--", "true"]);
            client.stderr(std::process::Stdio::null()).spawn().expect("kubectl")
        })
        .collect();
    for _ in 0..10 {
        let output = up.kubectl("exec quiet -- echo through");
        assert_eq!(succeeded("exec", &output), "through\n");
    }
    // Init sees the end of the main process, whatever became of what it started later.
    up.eventually("get pod stopper -o jsonpath={.status.phase}", |phase| phase == "Succeeded");
    for client in &mut clients {
        let _ = client.kill();
        let _ = client.wait();
    }
}
