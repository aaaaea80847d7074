//! Bounds of the snapshots of a namespace and of a node.

use serde_json::{Value, json};

use crate::harness::{Up, text};
use crate::kept::{self, apply, outcome, ready, resume, snapshot_object, suspend};

/// A native Sandbox that can be paused.
fn sandbox(name: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": {"hutch.dev/idle-after": ""}},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "hutch/host", "command": ["sleep", "infinity"]}]}}},
    })
}

/// Makes a snapshot. Returns reason and message of its end.
fn snapshot(up: &Up, name: &str, sandbox: &str) -> String {
    apply(up, &snapshot_object(name, sandbox, "Filesystem"));
    outcome(up, name)
}

#[test]
fn namespace_keeps_the_last_snapshots_of_each_sandbox_and_those_that_are_named() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    for (key, value) in [("keep-last", "0"), ("keep-last", "many"), ("bytes", "much")] {
        let refused = up.kubectl(&format!("annotate namespace default hutch.dev/snapshots-{key}={value}"));
        let error = text(&refused.stderr);
        assert!(error.contains(&format!("metadata.annotations[hutch.dev/snapshots-{key}]")), "{error}");
    }
    up.ok("annotate namespace default hutch.dev/snapshots-keep-last=2");
    for name in ["a", "b"] {
        apply(&up, &sandbox(name));
        ready(&up, name);
    }
    assert!(snapshot(&up, "of-b", "b").starts_with("Completed"));
    for name in ["named", "shown"] {
        assert!(snapshot(&up, name, "a").starts_with("Completed"));
    }
    let mut template = sandbox("t");
    template["kind"] = "SandboxTemplate".into();
    template["apiVersion"] = "extensions.agents.x-k8s.io/v1beta1".into();
    template["spec"]["podTemplate"]["metadata"] =
        json!({"annotations": {"hutch.dev/restore-from": "named", "podsnapshot.gke.io/ps-name": "shown"}});
    apply(&up, &template);
    for name in ["one", "two", "three"] {
        assert!(snapshot(&up, name, "a").starts_with("Completed"));
        // Times of completion are whole seconds.
        let second =
            || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
        let now = second();
        hutch_testkit::wait::until("the next second", || second() > now);
    }
    let left = "sandboxsnapshot.hutch.dev/named\nsandboxsnapshot.hutch.dev/of-b\nsandboxsnapshot.hutch.dev/shown\n\
        sandboxsnapshot.hutch.dev/three\nsandboxsnapshot.hutch.dev/two\n";
    up.eventually("get sandboxsnapshots -o name", |names| names == left);
    hutch_testkit::wait::until("images go with their objects", || kept::images(&up).len() == 5);
    let events = deletions(&up, "hutch.dev/snapshots-keep-last");
    assert!(events.iter().all(|event| event["involvedObject"]["name"] == "a"), "{events:#?}");
    let messages: Vec<_> = events.iter().filter_map(|event| event["message"].as_str()).collect();
    assert!(messages.len() == 1 && messages[0].contains("\"one\""), "{messages:?}");
}

/// Events of deleted snapshots, once there is one with this word.
fn deletions(up: &Up, word: &str) -> Vec<Value> {
    let get =
        "get events --field-selector reason=SnapshotDeleted,involvedObject.kind=Sandbox,type=Normal -o json";
    let events: Value = serde_json::from_str(&up.eventually(get, |text| text.contains(word))).expect("JSON");
    events["items"].as_array().expect("a list").clone()
}

#[test]
fn snapshot_whose_time_is_over_is_deleted_with_an_event() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    apply(&up, &sandbox("a"));
    ready(&up, "a");
    let mut short = snapshot_object("short", "a", "Filesystem");
    short["spec"]["ttl"] = "1s".into();
    apply(&up, &short);
    let events = deletions(&up, "spec.ttl");
    assert_eq!(events.len(), 1, "{events:#?}");
    assert!(events[0]["message"].as_str().is_some_and(|text| text.contains("\"short\"")), "{events:#?}");
    up.eventually("get sandboxsnapshots -o name", |names| names.is_empty());
}

#[test]
fn snapshots_beyond_a_bound_are_refused_by_name_and_suspends_are_not() {
    hutch_testkit::require!(root, kubectl);
    let mut up = kept::start();
    apply(&up, &sandbox("a"));
    ready(&up, "a");
    up.ok_args(&["exec", "a", "--", "sh", "-c", "head -c 1M /dev/urandom > /opt/file"]);
    assert!(snapshot(&up, "first", "a").starts_with("Completed"));
    up.ok("annotate namespace default hutch.dev/snapshots-bytes=1500k");
    let said = snapshot(&up, "beyond", "a");
    assert!(said.starts_with("QuotaExceeded:") && said.contains("hutch.dev/snapshots-bytes"), "{said}");
    // The built-in quota counts objects, but for those of suspends.
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/sandboxsnapshots.hutch.dev": "2"}}});
    apply(&up, &quota);
    let file = up.folder().join("third.json");
    std::fs::write(&file, snapshot_object("third", "a", "Filesystem").to_string()).expect("written");
    let refused = up.kubectl(&format!("create -f {}", file.display()));
    let error = text(&refused.stderr);
    assert!(error.contains("exceeded quota: q, requested: count/sandboxsnapshots.hutch.dev=1"), "{error}");
    let used = "get resourcequota q -o jsonpath={.status.used}";
    up.eventually(used, |used| used.contains(r#""count/sandboxsnapshots.hutch.dev":"2""#));
    up.ok("delete sandboxsnapshot beyond");
    up.ok("annotate namespace default hutch.dev/snapshots-bytes-");
    // Any disk is used to more than 0 %.
    up.stop();
    up.restart_with(&["--snapshot-disk-high", "1"]);
    ready(&up, "a");
    up.ok_args(&["exec", "a", "--", "true"]);
    let disk = rustix::fs::statvfs(up.data()).expect("a disk");
    let is_empty = (disk.f_blocks - disk.f_bfree) * 100 < disk.f_blocks;
    if !is_empty {
        let said = snapshot(&up, "full", "a");
        assert!(said.starts_with("DiskFull:") && said.contains("--snapshot-disk-high"), "{said}");
        up.ok("delete sandboxsnapshot full");
    }
    if let Some(reason) = hutch_testkit::Need::Runsc.missing() {
        hutch_testkit::note_skip("suspends beyond the bounds", reason);
        return;
    }
    up.ok("annotate namespace default hutch.dev/snapshots-bytes=0");
    up.ok("patch resourcequota q --type=merge -p {\"spec\":{\"hard\":{\"count/sandboxsnapshots.hutch.dev\":\"1\"}}}");
    kept::run(&up, &kept::object("s"));
    assert_eq!(kept::answer(&up, "s"), "0");
    suspend(&up, "s");
    assert_eq!(kept::snapshots(&up).len(), 2);
    up.eventually(used, |used| used.contains(r#""count/sandboxsnapshots.hutch.dev":"1""#));
    resume(&up, "s");
    assert_eq!(kept::answer(&up, "s"), "1");
}
