//! Ends at bad moments: a full disk at a fork and at a restore, death of `hutch up` during a snapshot and a fork of a running
//! Sandbox, and a claim that expires while its Sandbox is suspended.

use hutch_testkit::disk::Disk;
use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::harness::Up;
use crate::kept::{
    ROUTER, answer, apply, counted, images, images_have_objects, lives, object, outcome, ready, run,
    snapshot, snapshot_object, start, suspend,
};
use crate::state_attacks::fill;
use crate::state_crashes::{Step, complete, is_gone, pod};

/// A Sandbox whose memory others may start with.
fn shared(mut object: Value) -> Value {
    object["metadata"]["annotations"]["hutch.dev/shares-generators"] = "true".into();
    object
}

/// A fork of the Sandbox `s`, into one.
fn fork(name: &str) -> Value {
    json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxFork", "metadata": {"name": name},
        "spec": {"source": {"sandbox": "s"}, "replicas": 1, "content": "Full"}})
}

/// Reason and message of a fork that is over.
fn fork_outcome(up: &Up, name: &str) -> String {
    let path = "jsonpath={.status.conditions[0].reason}:{.status.conditions[0].message}";
    up.eventually(&format!("get sandboxfork {name} -o {path}"), |said| {
        said.starts_with("Completed") || said.starts_with("Failed")
    })
}

#[test]
fn full_disk_fails_a_fork_and_a_restore_by_name_and_harms_nothing() {
    hutch_testkit::require!(root, kubectl, runsc);
    let disk = Disk::new(2 << 30, &["mkfs.ext4", "-q", "-F", "-m", "0"]);
    let up = Up::start_on(&disk.path().join("data"), &ROUTER);
    run(&up, &shared(object("s")));
    assert_eq!(answer(&up, "s"), "0");
    up.ok_args(&["exec", "s", "--", "sh", "-c", "head -c 157286400 /dev/urandom > /scratch/large"]);
    snapshot(&up, "kept", "s", "Full");
    assert_eq!(answer(&up, "s"), "1");
    // Less than the volume of the snapshot needs, and more than that for which Pods are evicted.
    let filler = fill(&disk.path(), 120 << 20);
    apply(&up, &fork("f"));
    let said = fork_outcome(&up, "f");
    assert!(said.starts_with("Failed") && said.contains("disk"), "{said}");
    assert_eq!(up.ok("get sandboxes -o name"), "sandbox.agents.x-k8s.io/s\n");
    let mut copy = shared(object("copy"));
    copy["metadata"]["annotations"]["hutch.dev/restore-from"] = "kept".into();
    apply(&up, &copy);
    let path = "jsonpath={.status.containerStatuses[0].state.waiting}";
    let said = up.eventually(&format!("get pod copy -o {path} --ignore-not-found"), |said| {
        said.contains("RestoreFailed")
    });
    assert!(said.contains("the disk is full"), "{said}");
    assert_eq!(answer(&up, "s"), "2");
    std::fs::remove_file(filler).expect("removed");
    ready(&up, "copy");
    assert_eq!(answer(&up, "copy"), "1");
    assert_eq!(answer(&up, "s"), "3");
    apply(&up, &fork("g"));
    let said = fork_outcome(&up, "g");
    assert!(said.starts_with("Completed"), "{said}");
    assert_eq!((answer(&up, "g-0").as_str(), answer(&up, "s").as_str()), ("4", "4"));
    up.ok("delete sandboxes,sandboxforks,sandboxsnapshots --all");
    until("the images are gone", || images(&up).is_empty());
}

#[test]
fn server_that_is_killed_during_a_snapshot_or_a_fork_leaves_nothing_half_made() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    run(&up, &shared(counted("s")));
    for (kind, object) in [("sandboxsnapshot", snapshot_object("t", "s", "Full")), ("sandboxfork", fork("t"))]
    {
        for step in [Step::Checkpoint, Step::Partial, Step::Complete] {
            let (when, lived) = (format!("{kind}, {step:?}"), lives(&up, "s"));
            assert_eq!(answer(&up, "s"), "0", "{when}");
            apply(&up, &object);
            until("the step is reached", || step.is_reached(&up) || !complete(&up).is_empty());
            let status = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
            let is_acknowledged = up.ok(&format!("get {kind} t -o {status}")) == "True";
            up.kill();
            up.restart();
            assert!(images(&up).iter().all(|path| path.extension().is_none()), "{when}: half-made images");
            let said = if kind == "sandboxfork" { fork_outcome(&up, "t") } else { outcome(&up, "t") };
            assert!(!is_acknowledged || said.starts_with("Completed"), "{when}: {said}");
            ready(&up, "s");
            until("images are those of objects", || images_have_objects(&up));
            assert_eq!(lives(&up, "s"), lived + 1, "{when}: the source begins anew once");
            up.ok(&format!("delete {kind} t"));
            up.ok("delete sandbox t-0 --ignore-not-found");
            until("the image is gone", || images(&up).is_empty());
        }
    }
    let last = pod(&up);
    up.ok("delete sandbox s");
    is_gone(&last);
}

#[test]
fn claim_that_expires_while_its_sandbox_is_suspended_leaves_nothing() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    let (group, spec) = ("extensions.agents.x-k8s.io/v1beta1", object("any")["spec"].clone());
    for object in [
        json!({"apiVersion": group, "kind": "SandboxTemplate", "metadata": {"name": "t"}, "spec": spec}),
        json!({"apiVersion": group, "kind": "SandboxWarmPool", "metadata": {"name": "p"},
            "spec": {"replicas": 0, "sandboxTemplateRef": {"name": "t"}}}),
        json!({"apiVersion": group, "kind": "SandboxClaim", "metadata": {"name": "c"},
            "spec": {"warmPoolRef": {"name": "p"}}}),
    ] {
        apply(&up, &object);
    }
    up.ok("wait --for=condition=Ready sandboxclaim/c --timeout=120s");
    let name = up.ok("get sandboxclaim c -o jsonpath={.status.sandbox.name}");
    up.ok(&format!("annotate sandbox {name} hutch.dev/suspend-keeps=memory"));
    suspend(&up, &name);
    assert_eq!(images(&up).len(), 1);
    let lifecycle = json!({"shutdownTime": "2026-01-01T00:00:00Z", "shutdownPolicy": "Delete"});
    let patch = json!({"spec": {"lifecycle": lifecycle}}).to_string();
    up.ok_args(&["patch", "sandboxclaim", "c", "--type=merge", "-p", &patch]);
    up.eventually("get sandboxclaims,sandboxes,pods,services,sandboxsnapshots -o name", |names| {
        names.lines().all(|name| name == "service/kubernetes")
    });
    until("the image is gone", || images(&up).is_empty());
}
