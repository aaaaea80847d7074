//! Suspend, resume, logs.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{hutch, ok, refused, run, started};
use crate::harness::{Up, text};

#[test]
fn sandbox_is_suspended_and_resumed() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    ok(&up, &["exec", "notes", "--", "sh", "-c", "echo kept > /data/file"]);
    let output = run(&up, &["suspend", "notes"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(0), "sandbox notes is suspended\n")
    );
    // Without a terminal, one line for each awaited state.
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("hutch: waiting for sandbox notes to be suspended: ") && !stderr.contains('\r'),
        "{stderr}"
    );
    assert_eq!(up.ok("get pods --no-headers"), "", "the Pod is gone after the command");
    assert_eq!(ok(&up, &["suspend", "notes"]), "sandbox notes is suspended\n", "again");

    refused(
        &run(&up, &["exec", "notes", "--", "true"]),
        125,
        &["notes", "suspended", "--resume", "hutch resume notes"],
    );
    refused(&run(&up, &["exec", "--wait", "0", "notes", "--", "true"]), 125, &["suspended"]);
    refused(&run(&up, &["logs", "notes"]), 1, &["suspended", "hutch resume notes"]);
    refused(&run(&up, &["cp", "notes:/data/file", up.folder().to_str().expect("text")]), 1, &["--resume"]);

    assert_eq!(ok(&up, &["resume", "notes"]), "sandbox notes is ready\n");
    assert_eq!(ok(&up, &["exec", "notes", "--", "cat", "/data/file"]), "kept\n");
    assert_eq!(ok(&up, &["suspend", "--wait", "0", "notes"]), "sandbox notes is suspending\n");
    assert_eq!(ok(&up, &["exec", "--resume", "notes", "--", "cat", "/data/file"]), "kept\n");
}

#[test]
fn sandbox_that_cannot_be_ready_is_reported_with_the_reason() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    apply(&up, "far", "image: 'docker.io/library/redis:7'");
    // Without the limit of the default.
    let wait = ["exec", "--wait", "1h"];
    let output = run(&up, &[&wait[..], &["far", "--", "true"]].concat());
    assert_eq!(output.status.code(), Some(125));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("sandbox far: container main: ErrImage"), "{stderr}");
    assert!(stderr.contains("redis"), "the cause names the image: {stderr}");
    refused(&run(&up, &["exec", "--wait", "0", "far", "--", "true"]), 125, &["far", "not running"]);

    let host = "image: hutch/host, command: [sleep, infinity]";
    apply(&up, "large", &format!("{host}, resources: {{requests: {{memory: 900Ti}}}}"));
    let from = "env: [{name: A, valueFrom: {configMapKeyRef: {name: no-map, key: a}}}]";
    apply(&up, "config", &format!("{host}, {from}"));
    let volume = "volumeMounts: [{name: v, mountPath: /v}]}\n      volumes:\n      - {name: v, configMap: {name: no-map}";
    apply(&up, "mount", &format!("{host}, {volume}"));
    let class = "{\"apiVersion\": \"node.k8s.io/v1\", \"kind\": \"RuntimeClass\", \"metadata\": {\"name\": \"other\"}, \
        \"handler\": \"kata\"}";
    create(&up, "class.yaml", class);
    apply_in(&up, "class", host, "runtimeClassName: other");
    let group = "apiVersion: extensions.agents.x-k8s.io/v1beta1";
    create(
        &up,
        "pool.yaml",
        &format!(
            "{group}\nkind: SandboxTemplate\nmetadata: {{name: t}}\nspec:\n  podTemplate:\n    spec:\n      containers: \
             [{{name: main, {host}}}]\n---\n{group}\nkind: SandboxWarmPool\nmetadata: {{name: p}}\nspec: {{replicas: 0, \
             sandboxTemplateRef: {{name: t}}}}\n"
        ),
    );
    up.ok("create quota none --hard=pods=4");
    apply(&up, "quota", host);
    up.ok("create quota sandboxes --hard=count/sandboxes.agents.x-k8s.io=5");
    create(
        &up,
        "claim.yaml",
        &format!(
            "{group}\nkind: SandboxClaim\nmetadata: {{name: claim}}\nspec: {{warmPoolRef: {{name: p}}}}\n"
        ),
    );
    for (name, reason) in [
        ("class", "CreatePodSandboxError: Failed to create pod sandbox: no handler for runtimeClassName"),
        ("claim", "exceeded quota: sandboxes"),
        ("large", "Insufficient memory"),
        ("config", "CreateContainerConfigError"),
        ("mount", "FailedMount: configmap \"no-map\" not found"),
        ("quota", "exceeded quota"),
    ] {
        let output = run(&up, &[&wait[..], &[name, "--", "true"]].concat());
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(125) && stderr.contains(reason), "{name}: {stderr}");
    }
    up.ok("delete quota none sandboxes");

    apply(&up, "brief", "image: hutch/host, command: [sh, -c, 'exit 3']");
    up.eventually("get pod brief -o jsonpath={.status.phase}", |phase| phase == "Failed");
    let output = run(&up, &["exec", "brief", "--", "true"]);
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(125) && stderr.contains("sandbox brief: Pod failed; "), "{stderr}");
}

