//! `spec.scanner` of policies on `hutch up`: secrets in logs, in the output of commands and in downloads.

use std::process::Command;

use serde_json::{Value, json};

use crate::audited::{eventually, read};
use crate::harness::{Up, refused, text};
use crate::policies::applied;

/// Made of parts, so that scanners of repositories do not report this file.
fn token() -> String {
    ["gh", "p_", "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2"].concat()
}

fn policy(scanner: &Value) -> Value {
    json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": "no-secrets"},
        "spec": {"appliesTo": {}, "scanner": scanner}})
}

/// Prints the secret, says that it did, and serves it at port 8000.
fn sandbox(name: &str) -> Value {
    let script = format!(
        "echo begin; echo token {0}; echo {0} >&2; mkdir -p /tmp/www; echo {0} > /tmp/www/secret; \
         echo plain > /tmp/www/plain; echo end; cd /tmp/www; exec python3 -m http.server 8000",
        token()
    );
    let container = json!({"name": "main", "image": "hutch/host", "command": ["sh", "-c", script],
        "readinessProbe": {"httpGet": {"path": "/plain", "port": 8000}, "periodSeconds": 1}});
    json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}}})
}

/// Returns the status and the body that a port answers through the router.
fn download(router: &str, sandbox: &str, path: &str) -> (String, String) {
    let id = format!("X-Sandbox-ID: {sandbox}");
    let address = format!("http://{router}/{path}");
    let arguments =
        ["-s", "-w", "\n%{http_code}", "-H", &id, "-H", "X-Sandbox-Port: 8000", "--max-time", "30", &address];
    let output = Command::new("curl").args(arguments).output().expect("curl");
    let all = text(&output.stdout);
    let (body, status) = all.rsplit_once('\n').expect("a status");
    (status.to_owned(), body.to_owned())
}

#[test]
fn secrets_do_not_leave_by_logs_commands_and_downloads() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start(&["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"]);
    let router = up.router().to_string();
    let token = token();
    // Applied right before the Sandbox: its Pod must not be faster.
    applied(&up, &policy(&json!({"logs": "Redact", "exec": "Redact", "downloads": "Block"})));
    applied(&up, &sandbox("a"));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");

    let log = up.eventually("logs a", |log| log.contains("end"));
    assert!(log.contains("token [redacted: github-") && log.contains("begin"), "{log}");
    assert!(!log.contains(&token), "{log}");
    let mut files = vec![up.data()];
    while let Some(folder) = files.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                files.push(path);
            } else if path.extension().is_some_and(|end| end == "log") {
                let log = std::fs::read(&path).unwrap_or_default();
                assert!(!text(&log).contains(&token), "{}", path.display());
            }
        }
    }

    let shown = up.ok_args(&["exec", "a", "--", "cat", "/tmp/www/secret", "/tmp/www/plain"]);
    assert!(shown.starts_with("[redacted: github-") && shown.ends_with("]\nplain\n"), "{shown}");
    let many = "for _ in $(seq 40); do cat /tmp/www/secret; done";
    up.ok_args(&["exec", "a", "--", "sh", "-c", many]);
    let (status, body) = download(&router, "a", "secret");
    assert!(status == "403" && body.contains("the scanner finds `github-"), "{status} {body}");
    assert_eq!(download(&router, "a", "plain"), ("200".to_owned(), "plain\n".to_owned()));

    let findings = ["list", "--kind", "finding", "--sandbox", "a"];
    for part in [
        "modified&logs of main&sha256:",
        "modified&exec&10 times",
        "modified&exec",
        "denied&downloads of 8000",
    ] {
        eventually(&up, &findings, &format!("default/a&github-&no-secrets&{part}"));
    }
    let recorded = read(&up, &findings);
    let of_exec = recorded.lines().filter(|line| line.contains("exec")).count();
    assert!((3..20).contains(&of_exec), "repeats are counted: {recorded}");

    applied(&up, &policy(&json!({"exec": "Block", "downloads": "Redact"})));
    let cat = ["exec", "a", "--", "cat", "/tmp/www/secret"];
    let blocked = || up.kubectl_args(&cat);
    hutch_testkit::wait::until("the command is refused", || !blocked().status.success());
    let output = blocked();
    assert!(!text(&output.stdout).contains(&token), "{}", text(&output.stdout));
    refused(&output, 1, &["the output is refused: the scanner finds `github-"]);
    let (status, body) = download(&router, "a", "secret");
    assert!(status == "200" && body.starts_with("[redacted: github-"), "{status} {body}");

    for part in ["denied&exec", "modified&downloads of 8000"] {
        eventually(&up, &findings, &format!("default/a&github-&{part}"));
    }
    assert!(!read(&up, &["export"]).contains(&token));

    // Without the fields nothing is scanned.
    applied(&up, &policy(&json!({})));
    hutch_testkit::wait::until("the command is not scanned", || blocked().status.success());
    assert_eq!(text(&blocked().stdout), format!("{token}\n"));
    assert_eq!(download(&router, "a", "secret").1, format!("{token}\n"));
    for (scanner, field) in [(json!(null), "spec.scanner"), (json!({"logs": null}), "spec.scanner.logs")] {
        // `kubectl apply` leaves out a field that is null.
        let mut policy = policy(&scanner);
        policy["metadata"]["name"] = json!("without");
        let file = up.folder().join("without.json");
        std::fs::write(&file, policy.to_string()).expect("a file");
        let policies = "/apis/policy.hutch.dev/v1alpha1/namespaces/default/sandboxpolicies";
        let output = up.kubectl_args(&["create", "--raw", policies, "-f", &file.display().to_string()]);
        assert!(!output.status.success(), "null is no value: {scanner}");
        assert!(text(&output.stderr).contains(field), "{}", text(&output.stderr));
    }
}

#[test]
fn fields_without_a_value_and_doors_of_a_server_are_refused_by_a_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let head = "apiVersion: policy.hutch.dev/v1alpha1\nkind: SandboxPolicy\nmetadata: {name: a}\nspec:\n";
    for (spec, named) in [
        ("  scanner:\n", "spec.scanner: has no value"),
        ("  egress:\n", "spec.egress: has no value"),
        ("  files:\n", "spec.files: has no value"),
        ("  egress: {rules: [{name: a, any: true, http: }]}\n", "spec.egress.rules[0].http: has no value"),
        ("  egress: {rules: [], budget: }\n", "spec.egress.budget: has no value"),
        ("  scanner: {logs: Redact}\n", "spec.scanner.logs: has an effect only in `hutch up`"),
        ("  scanner: {exec: Log}\n", "spec.scanner.exec: has an effect only in `hutch up`"),
        ("  scanner: {allow: [{hosts: [a.example]}]}\n", "spec.scanner.allow[0]: allows everything"),
    ] {
        std::fs::write(&file, format!("{head}{spec}")).expect("a file");
        let output = Command::new(crate::harness::HUTCH)
            .args(["run", "--policy", &file.display().to_string(), "--", "true"])
            .output()
            .expect("hutch");
        assert!(!output.status.success(), "{spec}");
        let error = text(&output.stderr);
        assert!(error.contains(named), "{spec}: {error}");
    }
}
