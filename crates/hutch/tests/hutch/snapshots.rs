//! Snapshots and forks: the commands of `hutch`, and who may restore.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use hutch_testkit::cluster::{Cluster, Conversion, Options};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::harness::{HUTCH, Up, refused, succeeded, text};

/// An API server with the kinds and no controller: the tests write what a node would.
struct Shared {
    cluster: Cluster,
    /// `hutch suspend --memory` before the server had snapshots.
    without: Output,
    _runtime: Runtime,
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let runtime = Runtime::new().expect("a runtime");
        let options = Options { crds: Some(Conversion::None), controllers: false, node: false };
        let cluster = runtime.block_on(Cluster::start(options)).expect("a cluster");
        let without = command(&cluster, HUTCH, &["suspend", "--memory", "a"]).output().expect("hutch");
        for plural in ["sandboxsnapshots", "sandboxforks"] {
            let file = format!("{}/../api/crds/hutch.dev_{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
            let crd = format!("crd/{plural}.hutch.dev");
            for words in
                [&["apply", "--server-side", "-f", &file][..], &["wait", "--for=condition=Established", &crd]]
            {
                succeeded(plural, &command(&cluster, "kubectl", words).output().expect("kubectl"));
            }
        }
        Shared { cluster, without, _runtime: runtime }
    })
}

fn command(cluster: &Cluster, program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.folder());
    command.stdin(Stdio::null());
    command
}

impl Shared {
    fn run(&self, words: &[&str]) -> Output {
        command(&self.cluster, HUTCH, words).output().expect("hutch starts")
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        succeeded(&words.join(" "), &self.run(words))
    }

