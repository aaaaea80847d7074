//! Volumes of claims in snapshots, and in the Sandboxes that start from them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::Up;
use crate::kept::{self, answer, apply, fork, outcome, ready, replace_pod, run, snapshot, snapshot_object};

/// A Sandbox with a claim of 64 MiB at `/data`, which runs this command with a shell.
fn sandbox(name: &str, class: &str, annotations: Value, script: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "64Mi"}}}}],
            "podTemplate": {"spec": {
                "runtimeClassName": class, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "hutch/host", "command": ["sh", "-c", script],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            }},
        },
    })
}

const IDLE: &str = "sleep infinity";

/// Annotations with which a native Sandbox can be paused.
fn pausable() -> Value {
    json!({"hutch.dev/idle-after": ""})
}

fn from(snapshot: &str) -> Value {
    json!({"hutch.dev/restore-from": snapshot})
}

fn exec(up: &Up, name: &str, script: &str) -> String {
    up.ok_args(&["exec", name, "--", "sh", "-c", script])
}

/// Begins a snapshot, with more fields of its spec.
fn begin(up: &Up, name: &str, sandbox: &str, content: &str, more: Value) {
    let mut object = snapshot_object(name, sandbox, content);
    let spec = object["spec"].as_object_mut().expect("an object");
    spec.extend(more.as_object().expect("one").clone());
    apply(up, &object);
}

/// Folder of the volume of a Sandbox.
fn volume(up: &Up, sandbox: &str) -> PathBuf {
    let uid = up.ok(&format!("get pvc data-{sandbox} -o jsonpath={{.metadata.uid}}"));
    up.data().join("volumes/default").join(uid.trim())
}

fn image(up: &Up, snapshot: &Value) -> PathBuf {
    up.data().join("snapshots").join(snapshot["metadata"]["uid"].as_str().expect("a uid"))
}

#[test]
fn volume_is_filled_from_a_snapshot_once_and_put_back_on_request() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    run(&up, &sandbox("s", "hutch", pausable(), IDLE));
    let script = "cd /data && mkdir d e && echo before > d/file && ln -s file d/link && ln d/file again && mkfifo pipe && \
        ln -s /etc/passwd out && chmod 4750 d/file";
    exec(&up, "s", script);
    std::os::unix::fs::chown(volume(&up, "s").join("e"), Some(7), Some(8)).expect("chown");
    let taken = snapshot(&up, "snap", "s", "Filesystem");
    assert_eq!(taken["status"]["volumes"], json!(["data"]), "{taken:#}");
    exec(&up, "s", "echo after > /data/d/file && rm /data/d/link");

    run(&up, &sandbox("t", "hutch", from("snap"), IDLE));
    let look = "cd /data && cat d/link && stat -c %a:%h d/file && stat -c %u:%g e && readlink out && test -p pipe && echo pipe";
    assert_eq!(exec(&up, "t", look), "before\n4750:2\n7:8\n/etc/passwd\npipe\n");
    assert_eq!(exec(&up, "s", "cat /data/d/file"), "after\n");
    // What it writes is its own, and no later Pod loses it.
    exec(&up, "t", "echo own > /data/d/file");
    replace_pod(&up, "t");
    assert_eq!(exec(&up, "t", "cat /data/d/file"), "own\n");

    // A volume with files is put back only on request, and what it held stays beside it.
    up.ok("annotate sandbox s hutch.dev/restore-from=snap");
    replace_pod(&up, "s");
    assert_eq!(exec(&up, "s", "cat /data/d/file"), "after\n");
    for (text, held) in [("1", "after\n"), ("2", "newer\n")] {
        up.ok(&format!("annotate sandbox s hutch.dev/restore-again={text} --overwrite"));
        replace_pod(&up, "s");
        assert_eq!(exec(&up, "s", "cat /data/d/link"), "before\n");
        let before = volume(&up, "s").with_extension("before").join("d/file");
        assert_eq!(std::fs::read_to_string(before).expect("what it held"), held);
        exec(&up, "s", "echo newer > /data/d/file");
        replace_pod(&up, "s");
        assert_eq!(exec(&up, "s", "cat /data/d/file"), "newer\n");
    }
    up.ok("annotate sandbox s hutch.dev/restore-again-");
    replace_pod(&up, "s");
    assert_eq!(exec(&up, "s", "cat /data/d/file"), "newer\n");
    assert_eq!(exec(&up, "t", "cat /data/d/file"), "own\n");
    // Another namespace has no such snapshot.
    up.ok("create namespace other");
    let mut foreign = sandbox("f", "hutch", from("snap"), IDLE);
    foreign["metadata"]["namespace"] = "other".into();
    apply(&up, &foreign);
    up.eventually("get events -n other -o json", |events| {
        events.contains("RestoreFailed") && events.contains("does not exist")
    });
    let names = names(&up.data().join("volumes/default"));
    assert!(!names.iter().any(|name| name.ends_with(".filling")), "{names:?}");
}

