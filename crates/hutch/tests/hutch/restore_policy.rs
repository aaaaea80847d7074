//! Sandboxes whose snapshot cannot be restored: they wait, and say why, or start without it.

use std::path::PathBuf;

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::harness::{Up, text};
use crate::kept::{answer, counted, images, object, ready, resume, run, set, snapshots, start, suspend};

/// Changes the memory of a container in the only image.
fn spoil(up: &Up, container: &str) -> PathBuf {
    let pages = images(up)[0].join("memory").join(container).join("pages.img");
    let mut bytes = std::fs::read(&pages).expect("pages");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&pages, bytes).expect("written");
    pages
}

/// A condition of an object: its status, reason and message.
fn condition(kind: &str) -> String {
    let at = format!("{{.status.conditions[?(@.type==\"{kind}\")]");
    format!("jsonpath={at}.status}}/{at}.reason}}/{at}.message}}")
}

/// Returns the text of the events of the Sandboxes.
fn of_sandboxes(up: &Up) -> String {
    up.ok("get events --field-selector involvedObject.kind=Sandbox,reason=RestoreFailed -o jsonpath={.items[*].message}")
}

#[test]
fn sandbox_waits_for_its_memory_and_starts_anew_once_that_is_optional() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    run(&up, &object("s"));
    assert_eq!(answer(&up, "s"), "0");
    suspend(&up, "s");
    spoil(&up, "main");
    set(&up, "s", "Running");
    let said = up.eventually(&format!("get sandbox s -o {}", condition("Ready")), |said| {
        said.starts_with("False/RestoreFailed/")
    });
    assert!(said.contains("pages.img"), "{said}");
    let of_pod = up.ok(&format!("get pod s -o {}", condition("PodRestored")));
    assert!(of_pod.starts_with("False/RestoreFailed/") && of_pod.contains("pages.img"), "{of_pod}");
    assert_eq!(of_sandboxes(&up), "");

    let refused = up.kubectl("annotate sandbox s hutch.dev/restore-policy=Maybe");
    let error = text(&refused.stderr);
    assert!(error.contains("hutch.dev/restore-policy") && error.contains("`BestEffort`"), "{error}");
    up.ok("annotate sandbox s hutch.dev/restore-policy=BestEffort");
    ready(&up, "s");
    // What the image has of the volume is gone too.
    up.ok("exec s -- test ! -e /scratch/last");
    assert_eq!(answer(&up, "s"), "0");
    for (object, kind) in [("pod", "PodRestored"), ("sandbox", "Restored")] {
        let said = up.eventually(&format!("get {object} s -o {}", condition(kind)), |said| said.len() > 2);
        assert!(said.starts_with("False/StartedAnew/") && said.contains("pages.img"), "{said}");
    }
    let event = of_sandboxes(&up);
    assert!(event.contains("pages.img") && event.contains("BestEffort"), "{event}");
    until("the image is given up", || snapshots(&up).is_empty() && images(&up).is_empty());

    // It can be suspended with its new memory.
    suspend(&up, "s");
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "1");
    assert_eq!(up.ok(&format!("get sandbox s -o {}", condition("Restored"))), "//");
}

#[test]
fn all_containers_start_anew_if_one_cannot_be_restored() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    let mut two = object("s");
    two["metadata"]["annotations"]["hutch.dev/restore-policy"] = "BestEffort".into();
    let containers = &mut two["spec"]["podTemplate"]["spec"]["containers"];
    let other = json!({"name": "other", "image": "hutch/host", "command": ["sh", "-c", "touch /begun; exec sleep infinity"]});
    containers.as_array_mut().expect("containers").push(other);
    run(&up, &two);
    assert_eq!(answer(&up, "s"), "0");
    up.ok("exec s -c other -- touch /mark");
    suspend(&up, "s");
    spoil(&up, "other");
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "0", "its own memory could be restored, and does not fit the rest");
    up.ok("exec s -c other -- test -e /begun");
    up.ok("exec s -c other -- test ! -e /mark");
    until("the image is given up", || images(&up).is_empty());
    // That stays so in the next life of the node.
    up.kill();
    up.restart();
    let restored = format!("get pod s -o {}", condition("PodRestored"));
    ready(&up, "s");
    let said = up.eventually(&restored, |said| said.starts_with("False/StartedAnew/"));
    assert!(said.contains("pages.img"), "{said}");
}

#[test]
fn snapshot_that_is_gone_does_not_prevent_a_sandbox_for_which_it_is_optional() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    // In the Pod template, and with the native handler.
    let annotations = json!({"hutch.dev/restore-from": "absent", "hutch.dev/restore-policy": "BestEffort"});
    let sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "n"},
        "spec": {"podTemplate": {"metadata": {"annotations": annotations}, "spec": {"containers": [
            {"name": "main", "image": "hutch/host", "command": ["sleep", "infinity"]}]}}},
    });
    run(&up, &sandbox);
    let said = up.ok(&format!("get sandbox n -o {}", condition("Restored")));
    assert!(said.contains("StartedAnew") && said.contains("\"absent\": it does not exist"), "{said}");
    assert!(of_sandboxes(&up).contains("it does not exist"));
}

#[test]
fn command_after_a_restore_that_failed_is_tried_again_and_learns_the_generation() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    let mut counted = counted("s");
    let script = "echo $HUTCH_RESTORE $HUTCH_GENERATION $(cat /run/hutch/generation) >> /data/tries; \
        test $(wc -l < /data/tries) -ge 2";
    let hook = serde_json::to_string(&["/bin/sh", "-c", script]).expect("JSON");
    counted["metadata"]["annotations"]["hutch.dev/after-restore"] = hook.into();
    run(&up, &counted);
    assert_eq!(answer(&up, "s"), "0");
    assert_eq!(up.ok("exec s -- cat /run/hutch/generation"), "0\n");
    suspend(&up, "s");
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "1");
    let events = up.ok("get events -o json");
    assert!(events.contains("hutch.dev/after-restore: exit status 1"), "{events}");
    let tries = up.ok("exec s -- cat /data/tries");
    let tries: Vec<Vec<&str>> = tries.lines().map(|line| line.split(' ').collect()).collect();
    let [first, second] = &tries[..] else { panic!("{tries:?}") };
    for one in [first, second] {
        assert_eq!((one[0], one[1]), ("resume", one[2]), "{tries:?}");
    }
    let number = |one: &[&str]| one[1].parse::<u64>().expect("a number");
    assert!(number(first) > 0 && number(second) > number(first), "{tries:?}");
    let shown: Value = serde_json::from_str(&up.ok("get pod s -o json")).expect("JSON");
    assert_eq!(shown["status"]["containerStatuses"][0]["restartCount"], 1, "{shown:#}");
}
