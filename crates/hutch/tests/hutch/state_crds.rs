//! The kinds of snapshots and forks: `hutch up` and a real Kubernetes judge them alike, by the same CRDs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hutch_testkit::cluster::{Cluster, Options};
use serde_json::{Value, json};

use crate::harness::{Up, text};

/// A server, as kubectl sees it.
struct Server<'a> {
    kubeconfig: PathBuf,
    folder: &'a Path,
}

impl Server<'_> {
    fn kubectl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("kubectl");
        command.env("HOME", self.folder).arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(arguments).output().expect("kubectl")
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn apply(&self, kind: &str, name: &str, spec: &Value) -> Output {
        let object = json!({"apiVersion": "hutch.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let file = self.folder.join("state.json");
        std::fs::write(&file, object.to_string()).expect("written");
        self.kubectl(&["apply", "--server-side", "-f", &file.display().to_string()])
    }

    #[track_caller]
    fn takes(&self, kind: &str, name: &str, spec: &Value) {
        let output = self.apply(kind, name, spec);
        assert!(output.status.success(), "{kind} {spec}: {}", text(&output.stderr));
    }

    #[track_caller]
    fn refuses(&self, kind: &str, name: &str, spec: &Value, word: &str) {
        let output = self.apply(kind, name, spec);
        let reason = text(&output.stderr);
        assert!(!output.status.success() && reason.contains(word), "{kind} {name} {spec}: {reason}");
    }

    fn judges(&self) {
        let of = |extra: Value| {
            let mut spec = json!({"source": {"sandbox": "a"}, "content": "Full"});
            spec.as_object_mut().expect("an object").extend(extra.as_object().expect("one").clone());
            spec
        };
        let snapshot = "SandboxSnapshot";
        self.takes(snapshot, "s", &of(json!({"ttl": "168h"})));
        self.takes(
            snapshot,
            "t",
            &of(json!({"content": "Filesystem", "source": {"sandbox": "a", "uid": "1"}})),
        );
        self.takes(snapshot, "u", &of(json!({"volumes": {"include": ["data"]}})));
        self.takes(snapshot, "v", &of(json!({"volumes": {"none": true}})));
        for (spec, word) in [
            (json!({"content": "Full"}), "spec.source"),
            (json!({"source": {"sandbox": "a"}}), "spec.content"),
            (of(json!({"source": {}})), "spec.source.sandbox"),
            (of(json!({"source": {"sandbox": "A/b"}})), "spec.source.sandbox"),
            (of(json!({"content": "Memory"})), "\"Full\", \"Filesystem\""),
            (of(json!({"afterwards": "Pause"})), "spec.afterwards"),
            (of(json!({"ttl": "soon"})), "spec.ttl"),
            (of(json!({"ttl": "0s"})), "must be greater than 0"),
            (of(json!({"volumes": {}})), "either `include` or `none: true`"),
            (of(json!({"volumes": {"none": false}})), "either `include` or `none: true`"),
            (of(json!({"volumes": {"none": true, "include": ["a"]}})), "either `include` or `none: true`"),
            (of(json!({"volumes": {"include": []}})), "spec.volumes.include"),
            (of(json!({"volumes": {"include": ["a", "a"]}})), "spec.volumes.include"),
            (of(json!({"volumes": {"include": ["A/b"]}})), "spec.volumes.include[0]"),
            (of(json!({"volumes": {"none": true}, "afterwards": "Stop"})), "stay where they are"),
        ] {
            self.refuses(snapshot, "bad", &spec, word);
        }
        self.refuses(snapshot, "s", &of(json!({"ttl": "1h"})), "a snapshot cannot be changed");

        let fork = "SandboxFork";
        let several = |extra: Value| {
            let mut spec = json!({"source": {"sandbox": "a"}, "replicas": 3});
            spec.as_object_mut().expect("an object").extend(extra.as_object().expect("one").clone());
            spec
        };
        self.takes(fork, "f", &several(json!({"nameTemplate": "try-$(INDEX)", "content": "Full"})));
        self.takes(fork, "g", &json!({"source": {"snapshot": "s"}, "replicas": 1, "nameTemplate": "one"}));
        self.takes(fork, &"h".repeat(60), &several(json!({"replicas": 100})));
        for (spec, word) in [
            (json!({"replicas": 1}), "spec.source"),
            (json!({"source": {"sandbox": "a"}}), "spec.replicas"),
            (several(json!({"source": {}})), "exactly one source"),
            (several(json!({"source": {"sandbox": "a", "snapshot": "s"}})), "exactly one source"),
            (several(json!({"replicas": 0})), "spec.replicas"),
            (several(json!({"replicas": 101})), "spec.replicas"),
            (several(json!({"nameTemplate": "same"})), "names of several Sandboxes differ"),
            (several(json!({"nameTemplate": "$(NUMBER)-$(INDEX)"})), "spec.nameTemplate"),
            (several(json!({"nameTemplate": "a.$(INDEX)"})), "spec.nameTemplate"),
            (several(json!({"nameTemplate": "$(INDEX)-"})), "spec.nameTemplate"),
            (several(json!({"credentials": "All"})), "spec.credentials"),
            (json!({"source": {"snapshot": "s"}, "replicas": 1, "content": "Full"}), "has no effect"),
        ] {
            self.refuses(fork, "bad", &spec, word);
        }
        self.refuses(fork, "f", &several(json!({})), "a fork cannot be changed");
        self.refuses(fork, &"i".repeat(61), &several(json!({})), "`spec.nameTemplate` is needed");
        let template = json!({"nameTemplate": "i-$(INDEX)"});
        self.takes(fork, &"i".repeat(63), &several(template.clone()));
        for name in ["a.b", &"i".repeat(64)] {
            self.refuses(fork, name, &several(template.clone()), "the value of a label");
        }
    }

    fn shows(&self) {
        let explained = self.ok(&["explain", "sandboxsnapshots.spec.content"]);
        assert!(explained.contains("for Sandboxes in gVisor"), "{explained}");
        let condition = json!({"type": "Ready", "status": "False", "reason": "Failed", "message": "no room",
            "lastTransitionTime": "2026-01-02T03:04:05Z"});
        let status = |status: Value| {
            let patch = json!({ "status": status }).to_string();
            self.kubectl(&[
                "patch",
                "sandboxsnapshot",
                "s",
                "--subresource=status",
                "--type=merge",
                "-p",
                &patch,
            ])
        };
        let output =
            status(json!({"conditions": [condition], "sizes": {"memory": 1, "files": 2}, "pausedMillis": 3}));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let output = status(json!({"sizes": {"memory": -1, "files": 2}}));
        assert!(text(&output.stderr).contains("status.sizes.memory"), "{}", text(&output.stderr));
        let rows = self.ok(&["get", "sbxsnap", "s"]);
        let words: Vec<Vec<&str>> = rows.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["NAME", "SANDBOX", "CONTENT", "READY", "REASON", "AGE"]);
        assert_eq!(words[1][..5], ["s", "a", "Full", "False", "Failed"]);
        let rows = self.ok(&["get", "sandboxforks", "f"]);
        assert!(rows.starts_with("NAME   SANDBOX   SNAPSHOT   REPLICAS   READY   REASON   AGE"), "{rows}");
    }
}