#[test]
fn memory_and_volume_of_a_snapshot_are_of_the_same_moment() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = kept::start();
    // The log is in the volume of the claim, and stays open.
    let mut object = kept::counted("s");
    let container = &mut object["spec"]["podTemplate"]["spec"]["containers"][0];
    container["command"][3] = kept::SERVER.replace("/tmp/log", "/data/log").into();
    object["metadata"]["annotations"] = json!({"hutch.dev/shares-generators": "true"});
    run(&up, &object);
    for number in ["0", "1"] {
        assert_eq!(answer(&up, "s"), number);
    }
    snapshot(&up, "snap", "s", "Full");
    assert_eq!(answer(&up, "s"), "2");
    object["metadata"]["name"] = "t".into();
    object["metadata"]["annotations"]["hutch.dev/restore-from"] = "snap".into();
    run(&up, &object);
    let log = |name: &str| up.ok_args(&["exec", name, "--", "cat", "/data/log"]);
    assert_eq!((log("t"), log("s")), ("01".to_owned(), "012".to_owned()));
    for number in ["2", "3"] {
        assert_eq!(answer(&up, "t"), number);
    }
    assert_eq!((log("t"), log("s")), ("0123".to_owned(), "012".to_owned()));
    assert_eq!(kept::lives(&up, "t"), 1, "the program of the source, which began once");
}

/// Writes a growing number to one file and then to another. The files between them make a copy take its time.
const WRITER: &str = r#"
import os
for name in range(64): open(f"/data/m{name:02}", "wb").write(os.urandom(1 << 17))
first, last = (os.open("/data/" + name, os.O_CREAT | os.O_RDWR) for name in "az")
number = 0
while True:
    number += 1
    for file in (first, last): os.pwrite(file, b"%012d" % number, 0)
    if number == 1: open("/data/ready", "w")
"#;

#[test]
fn snapshot_of_a_running_writer_is_not_torn() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let mut classes = vec![("hutch", "Filesystem")];
    match hutch_testkit::Need::Runsc.missing() {
        Some(reason) => hutch_testkit::note_skip("snapshots of a writer in gVisor", reason),
        None => classes.push(("gvisor", "Full")),
    }
    for (class, content) in classes {
        let mut object = sandbox(class, class, pausable(), "");
        object["spec"]["podTemplate"]["spec"]["containers"][0]["command"] = json!(["python3", "-c", WRITER]);
        run(&up, &object);
        hutch_testkit::wait::until("it writes", || volume(&up, class).join("ready").exists());
        for round in 0..3 {
            let taken = snapshot(&up, &format!("{class}-{round}"), class, content);
            let number = |name: &str| -> u64 {
                let path = image(&up, &taken).join("volumes/data").join(name);
                std::fs::read_to_string(path).expect(name).parse().expect("a number")
            };
            let (first, last) = (number("a"), number("z"));
            assert!(first == last || first == last + 1, "{class}: {first} and {last}");
        }
    }
}

#[test]
fn each_fork_has_a_volume_of_its_own() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    run(&up, &sandbox("s", "hutch", pausable(), IDLE));
    exec(&up, "s", "echo of the source > /data/file");
    fork(&up, &["s", "-n", "2", "--name", "f", "--content", "Filesystem"]);
    for name in ["f-0", "f-1"] {
        assert_eq!(exec(&up, name, "cat /data/file"), "of the source\n");
        exec(&up, name, &format!("echo {name} > /data/file"));
    }
    for (name, text) in [("s", "of the source\n"), ("f-0", "f-0\n"), ("f-1", "f-1\n")] {
        assert_eq!(exec(&up, name, "cat /data/file"), text);
    }
}

