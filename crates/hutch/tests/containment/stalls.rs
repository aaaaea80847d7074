//! Code inside that stops or crowds what starts in its sandbox does not hold up the server or other sandboxes.

use std::time::Instant;

use serde_json::json;

use crate::harness::{PATIENCE, Up, succeeded};
use crate::ordinary::apply;

/// Stops every process that it may signal, again and again.
const STOPPER: &str = "import os, signal\n\
    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
    while True:\n\
    \x20   try: os.kill(-1, signal.SIGSTOP)\n\
    \x20   except ProcessLookupError: pass\n";

#[test]
fn stopped_children_of_one_sandbox_do_not_stall_another() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start(&[]);
    let pod = |name: &str, command: serde_json::Value, extra: serde_json::Value| {
        let mut container = json!({"name": "c", "image": "hutch/host", "command": command});
        for (key, value) in extra.as_object().expect("object") {
            container[key] = value.clone();
        }
        apply(
            &up,
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}),
        );
    };
    // Each probe starts a process that is stopped before or after its program runs.
    let probe = json!({"readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 1,
        "failureThreshold": 1000}});
    for number in 0..6 {
        pod(&format!("stopper-{number}"), json!(["python3", "-c", STOPPER]), probe.clone());
    }
    pod("quiet", json!(["sleep", "1000000"]), json!({}));
    up.ok("wait --for=condition=Ready pod/quiet --timeout=60s");
    up.eventually("get pods -o jsonpath={.items[*].status.phase}", |phases| {
        phases.split_whitespace().filter(|phase| *phase == "Running").count() == 7
    });
    // Requests for more processes than the channel of a jail holds.
    let mut clients: Vec<_> = (0..6)
        .flat_map(|number| (0..3).map(move |_| number))
        .map(|number| {
            let name = format!("stopper-{number}");
            up.kubectl_command(&["exec", &name, "--", "true"]).spawn().expect("kubectl")
        })
        .collect();
    let started = Instant::now();
    for _ in 0..10 {
        let output = up.kubectl("exec quiet -- echo through");
        assert_eq!(succeeded("exec", &output), "through\n");
        assert!(started.elapsed() < PATIENCE, "the other sandboxes hold this one up");
    }
    for client in &mut clients {
        let _ = client.kill();
        let _ = client.wait();
    }
    up.ok("delete pod --all --wait=true --timeout=60s");
}