#[test]
fn hutch_up_serves_snapshots_and_forks() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let server = Server { kubeconfig: up.kubeconfig(), folder: up.folder() };
    server.judges();
    server.shows();
    // The usual roles have no right on them.
    up.ok("create rolebinding editor --clusterrole=edit --user=alice");
    for resource in ["sandboxsnapshots.hutch.dev", "sandboxforks.hutch.dev"] {
        for verb in ["get", "create", "restore", "delete"] {
            let answer = up.kubectl(&format!("auth can-i {verb} {resource} --as=alice"));
            assert_eq!(text(&answer.stdout).trim(), "no", "{verb} {resource}");
        }
    }
}

#[tokio::test]
async fn kubernetes_takes_the_crds_and_judges_snapshots_and_forks() {
    hutch_testkit::require!(kubernetes, kubectl);
    let options = Options { crds: None, controllers: false, node: false };
    let cluster = Cluster::start(options).await.expect("a cluster");
    let server = Server { kubeconfig: cluster.kubeconfig().to_path_buf(), folder: cluster.folder() };
    for plural in ["sandboxsnapshots", "sandboxforks"] {
        let file = format!("{}/../api/crds/hutch.dev_{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
        server.ok(&["apply", "--server-side", "-f", &file]);
        let name = format!("crd/{plural}.hutch.dev");
        server.ok(&["wait", "--for=condition=Established", &name, "--timeout=60s"]);
    }
    server.judges();
    server.shows();
}