#[test]
fn pool_and_claim_get_volumes_that_are_filled() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    run(&up, &sandbox("s", "hutch", pausable(), IDLE));
    exec(&up, "s", "echo of the source > /data/file");
    snapshot(&up, "snap", "s", "Filesystem");
    let mut spec = sandbox("any", "hutch", json!({}), IDLE)["spec"].clone();
    spec["podTemplate"]["metadata"] = json!({"annotations": from("snap")});
    let group = "extensions.agents.x-k8s.io/v1beta1";
    for object in [
        json!({"apiVersion": group, "kind": "SandboxTemplate", "metadata": {"name": "t"}, "spec": spec}),
        json!({"apiVersion": group, "kind": "SandboxWarmPool", "metadata": {"name": "p"},
            "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}}),
        json!({"apiVersion": group, "kind": "SandboxClaim", "metadata": {"name": "c"},
            "spec": {"warmPoolRef": {"name": "p"}}}),
    ] {
        apply(&up, &object);
    }
    up.ok("wait --for=condition=Ready sandboxclaim/c --timeout=120s");
    let name = up.ok("get sandboxclaim c -o jsonpath={.status.sandbox.name}");
    assert_eq!(exec(&up, &name, "cat /data/file"), "of the source\n");
}

#[test]
fn volume_that_cannot_be_kept_or_filled_says_why() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    run(&up, &sandbox("s", "hutch", pausable(), IDLE));
    exec(&up, "s", "head -c 1M /dev/urandom > /data/file");
    begin(&up, "unknown", "s", "Filesystem", json!({"volumes": {"include": ["other"]}}));
    let said = outcome(&up, "unknown");
    assert!(said.starts_with("Failed:spec.volumes.include: \"other\""), "{said}");
    // A second Pod that writes the same claim.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer"}, "spec": {
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data-s"}}],
        "containers": [{"name": "c", "image": "hutch/host", "command": ["sleep", "infinity"],
            "volumeMounts": [{"name": "v", "mountPath": "/data"}]}]}});
    apply(&up, &pod);
    up.ok("wait --for=condition=Ready pod/writer --timeout=60s");
    begin(&up, "shared", "s", "Filesystem", json!({}));
    let said = outcome(&up, "shared");
    assert!(said.contains("pod \"writer\" writes persistentvolumeclaim \"data-s\" too"), "{said}");
    begin(&up, "without", "s", "Filesystem", json!({"volumes": {"none": true}}));
    assert!(outcome(&up, "without").starts_with("Completed"));
    up.ok("delete pod writer");
    up.eventually("get pods -o name", |names| !names.contains("writer"));
    snapshot(&up, "snap", "s", "Filesystem");

    // Too small at first, until its claim requests more.
    let mut small = sandbox("small", "hutch", from("snap"), IDLE);
    small["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = "64Ki".into();
    apply(&up, &small);
    up.eventually("get events -o json", |events| {
        events.contains("its claim requests 65536: request more storage")
    });
    assert!(!volume(&up, "small").join("file").exists());
    let patch = r#"{"spec": {"resources": {"requests": {"storage": "64Mi"}}}}"#;
    up.eventually("get pvc data-small -o jsonpath={.status.phase}", |phase| phase == "Bound");
    up.ok_args(&["patch", "pvc", "data-small", "-p", patch]);
    ready(&up, "small");
    assert_eq!(exec(&up, "small", "stat -c %s /data/file"), "1048576\n");
    // Without a template of that name.
    let mut other = sandbox("other", "hutch", from("snap"), IDLE);
    other["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] = "files".into();
    other["spec"]["podTemplate"]["spec"]["containers"][0]["volumeMounts"][0]["name"] = "files".into();
    apply(&up, &other);
    up.eventually("get events -o json", |events| events.contains("no volumeClaimTemplate has that name"));
}

/// Sets or removes the flag by which a file or folder can be neither renamed nor removed.
fn set_immutable(path: &Path, immutable: bool) -> bool {
    let flag = if immutable { "+i" } else { "-i" };
    std::process::Command::new("chattr").arg(flag).arg(path).status().is_ok_and(|status| status.success())
}

#[test]
fn volumes_of_a_sandbox_are_put_back_together_or_stay_as_they_were() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let mut object = sandbox("s", "hutch", pausable(), IDLE);
    let mut second = object["spec"]["volumeClaimTemplates"][0].clone();
    second["metadata"]["name"] = "more".into();
    object["spec"]["volumeClaimTemplates"].as_array_mut().expect("templates").push(second);
    let mounts = &mut object["spec"]["podTemplate"]["spec"]["containers"][0]["volumeMounts"];
    *mounts = json!([{"name": "data", "mountPath": "/data"}, {"name": "more", "mountPath": "/more"}]);
    run(&up, &object);
    let write = |text: &str| exec(&up, "s", &format!("echo {text} | tee /data/file > /more/file"));
    let read = || exec(&up, "s", "cat /data/file /more/file");
    write("before");
    snapshot(&up, "snap", "s", "Filesystem");
    write("after");
    let more = up.ok("get pvc more-s -o jsonpath={.metadata.uid}");
    let more = up.data().join("volumes/default").join(more.trim());
    if !set_immutable(&more, true) {
        hutch_testkit::note_skip("volumes that are put back together", "no immutable folders here");
        return;
    }
    up.ok("annotate sandbox s hutch.dev/restore-from=snap hutch.dev/restore-again=1");
    up.ok("delete pod s");
    up.eventually("get events -o json", |events| {
        events.contains("RestoreFailed") && events.contains("not permitted")
    });
    // Given up: both are as they were.
    up.ok("annotate sandbox s hutch.dev/restore-from= --overwrite");
    replace_pod(&up, "s");
    let given_up = read();
    assert!(set_immutable(&more, false));
    assert_eq!(given_up, "after\nafter\n");
    up.ok("annotate sandbox s hutch.dev/restore-from=snap --overwrite");
    replace_pod(&up, "s");
    assert_eq!(read(), "before\nbefore\n");
}

