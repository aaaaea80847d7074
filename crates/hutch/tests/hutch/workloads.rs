//! Workloads of `hutch up` with an unmodified kubectl: templates of StatefulSets, adoption, disruption budgets.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Up, succeeded, text};

fn template(version: &str, app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}, "annotations": {"version": version}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "hutch/pause"}]}})
}

/// Applies an object through standard input.
fn apply(up: &Up, object: &Value) -> String {
    let mut command = up.kubectl_command(&["apply", "-f", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).unwrap();
    succeeded("apply", &child.wait_with_output().unwrap())
}

fn versions(up: &Up, app: &str) -> String {
    up.ok_args(&[
        "get",
        "pods",
        "-l",
        &format!("app={app}"),
        "-o",
        "jsonpath={.items[*].metadata.annotations.version}",
    ])
}

#[test]
fn kubectl_undoes_a_rollout_and_drain_heeds_a_disruption_budget() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    stateful_set(&up);
    halted_update(&up);
    stuck_rollout(&up);
    replication_controller(&up);
    disruption_budget(&up);
}

#[test]
fn cordon_keeps_new_pods_away_until_uncordon() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    up.ok("run before --image=hutch/pause");
    up.ok("wait --for=condition=Ready pod/before --timeout=60s");
    let node = up.ok("get nodes -o jsonpath={.items[0].metadata.name}");
    let waits = |up: &Up, name: &str| {
        up.eventually(
            &format!("get pod {name} -o jsonpath={{.status.phase}}:{{.status.conditions[?(@.type==\"PodScheduled\")].message}}"),
            |shown| shown == "Pending:0/1 nodes are available: 1 node(s) were unschedulable.",
        );
    };
    up.ok_args(&["cordon", &node]);
    assert!(up.ok("get nodes").contains("Ready,SchedulingDisabled"));
    // The mark reaches the node a moment later.
    up.ok("run tried --image=hutch/pause --overrides={\"spec\":{\"terminationGracePeriodSeconds\":0}}");
    up.eventually("get pods -o name", |_| {
        up.ok("delete pod tried --ignore-not-found");
        up.ok("run tried --image=hutch/pause --overrides={\"spec\":{\"terminationGracePeriodSeconds\":0}}");
        let shown = "get pod tried -o jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].reason}{.status.podIP}";
        up.eventually(shown, |shown| !shown.is_empty());
        up.ok(shown) == "Unschedulable"
    });
    waits(&up, "tried");
    up.ok_args(&[
        "run",
        "tolerates",
        "--image=hutch/pause",
        r#"--overrides={"spec":{"tolerations":[{"key":"node.kubernetes.io/unschedulable","operator":"Exists"}]}}"#,
    ]);
    up.ok("wait --for=condition=Ready pod/tolerates --timeout=60s");
    // It outlasts a restart, which the Pod that ran before does too.
    up.stop();
    up.restart();
    up.ok("wait --for=condition=Ready pod/before --timeout=60s");
    waits(&up, "tried");
    up.ok_args(&["uncordon", &node]);
    up.ok("wait --for=condition=Ready pod/tried --timeout=60s");
    // Without its object, nothing could take the mark away.
    up.ok_args(&["cordon", &node]);
    up.ok_args(&["delete", "node", &node]);
    up.ok("run after --image=hutch/pause");
    up.ok("wait --for=condition=Ready pod/after --timeout=60s");
}

#[test]
fn kubectl_shows_warnings_about_fields_without_effect() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let overrides = r#"{"spec": {"nodeSelector": {"a": "b"}}}"#;
    let run = ["run", "p", "--image=hutch/pause", "--overrides", overrides, "--dry-run=server"];
    let output = up.kubectl_args(&run);
    let warning = text(&output.stderr);
    assert!(
        output.status.success() && warning.starts_with("Warning: spec.nodeSelector: has no effect"),
        "{warning}"
    );
}

fn stateful_set(up: &Up) {
    let set = |version: &str, partition: i32| {
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {
            "replicas": 2, "serviceName": "s", "selector": {"matchLabels": {"app": "set"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
            "template": template(version, "set")}})
    };
    apply(up, &set("1", 0));
    up.ok("rollout status statefulset/s --timeout=60s");
    apply(up, &set("2", 1));
    up.ok("rollout status statefulset/s --timeout=60s");
    assert_eq!(versions(up, "set"), "1 2");
    up.ok("delete pod s-0");
    up.ok("wait --for=create pod/s-0 --timeout=60s");
    up.ok("wait --for=condition=Ready pod/s-0 --timeout=60s");
    assert_eq!(versions(up, "set"), "1 2");
    apply(up, &set("2", 0));
    up.ok("rollout status statefulset/s --timeout=60s");
    assert_eq!(versions(up, "set"), "2 2");
    let history = up.ok("rollout history statefulset/s");
    assert_eq!(
        history.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count(),
        2,
        "{history}"
    );
    up.ok("rollout undo statefulset/s");
    up.ok("rollout status statefulset/s --timeout=60s");
    assert_eq!(versions(up, "set"), "1 1");
    up.ok("delete statefulset s");
}