    fn start(&self, words: &[&str]) -> Child {
        let mut command = command(&self.cluster, HUTCH, words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hutch starts")
    }

    #[track_caller]
    fn kubectl(&self, words: &[&str]) -> String {
        succeeded(
            &words.join(" "),
            &command(&self.cluster, "kubectl", words).output().expect("kubectl starts"),
        )
    }

    /// Makes a Sandbox.
    fn sandbox(&self, name: &str) {
        let object = sandbox(name, &json!({"policy.hutch.dev/policies": "strict"}));
        let file = self.cluster.folder().join(format!("{name}.json"));
        std::fs::write(&file, object.to_string()).expect("written");
        self.kubectl(&["create", "-f", &file.display().to_string()]);
    }

    /// Writes the status of an object, as a node does.
    fn status(&self, object: &str, reason: &str, message: &str, rest: Value) {
        let is_ready = if reason == "Completed" { "True" } else { "False" };
        let mut status = rest;
        status["conditions"] = json!([{"type": "Ready", "status": is_ready, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-02T03:04:05Z"}]);
        let patch = json!({ "status": status }).to_string();
        self.kubectl(&["patch", object, "--subresource=status", "--type=merge", "-p", &patch]);
    }

    fn get(&self, object: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", object, "-o", "json"])).expect("JSON")
    }
}

fn sandbox(name: &str, annotations: &Value) -> Value {
    json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": annotations, "labels": {"team": "red"}},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}})
}

/// Reads standard error until a line has this text.
fn reads(stderr: &mut impl BufRead, wanted: &str) {
    let mut read = String::new();
    while !read.contains(wanted) {
        assert!(stderr.read_line(&mut read).expect("a line") > 0, "{wanted:?} is not in {read:?}");
    }
}

/// Returns exit status, standard output and the rest of standard error.
fn ended(mut child: Child, mut stderr: impl BufRead) -> (Option<i32>, String, String) {
    let mut errors = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut errors).expect("text");
    let output = child.stdout.take().map(|stdout| std::io::read_to_string(stdout).expect("text"));
    (child.wait().expect("it ends").code(), output.unwrap_or_default(), errors)
}

#[test]
fn snapshot_is_created_with_progress_listed_and_deleted() {
    hutch_testkit::require!(kubernetes, kubectl);
    let shared = shared();
    shared.sandbox("source");
    let pending =
        shared.ok(&["snapshot", "create", "source", "--name", "later", "--wait", "0", "--ttl", "2h"]);
    assert_eq!(pending, "snapshot later of sandbox source is pending\n");
    let (later, source) = (shared.get("sandboxsnapshot/later"), shared.get("sandbox/source"));
    let expected = json!({"source": {"sandbox": "source", "uid": source["metadata"]["uid"]}, "content": "Full",
        "afterwards": "Run", "ttl": "7200s"});
    assert_eq!(later["spec"], expected);
    let shown: Value = serde_json::from_str(&shared.ok(&[
        "snapshot",
        "create",
        "source",
        "--content",
        "filesystem",
        "--wait",
        "0",
        "--json",
    ]))
    .expect("JSON");
    assert!(shown["name"].as_str().is_some_and(|name| name.starts_with("source-")), "{shown}");
    assert_eq!(
        (&shown["content"], &shown["ready"], &shown["reason"]),
        (&json!("Filesystem"), &json!(false), &json!("Pending"))
    );

    let mut child = shared.start(&["snapshot", "create", "source", "--name", "now", "--json"]);
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr"));
    reads(&mut stderr, "hutch: waiting for snapshot now to be complete: its node has not observed it yet");
    shared.status("sandboxsnapshot/now", "InProgress", "the memory is written", json!({}));
    reads(&mut stderr, "the memory is written");
    let sizes = json!({"sizes": {"memory": 40, "files": 2}, "pausedMillis": 12});
    shared.status("sandboxsnapshot/now", "Completed", "", sizes);
    let (status, stdout, errors) = ended(child, stderr);
    assert_eq!(status, Some(0), "{errors}");
    let shown: Value = serde_json::from_str(&stdout).expect("JSON");
    let expected = json!({"name": "now", "namespace": "default", "sandbox": "source", "content": "Full", "ready": true,
        "reason": "Completed", "message": "", "volumes": [], "bytes": 42, "pausedMillis": 12});
    assert_eq!(shown, expected);

    let listed = shared.ok(&["snapshot", "list"]);
    let row = listed.lines().find(|line| line.starts_with("now ")).expect("a row");
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[..6], ["now", "source", "Full", "True", "Completed", "42B"]);
    assert!(listed.starts_with("NAME"), "{listed}");
    assert_eq!(
        shared.ok(&["snapshot", "delete", "now", "later"]),
        "snapshot now is deleted\nsnapshot later is deleted\n"
    );
    let listed: Value = serde_json::from_str(&shared.ok(&["snapshot", "ls", "--json"])).expect("JSON");
    let names: Vec<_> = listed.as_array().expect("a list").iter().map(|row| row["name"].clone()).collect();
    assert!(!names.contains(&json!("now")) && !names.contains(&json!("later")), "{names:?}");
    refused(&shared.run(&["snapshot", "delete", "now"]), 1, &["sandboxsnapshots", "\"now\" not found"]);
    refused(&shared.run(&["snapshot", "create", "missing"]), 1, &["no Sandbox or SandboxClaim missing"]);
}

#[test]
fn wait_for_a_snapshot_ends_at_a_final_reason_with_its_message() {
    hutch_testkit::require!(kubernetes, kubectl);
    let shared = shared();
    shared.sandbox("failing");
    for (name, reason, message) in [
        ("f1", "Failed", "no space left on the disk"),
        ("f2", "NotSupportedHere", "Snapshots are made by `hutch up` alone"),
        ("f3", "SourceReplaced", "sandbox failing is another one"),
    ] {
        // Without the limit of the default.
        let mut child = shared.start(&["snapshot", "create", "failing", "--name", name, "--wait", "24h"]);
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr"));
        reads(&mut stderr, &format!("waiting for snapshot {name} to be complete"));
        shared.status(&format!("sandboxsnapshot/{name}"), reason, message, json!({}));
        let (status, stdout, errors) = ended(child, stderr);
        assert_eq!((status, stdout.as_str()), (Some(1), ""), "{errors}");
        assert!(
            errors.ends_with(&format!("hutch snapshot create: snapshot {name}: {message}\n")),
            "{errors}"
        );
    }
}

#[test]
fn snapshot_is_restored_as_a_new_sandbox_of_its_source() {
    hutch_testkit::require!(kubernetes, kubectl);
    let shared = shared();
    shared.sandbox("original");
    shared.ok(&["snapshot", "create", "original", "--name", "image", "--wait", "0"]);
    let uid = shared.get("sandbox/original")["metadata"]["uid"].clone();
    shared.status("sandboxsnapshot/image", "Completed", "", json!({ "sandboxUid": uid }));
    let restore = ["snapshot", "restore", "image", "copy", "--wait", "0"];
    refused(&shared.run(&["snapshot", "restore", "image", "copy", "--wait", "soon"]), 2, &["--wait"]);
    // With no time to wait, an incomplete snapshot is an error.
    assert_eq!(shared.ok(&restore), "sandbox copy is starting, from snapshot image\n");
    let copy = shared.get("sandbox/copy");
    assert_eq!(
        copy["spec"]["podTemplate"]["metadata"]["annotations"],
        json!({"hutch.dev/restore-from": "image"})
    );
    assert_eq!(copy["spec"]["podTemplate"]["spec"]["containers"], json!([{"name": "main", "image": "i"}]));
    let kept = (&copy["metadata"]["labels"], &copy["metadata"]["annotations"]);
    assert_eq!(kept, (&json!({"team": "red"}), &json!({"policy.hutch.dev/policies": "strict"})));
    refused(&shared.run(&restore), 1, &["sandboxes.agents.x-k8s.io \"copy\" already exists"]);
    refused(&shared.run(&["snapshot", "restore", "none", "b", "--wait", "0"]), 1, &["\"none\" not found"]);

    shared.ok(&["snapshot", "create", "original", "--name", "open", "--wait", "0"]);
    let open = ["snapshot", "restore", "open", "b", "--wait", "0"];
    refused(&shared.run(&open), 1, &["snapshot open is not complete: its node has not observed it yet"]);
    shared.kubectl(&["delete", "sandbox", "original"]);
    shared.sandbox("original");
    refused(
        &shared.run(&["snapshot", "restore", "image", "b", "--wait", "0"]),
        1,
        &["sandbox original that is gone"],
    );
}

#[test]
fn fork_reports_each_of_its_sandboxes() {
    hutch_testkit::require!(kubernetes, kubectl);
    let shared = shared();
    shared.sandbox("trunk");
    assert_eq!(shared.ok(&["fork", "trunk", "-n", "3", "--name", "f", "--wait", "0"]), "fork f is pending\n");
    let spec =
        json!({"source": {"sandbox": "trunk"}, "replicas": 3, "content": "Full", "credentials": "None"});
    assert_eq!(shared.get("sandboxfork/f")["spec"], spec);
    for words in
        [&["fork", "trunk", "-n", "team"][..], &["fork", "trunk", "-n", "101"], &["fork", "trunk", "-n", "0"]]
    {
        refused(&shared.run(words), 2, &["-n", "from 1 to 100", "--namespace"]);
    }
    refused(&shared.run(&["fork", "-n", "2"]), 2, &["SANDBOX"]);
    refused(&shared.run(&["fork", "trunk", "--snapshot", "s"]), 2, &["--snapshot"]);

    let child = |name: &str, phase: &str| json!({"name": name, "phase": phase});
    let mut forks = shared.start(&["fork", "trunk", "-n", "2", "--name", "g"]);
    let mut stderr = BufReader::new(forks.stderr.take().expect("stderr"));
    reads(&mut stderr, "waiting for fork g to be ready");
    shared.status(
        "sandboxfork/g",
        "Completed",
        "",
        json!({"children": [child("g-0", "Ready"), child("g-1", "Ready")]}),
    );
    let (status, stdout, errors) = ended(forks, stderr);
    assert_eq!(
        (status, stdout.as_str()),
        (Some(0), "sandbox g-0 is ready\nsandbox g-1 is ready\n"),
        "{errors}"
    );

    let mut forks =
        shared.start(&["fork", "--snapshot", "s", "-n", "2", "--name", "h", "--json", "--wait", "24h"]);
    let mut stderr = BufReader::new(forks.stderr.take().expect("stderr"));
    reads(&mut stderr, "waiting for fork h to be ready");
    let mut failed = child("h-1", "Failed");
    failed["reason"] = "no room".into();
    shared.status(
        "sandboxfork/h",
        "Failed",
        "1 of 2 has failed",
        json!({"children": [child("h-0", "Ready"), failed]}),
    );
    let (status, stdout, errors) = ended(forks, stderr);
    let shown: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(
        (status, &shown["sandboxes"][1]),
        (Some(1), &json!({"name": "h-1", "phase": "Failed", "reason": "no room"}))
    );
    assert!(errors.ends_with("hutch fork: fork h: 1 of 2 has failed\n"), "{errors}");
}

#[test]
fn suspend_with_memory_changes_mode_and_annotation_at_once() {
    hutch_testkit::require!(kubernetes, kubectl);
    let shared = shared();
    refused(&shared.without, 1, &["no SandboxSnapshots", "`hutch up` alone"]);
    shared.sandbox("warm");
    assert_eq!(shared.ok(&["suspend", "--memory", "--wait", "0", "warm"]), "sandbox warm is suspending\n");
    let warm = shared.get("sandbox/warm");
    let of = |warm: &Value| {
        (
            warm["spec"]["operatingMode"].clone(),
            warm["metadata"]["annotations"]["hutch.dev/suspend-keeps"].clone(),
        )
    };
    assert_eq!(of(&warm), (json!("Suspended"), json!("memory")));
    let updates = warm["metadata"]["managedFields"].as_array().map(Vec::len);
    assert!(updates.is_none_or(|updates| updates <= 2), "one request: {warm}");
    // Again, it changes nothing.
    shared.ok(&["suspend", "--memory", "--wait", "0", "warm"]);
    // The controller says what has become of the memory.
    for (reason, lost) in [("PodTerminated", false), ("MemoryNotKept", true)] {
        let condition = json!({"type": "Suspended", "status": "True", "reason": reason, "message": "",
            "observedGeneration": warm["metadata"]["generation"], "lastTransitionTime": "2026-01-02T03:04:05Z"});
        let patch = json!({"status": {"conditions": [condition]}}).to_string();
        shared.kubectl(&["patch", "sandbox/warm", "--subresource=status", "--type=merge", "-p", &patch]);
        let output = shared.run(&["suspend", "--memory", "warm"]);
        match lost {
            true => refused(&output, 1, &["warm is suspended, but its memory is lost"]),
            false => assert_eq!(succeeded(reason, &output), "sandbox warm is suspended\n"),
        }
    }
    shared.sandbox("cold");
    shared.ok(&["suspend", "--wait", "0", "cold"]);
    refused(
        &shared.run(&["suspend", "--memory", "cold"]),
        1,
        &["cold is suspended already, without its memory"],
    );
    assert_eq!(of(&shared.get("sandbox/cold")), (json!("Suspended"), Value::Null));
}

#[test]
fn user_of_sandboxes_cannot_restore_a_snapshot() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    up.ok("create role user --verb=* --resource=sandboxes.agents.x-k8s.io,pods,deployments.apps");
    up.ok("create rolebinding user --role=user --user=mallory");
    let write = |name: &str, annotations: &Value| {
        let mut object = sandbox(name, annotations);
        object["spec"]["operatingMode"] = "Suspended".into();
        let is_marked = annotations.get("hutch.dev/restore-from").is_some();
        let file = up.folder().join(format!("{name}-{is_marked}.json"));
        std::fs::write(&file, object.to_string()).expect("written");
        file.display().to_string()
    };
    let plain = json!({});
    let marked = json!({"hutch.dev/restore-from": "image"});
    up.ok(&format!("create --as=mallory -f {}", write("plain", &plain)));
    let patch = json!({ "metadata": { "annotations": marked } }).to_string();
    let of_pod = json!({"spec": {"podTemplate": {"metadata": {"annotations": marked}}}}).to_string();
    for words in [
        vec!["create", "-f", &write("new", &marked)],
        vec!["apply", "-f", &write("new", &marked)],
        vec!["apply", "--server-side", "-f", &write("new", &marked)],
        vec!["replace", "-f", &write("plain", &marked)],
        vec!["apply", "--server-side", "--force-conflicts", "-f", &write("plain", &marked)],
        vec!["annotate", "sandbox", "plain", "hutch.dev/restore-from=image"],
        vec!["patch", "sandbox", "plain", "--type=merge", "-p", &patch],
        vec!["patch", "sandbox", "plain", "--type=merge", "-p", &of_pod],
        vec!["run", "pod", "--image=hutch/pause", "--annotations=hutch.dev/restore-from=image"],
    ] {
        let output = up.kubectl_args(&[&["--as=mallory"], &words[..]].concat());
        let error = text(&output.stderr);
        let why = r#"User "mallory" cannot restore resource "sandboxsnapshots" in API group "hutch.dev""#;
        assert!(!output.status.success() && error.contains(why), "{words:?}: {error}");
        assert!(error.contains("Forbidden") || error.contains("forbidden"), "{words:?}: {error}");
    }
    assert_eq!(up.ok("get sandboxes -o name"), "sandbox.agents.x-k8s.io/plain\n");
    assert!(!up.ok("get sandbox plain -o yaml").contains("restore-from"));
    // Control: with the right.
    up.ok("create role restorer --verb=restore --resource=sandboxsnapshots.hutch.dev --resource-name=image");
    up.ok("create rolebinding restorer --role=restorer --user=mallory");
    up.ok(&format!("create --as=mallory -f {}", write("new", &marked)));
}