/// A state on the way of a Sandbox that starts with the volume of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// A folder is being filled.
    Filling,
    /// The volume is in its place.
    Placed,
    /// The record says so.
    Recorded,
}

impl Fill {
    /// Finds it by the names of the volumes, those of others left out.
    fn is_reached(self, folder: &Path, others: &[String]) -> bool {
        let new = names(folder).into_iter().filter(|name| !others.contains(name));
        let end = match self {
            Fill::Filling => Some("filling"),
            Fill::Placed => None,
            Fill::Recorded => Some("filled"),
        };
        new.into_iter().any(|name| name.split_once('.').map(|(_, end)| end) == end)
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("volumes").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Runs a script as soon as the container runs again.
fn exec_soon(up: &Up, name: &str, script: &str) -> String {
    let mut printed = String::new();
    hutch_testkit::wait::until("the container runs", || {
        let output = up.kubectl_args(&["exec", name, "--", "sh", "-c", script]);
        printed = crate::harness::text(&output.stdout);
        output.status.success()
    });
    printed
}

#[test]
fn volume_is_whole_after_a_kill_at_each_step_of_its_fill_and_is_not_filled_again() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    run(&up, &sandbox("s", "hutch", pausable(), IDLE));
    let script =
        "cd /data && for i in $(seq 40); do head -c 1M /dev/urandom > f$i; done && cat f* | sha256sum";
    let sum = exec(&up, "s", script);
    snapshot(&up, "snap", "s", "Filesystem");
    let folder = up.data().join("volumes/default");
    for (number, step) in [Fill::Filling, Fill::Placed, Fill::Recorded].into_iter().enumerate() {
        let (name, others) = (format!("t{number}"), names(&folder));
        apply(&up, &sandbox(&name, "hutch", from("snap"), IDLE));
        hutch_testkit::wait::until("the step is reached", || step.is_reached(&folder, &others));
        up.kill();
        up.restart();
        assert_eq!(exec_soon(&up, &name, "cat /data/f* | sha256sum"), sum, "{step:?}");
        exec_soon(&up, &name, "echo own > /data/f1");
        up.kill();
        up.restart();
        assert_eq!(exec_soon(&up, &name, "cat /data/f1"), "own\n", "{step:?}");
        let names = names(&folder);
        assert!(names.iter().all(|name| !name.contains('.') || name.ends_with(".filled")), "{names:?}");
    }
}