/// An update halts at a Pod that does not become ready, and continues when that Pod is deleted, as in Kubernetes.
fn halted_update(up: &Up) {
    let set = |version: &str, probe: Value| {
        let mut template = template(version, "halted");
        template["spec"]["containers"][0]["readinessProbe"] = probe;
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "h"}, "spec": {
            "replicas": 2, "serviceName": "h", "selector": {"matchLabels": {"app": "halted"}}, "template": template}})
    };
    let first = || up.ok("get pod h-0 -o jsonpath={.metadata.uid}");
    apply(up, &set("1", Value::Null));
    up.ok("rollout status statefulset/h --timeout=60s");
    let before = first();
    apply(up, &set("2", json!({"tcpSocket": {"port": 9}})));
    let second = "get pod h-1 -o jsonpath={.metadata.annotations.version}:{.status.phase}";
    up.eventually(second, |shown| shown == "2:Running");
    let waits = up.kubectl("rollout status statefulset/h --timeout=2s");
    assert!(!waits.status.success(), "{}", text(&waits.stdout));
    assert_eq!((versions(up, "halted"), first()), ("1 2".to_owned(), before));
    apply(up, &set("3", Value::Null));
    up.ok("delete pod h-1");
    up.ok("rollout status statefulset/h --timeout=60s");
    assert_eq!(versions(up, "halted"), "3 3");
    up.ok("delete statefulset h");
}

/// A rollout that makes no progress ends `kubectl rollout status` at its deadline, and goes through once it can.
fn stuck_rollout(up: &Up) {
    let deployment = |version: &str, probe: Value| {
        let mut template = template(version, "stuck");
        template["spec"]["containers"][0]["readinessProbe"] = probe;
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "stuck"}, "spec": {
            "progressDeadlineSeconds": 1, "selector": {"matchLabels": {"app": "stuck"}}, "template": template}})
    };
    apply(up, &deployment("1", json!({"tcpSocket": {"port": 9}})));
    let waits = up.kubectl("rollout status deployment/stuck --timeout=60s");
    let said = text(&waits.stderr);
    assert!(!waits.status.success() && said.contains("exceeded its progress deadline"), "{said}");
    apply(up, &deployment("2", Value::Null));
    up.ok("rollout status deployment/stuck --timeout=60s");
    up.ok("delete deployment stuck");
}

fn replication_controller(up: &Up) {
    let spec = template("1", "rc")["spec"].clone();
    let orphan = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "orphan", "labels": {"app": "rc"}}, "spec": spec});
    apply(up, &orphan);
    let controller = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"},
        "spec": {"replicas": 2, "selector": {"app": "rc"}, "template": template("1", "rc")}});
    apply(up, &controller);
    up.eventually("get rc r --no-headers", |line| line.split_whitespace().take(4).eq(["r", "2", "2", "2"]));
    let owner = up.ok("get pod orphan -o jsonpath={.metadata.ownerReferences[0].name}");
    assert_eq!(owner, "r");
    up.ok("scale rc/r --replicas=1");
    up.eventually("get rc r --no-headers", |line| line.split_whitespace().take(4).eq(["r", "1", "1", "1"]));
    up.ok("delete rc r");
    up.eventually("get pods -l app=rc --no-headers", str::is_empty);
}

fn disruption_budget(up: &Up) {
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}, "template": template("1", "d")}});
    apply(up, &deployment);
    up.ok("rollout status deployment/d --timeout=60s");
    up.ok("create poddisruptionbudget b --selector=app=d --max-unavailable=0");
    up.eventually("get pdb b --no-headers", |line| {
        line.split_whitespace().take(4).eq(["b", "N/A", "0", "0"])
    });
    up.eventually("get pdb b -o jsonpath={.status.expectedPods}", |count| count == "2");
    let node = up.ok("get nodes -o jsonpath={.items[0].metadata.name}");
    let drain = ["drain", &node, "--pod-selector=app=d", "--timeout=3s"];
    let refused = up.kubectl_args(&drain);
    let complaint = text(&refused.stderr);
    assert!(
        !refused.status.success() && complaint.contains("would violate the pod's disruption budget"),
        "{complaint}"
    );
    up.ok("delete pdb b");
    up.ok_args(&["drain", &node, "--pod-selector=app=d", "--timeout=60s"]);
    up.ok_args(&["uncordon", &node]);
    let sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "box"},
        "spec": {"podTemplate": template("1", "box")}});
    apply(up, &sandbox);
    up.ok("wait sandbox/box --for=condition=Ready --timeout=60s");
    up.ok("create poddisruptionbudget c --selector=app=box --max-unavailable=1");
    up.eventually("get pdb c -o jsonpath={.status.expectedPods}{.status.disruptionsAllowed}", |count| {
        count == "11"
    });
}

/// Regression: it could not create anything without `--validate=false`, since there was no `/openapi/v2`.
#[test]
fn kubectl_before_1_27_creates_applies_and_explains() {
    hutch_testkit::require!(root, old_kubectl);
    let up = Up::start(&[]);
    let old = |args: &[&str], input: &Value| {
        let mut command = Command::new("kubectl-1.24");
        command.args(args).env("KUBECONFIG", up.kubeconfig()).env("HOME", up.folder());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": template("1", "d")}});
    let sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "s"},
        "spec": {"podTemplate": {"spec": template("1", "s")["spec"]}}});
    for object in [&deployment, &sandbox] {
        succeeded("create", &old(&["create", "-f", "-"], object));
        succeeded("apply", &old(&["apply", "-f", "-"], object));
        succeeded("apply", &old(&["apply", "--dry-run=server", "-f", "-"], object));
    }
    let mut wrong = deployment.clone();
    wrong["metadata"]["name"] = "e".into();
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x".into();
    let refused = old(&["create", "-f", "-"], &wrong);
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("imagee"),
        "{}",
        text(&refused.stderr)
    );
    for path in ["deployment.spec.strategy", "sandbox.spec.podTemplate"] {
        succeeded("explain", &old(&["explain", path], &Value::Null));
    }
}