#[test]
fn command_that_runs_out_of_memory_says_so() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let limits = "resources: {limits: {memory: 64Mi}}";
    apply(&up, "hungry", &format!("image: hutch/host, command: [sleep, infinity], {limits}"));
    ok(&up, &["exec", "hungry", "--", "true"]);
    let eat = ["exec", "hungry", "--", "python3", "-c", "b = bytearray(200 << 20); print(len(b))"];
    let said = "its container ran out of memory; resources.limits.memory gives it more";
    refused(&run(&up, &eat), 137, &[said]);
    let by_kubectl = up.kubectl_args(&eat);
    assert_eq!(by_kubectl.status.code(), Some(137));
    assert_eq!(text(&by_kubectl.stderr).matches(said).count(), 1, "{by_kubectl:?}");
    let killed = up.kubectl_args(&["exec", "hungry", "--", "sh", "-c", "kill -9 $$"]);
    assert!(killed.status.code() == Some(137) && !text(&killed.stderr).contains("memory"), "{killed:?}");
    let output = run(&up, &["exec", "hungry", "--", "true"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn command_in_gvisor_that_runs_out_of_memory_says_so() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = Up::start(&[]);
    let limits = "resources: {limits: {memory: 256Mi}}";
    let container = format!("image: hutch/host, command: [sleep, infinity], {limits}");
    apply_in(&up, "hungry", &container, "runtimeClassName: gvisor");
    ok(&up, &["exec", "hungry", "--", "true"]);
    let own = up.kubectl_args(&["exec", "hungry", "--", "sh", "-c", "exit 128"]);
    assert!(own.status.code() == Some(128) && !text(&own.stderr).contains("memory"), "{own:?}");
    let eat = ["exec", "hungry", "--", "python3", "-c", "b = bytearray(600 << 20); print(len(b))"];
    let by_kubectl = up.kubectl_args(&eat);
    assert_eq!(by_kubectl.status.code(), Some(137), "{by_kubectl:?}");
    let said = "its container ran out of memory; resources.limits.memory gives it more";
    assert!(text(&by_kubectl.stderr).contains(said), "{by_kubectl:?}");
}

#[test]
fn command_of_the_runtime_that_runs_out_of_memory_says_so() {
    hutch_testkit::require!(root, kubectl, curl);
    let up = Up::start(&[]);
    let probe = "readinessProbe: {httpGet: {path: /, port: 8888}, periodSeconds: 1}";
    let limits = "resources: {limits: {memory: 64Mi}}";
    apply(&up, "hungry", &format!("image: hutch/python-runtime, {limits}, {probe}"));
    ok(&up, &["exec", "hungry", "--", "true"]);
    let execute = |command: &str| {
        let body = serde_json::json!({ "command": command }).to_string();
        let json = "Content-Type: application/json";
        let url = "http://localhost:8888/execute";
        let answer = ok(&up, &["exec", "hungry", "--", "curl", "-s", "-H", json, "-d", &body, url]);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        (answer["exit_code"].as_i64(), answer["stderr"].as_str().unwrap_or_default().to_owned())
    };
    let eat = "python3 -c \"b = bytearray(200 << 20); print(len(b))\"";
    let (code, stderr) = execute(eat);
    assert_eq!(code, Some(-9), "{stderr}");
    assert!(
        stderr.ends_with(
            "memory ran out while the command ran; resources.limits.memory of the container gives it more\n"
        ),
        "{stderr}"
    );
    assert_eq!(execute("sh -c 'kill -9 $$'"), (Some(-9), String::new()));
    assert_eq!(execute("true"), (Some(0), String::new()));
}

fn apply(up: &Up, name: &str, container: &str) {
    apply_in(up, name, container, "restartPolicy: Never");
}

/// As [`apply`], with this field of the Pod.
fn apply_in(up: &Up, name: &str, container: &str, field: &str) {
    let sandbox = format!(
        "apiVersion: agents.x-k8s.io/v1beta1\nkind: Sandbox\nmetadata: {{name: {name}}}\nspec:\n  podTemplate:\n    spec:\n      \
         terminationGracePeriodSeconds: 0\n      {field}\n      containers:\n      - {{name: main, {container}}}\n"
    );
    create(up, &format!("{name}.yaml"), &sandbox);
}

/// Creates the objects of a file with this name and text.
fn create(up: &Up, name: &str, text: &str) {
    let file = up.folder().join(name);
    std::fs::write(&file, text).expect("written");
    up.ok(&format!("create -f {}", file.display()));
}

#[test]
fn log_is_the_output_of_the_main_process() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let script = "for i in 1 2 3; do echo line $i; done; while sleep 0.2; do echo later; done";
    apply(&up, "talker", &format!("image: hutch/host, command: [sh, -c, '{script}']"));
    ok(&up, &["exec", "talker", "--", "true"]);
    up.eventually("logs talker", |log| log.contains("later"));
    assert!(ok(&up, &["logs", "talker"]).starts_with("line 1\nline 2\nline 3\n"));
    assert_eq!(ok(&up, &["logs", "--tail", "1", "-c", "main", "talker"]), "later\n");
    assert!(ok(&up, &["logs", "--since", "1h", "talker"]).starts_with("line 1\n"));

    let mut follow = hutch(&up, &["logs", "-f", "--tail", "1", "talker"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().expect("hutch starts");
    let lines = BufReader::new(follow.stdout.take().expect("stdout")).lines();
    assert_eq!(lines.map_while(Result::ok).filter(|line| line == "later").take(5).count(), 5);
    // The next line ends it, because the reader has gone.
    assert_eq!(follow.wait().expect("wait").code(), Some(141));
    refused(&run(&up, &["logs", "missing"]), 1, &["missing"]);
    refused(&run(&up, &["logs", "-c", "side", "talker"]), 1, &["--container side", "main"]);
}
