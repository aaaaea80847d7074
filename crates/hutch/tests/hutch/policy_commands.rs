//! `hutch allow` and `hutch policy`.

use std::process::{Command, Output};

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::harness::{Up, binary, hutch, refused, succeeded, text};
use crate::policies::{applied, apply, policy, sandbox};

/// Returns the output of `hutch policy explain`, whose exit status must be this one.
pub(crate) fn explained(up: &Up, status: i32, arguments: &[&str]) -> String {
    let output = hutch(up, &[&["policy", "explain"], arguments].concat());
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    text(&output.stdout)
}

fn start() -> Up {
    let up = Up::start(&[]);
    applied(&up, &sandbox("a", &json!({}), None));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    up
}

/// Number of rules that the node applies to the Sandbox: the names of its policies.
fn enforced_by(up: &Up, name: &str, expected: &str) {
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].message}";
    up.eventually(&format!("get sandbox {name} -o {path}"), |found| found.contains(expected));
}

#[test]
fn host_is_allowed_for_one_sandbox_and_for_a_time() {
    hutch_testkit::require!(root, kubectl);
    let up = start();
    applied(&up, &sandbox("b", &json!({}), None));
    assert!(
        explained(&up, 1, &["a", "pypi.org"]).contains("pypi.org:443: Deny: no policy opens the network")
    );
    succeeded("hutch allow", &hutch(&up, &["allow", "a", "pypi.org"]));
    let second =
        succeeded("hutch allow", &hutch(&up, &["allow", "sandbox/a", "*.example.com:80", "--for", "4s"]));
    assert!(second.contains("*.example.com:80 until 2"), "{second}");
    let table = explained(&up, 0, &["a", "https://pypi.org/simple/"]);
    assert!(table.contains("Namespace  allow-a  Enforce  pypi.org  Allow\n"), "{table}");
    assert!(table.contains("pypi.org:443: Allow; TLS does not end at the proxy\n"), "{table}");
    explained(&up, 0, &["a", "http://x.example.com/"]);
    explained(&up, 1, &["a", "https://x.example.com/"]);
    explained(&up, 1, &["b", "pypi.org"]);
    enforced_by(&up, "a", "allow-a");
    enforced_by(&up, "b", "no policy applies");
    let object: Value = serde_json::from_str(&up.ok("get sandboxpolicy allow-a -o json")).expect("JSON");
    assert_eq!(object["metadata"]["ownerReferences"][0]["name"], "a");
    assert_eq!(object["spec"].get("expires"), None, "one of its rules has no end");
    until("the second rule has ended", || {
        hutch(&up, &["policy", "explain", "a", "http://x.example.com/"]).status.code() == Some(1)
    });
    explained(&up, 0, &["a", "pypi.org"]);
    up.ok("delete sandbox a");
    up.eventually("get sandboxpolicies", |policies| !policies.contains("allow-a"));
}

#[test]
fn rule_for_a_time_does_not_hide_that_the_host_is_open_for_longer() {
    hutch_testkit::require!(root, kubectl);
    let up = start();
    let allow =
        |arguments: &[&str]| succeeded("hutch allow", &hutch(&up, &[&["allow", "a"], arguments].concat()));
    allow(&["pypi.org:443"]);
    let printed = allow(&["pypi.org", "--for", "2s"]);
    assert!(printed.contains("before, it was open without an end"), "{printed}");
    until("it has ended", || hutch(&up, &["policy", "explain", "a", "pypi.org"]).status.code() == Some(1));
    allow(&["*.example.org"]);
    let printed = allow(&["a.example.org", "--for", "1h"]);
    assert!(
        printed.contains("rule \"*.example.org\" of the same policy opens it without an end"),
        "{printed}"
    );
}

#[test]
fn policy_that_has_ended_no_longer_applies_without_an_event() {
    hutch_testkit::require!(root, kubectl);
    let mut up = start();
    succeeded("hutch allow", &hutch(&up, &["allow", "a", "pypi.org", "--for", "5s"]));
    enforced_by(&up, "a", "allow-a");
    enforced_by(&up, "a", "no policy applies");
    let columns = up.ok("get sandboxpolicies");
    assert!(columns.contains("EXPIRES") && columns.contains("allow-a"), "the object stays: {columns}");
    up.stop();
    up.restart();
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    enforced_by(&up, "a", "no policy applies");
    // The next one begins from nothing.
    succeeded("hutch allow", &hutch(&up, &["allow", "a", "example.com"]));
    explained(&up, 0, &["a", "example.com"]);
    explained(&up, 1, &["a", "pypi.org"]);
    let mut wrong = policy("SandboxPolicy", "p", &json!({}), &json!([]));
    wrong["spec"]["expires"] = "tomorrow".into();
    refused(&apply(&up, &wrong), 1, &["spec.expires", "tomorrow"]);
}

#[test]
fn host_that_another_policy_closes_is_not_allowed() {
    hutch_testkit::require!(root, kubectl);
    let up = start();
    let rules = json!([
        {"name": "index", "hosts": ["pypi.org"], "http": [{"methods": ["GET"]}]},
        {"name": "no", "hosts": ["*.bad.example"], "decision": "Deny"},
    ]);
    applied(&up, &policy("ClusterSandboxPolicy", "floor", &json!({}), &rules));
    let mut observes = policy("SandboxPolicy", "observes", &json!({}), &json!([]));
    observes["spec"]["mode"] = "Observe".into();
    applied(&up, &observes);
    refused(
        &hutch(&up, &["allow", "a", "example.com"]),
        1,
        &["no rule of policy \"floor\" allows it", "must change"],
    );
    refused(&hutch(&up, &["allow", "a", "x.bad.example"]), 1, &["rule \"no\" of policy \"floor\" denies it"]);
    let known = succeeded("hutch allow", &hutch(&up, &["allow", "a", "pypi.org"]));
    assert!(known.contains("already, by policy floor"), "{known}");
    assert_eq!(up.ok("get sandboxpolicies -o name").trim(), "sandboxpolicy.policy.hutch.dev/observes");
    up.ok("delete clustersandboxpolicy floor");
    refused(&hutch(&up, &["allow", "a", "10.1.2.3:5432"]), 1, &["10.1.2.3 stays closed", "private"]);
    for own in ["localhost:80", "127.0.0.1:80"] {
        refused(&hutch(&up, &["allow", "a", own]), 1, &[own, "stays closed", "the sandbox itself"]);
    }
    refused(&hutch(&up, &["allow", "a", "*.com"]), 2, &["HOST"]);
    refused(&hutch(&up, &["allow", "missing", "pypi.org"]), 1, &["missing"]);
    applied(&up, &policy("ClusterSandboxPolicy", "floor", &json!({}), &rules));

    let found = explained(&up, 0, &["a", "https://pypi.org/x", "-o", "json"]);
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!((&found["decision"], &found["endsTls"]), (&json!("Allow"), &json!(true)));
    assert_eq!(
        found["policies"],
        json!([
            {"authority": "Cluster", "policy": "floor", "mode": "Enforce", "rule": "index", "decision": "Allow"},
            {"authority": "Namespace", "policy": "observes", "mode": "Observe", "rule": null, "decision": "Deny"},
        ])
    );
    let denied = explained(&up, 1, &["a", "https://pypi.org/x", "--method", "POST"]);
    assert!(denied.contains("pypi.org:443: Deny: no rule of policy \"floor\" allows it"), "{denied}");
    refused(&hutch(&up, &["policy", "explain", "a", "ftp://pypi.org/"]), 2, &["ftp"]);
    refused(&hutch(&up, &["policy", "explain", "missing", "pypi.org"]), 2, &["missing"]);
}

/// Objects of the documentation by which a team writes its policies.
fn roles() -> String {
    let page = include_str!("../../../../docs/policy.md");
    let section = page.split("## Who may write policies").nth(1).expect("the section");
    section
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("an example")
        .to_owned()
}

#[test]
fn team_with_the_documented_roles_writes_policies_of_its_namespace_only() {
    hutch_testkit::require!(root, kubectl);
    let up = start();
    up.ok("create namespace team");
    up.ok("create rolebinding devs --clusterrole=edit --group=devs -n team");
    let config = up.folder().join("alice").display().to_string();
    succeeded(
        "hutch user",
        &hutch(&up, &["user", "create", "alice", "--group", "devs", "--output", &config]),
    );
    let file = |name: &str, object: &str| {
        let file = up.folder().join(name);
        std::fs::write(&file, object).expect("written");
        file.display().to_string()
    };
    let alice = |words: &[&str]| up.kubectl_args(&[&["--kubeconfig", &config], words].concat());
    let rules = json!([{"name": "index", "hosts": ["pypi.org"]}]);
    let own = file("own", &policy("SandboxPolicy", "own", &json!({}), &rules).to_string());
    let cluster = file("cluster", &policy("ClusterSandboxPolicy", "all", &json!({}), &rules).to_string());
    let mut agent = sandbox("agent", &json!({}), None);
    agent["metadata"]["namespace"] = "team".into();
    let agent = file("agent", &agent.to_string());
    succeeded("kubectl", &alice(&["apply", "-f", &agent]));
    refused(&alice(&["create", "-n", "team", "-f", &own]), 1, &["forbidden", "sandboxpolicies"]);
    up.ok(&format!("apply -f {}", file("roles", &roles())));
    until("the rules are part of the role", || alice(&["create", "-n", "team", "-f", &own]).status.success());
    let explain = ["policy", "explain", "agent", "pypi.org", "-n", "team", "--kubeconfig", &config];
    let explained = Command::new(binary()).args(explain).env_clear().output().expect("hutch");
    assert!(succeeded("hutch", &explained).contains("pypi.org:443: Allow"), "{explained:?}");
    let allow = ["allow", "agent", "example.com", "-n", "team", "--kubeconfig", &config];
    let allowed = Command::new(binary()).args(allow).env_clear().output().expect("hutch");
    refused(&allowed, 1, &["no rule of policy \"own\" allows it"]);
    refused(&alice(&["create", "-n", "default", "-f", &own]), 1, &["forbidden"]);
    refused(&alice(&["create", "-f", &cluster]), 1, &["forbidden", "clustersandboxpolicies"]);
    succeeded("kubectl", &alice(&["get", "clustersandboxpolicies"]));
    succeeded("kubectl", &alice(&["delete", "sandboxpolicy", "own", "-n", "team"]));
}

/// Runs `hutch policy test` for a file with this text.
fn tested(text: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, text).expect("written");
    Command::new(binary()).args(["policy", "test"]).arg(file).env_clear().output().expect("hutch")
}

const POLICIES: &str = "apiVersion: policy.hutch.dev/v1alpha1
kind: SandboxPolicy
metadata: {name: agent}
spec:
  appliesTo: {templates: [python]}
  egress:
    rules:
    - {name: index, hosts: [pypi.org], http: [{methods: [GET, HEAD], paths: [/simple/**]}]}
    - {name: tools, hosts: [mcp.example], mcp: [{tools: ['search_*']}]}
    - {name: db, hosts: [db.example], ports: [5432], protocol: TCP}
    - {name: net, cidrs: [0.0.0.0/0], ports: [80], plaintext: true}
---
";

#[test]
fn cases_beside_a_policy_pass_or_fail() {
    let cases = "apiVersion: policy.hutch.dev/v1alpha1
kind: PolicyTest
metadata: {name: agent}
sandbox: {template: python}
cases:
- {name: packages, url: https://pypi.org/simple/requests/, expect: Allow, rule: index}
- {name: uploads, url: https://pypi.org/simple/, method: POST, expect: Deny}
- {name: search, url: https://mcp.example/, method: POST, mcp: {tool: search_web}, expect: Allow, rule: tools}
- {name: delete, url: https://mcp.example/, method: POST, mcp: {tool: delete_all}, expect: Deny}
- {name: database, host: 'db.example:5432', expect: Allow, rule: db}
- {name: elsewhere, host: example.com, expect: Deny}
- {name: public, host: '1.1.1.1:80', expect: Allow, rule: net}
- {name: metadata, url: 'http://169.254.169.254/latest', expect: Deny}
- {name: private, host: '10.1.2.3:80', expect: Deny}
";
    let output = tested(&format!("{POLICIES}{cases}"));
    let printed = succeeded("hutch policy test", &output);
    assert!(
        printed.contains("ok      packages\n") && printed.ends_with("9 of 9 cases passed\n"),
        "{printed}"
    );
    for (from, to, line) in [
        (
            "expect: Deny}\n- {name: search",
            "expect: Allow}\n- {name: search",
            "FAILED  uploads: expected Allow: Deny: no rule of policy \"agent\"",
        ),
        (
            "latest', expect: Deny",
            "latest', expect: Allow",
            "FAILED  metadata: expected Allow: Deny: 169.254.169.254 is not dialed: it is link-local",
        ),
        ("rule: db", "rule: web", "FAILED  database: expected rule \"web\": \"db\" decides"),
        (
            "template: python",
            "template: node",
            "FAILED  packages: expected Allow: Deny: no policy opens the network",
        ),
    ] {
        let output = tested(&format!("{POLICIES}{}", cases.replace(from, to)));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let printed = text(&output.stdout);
        assert!(printed.contains(line), "{printed}");
    }
    refused(&tested(POLICIES), 2, &["no cases"]);
    refused(&tested(cases), 2, &["no policy"]);
    refused(
        &tested(&format!("{POLICIES}{}", cases.replace("expect: Allow", "expect: Maybe"))),
        2,
        &["Maybe"],
    );
    refused(
        &tested(&format!("{POLICIES}{}", cases.replace("tools", "tolls").replace("mcp:", "mpc:"))),
        2,
        &["mpc"],
    );
}

#[test]
fn cases_about_another_sandbox_are_decided_by_the_rules_about_sandboxes() {
    let policies = "apiVersion: policy.hutch.dev/v1alpha1
kind: ClusterSandboxPolicy
metadata: {name: floor}
spec:
  appliesTo: {}
  egress:
    rules:
    - {name: db, sandboxes: [{selector: {matchLabels: {role: db}}}], ports: [5432]}
    - {name: far, sandboxes: [{name: db, namespaceSelector: {matchLabels: {team: far}}}], ports: [5432]}
    - {name: never, sandboxes: [{name: old}], ports: [1-65535], decision: Deny}
---
";
    let cases = "apiVersion: policy.hutch.dev/v1alpha1
kind: PolicyTest
metadata: {name: app}
sandbox: {name: app, namespace: team}
cases:
- {name: own, sandbox: {labels: {role: db}, port: 5432}, expect: Allow, rule: db}
- {name: port, sandbox: {labels: {role: db}, port: 22}, expect: Deny}
- {name: other, sandbox: {name: db, namespace: elsewhere, labels: {role: db}, port: 5432}, expect: Deny}
- {name: far, sandbox: {name: db, namespace: far, namespaceLabels: {team: far}, port: 5432}, expect: Allow, rule: far}
- {name: old, sandbox: {name: old, labels: {role: db}, port: 5432}, expect: Deny, rule: never}
- {name: host, host: 'db:5432', expect: Deny}
";
    let printed = succeeded("hutch policy test", &tested(&format!("{policies}{cases}")));
    assert!(printed.ends_with("6 of 6 cases passed\n"), "{printed}");
    for (from, to, line) in [
        ("rule: never", "rule: db", "FAILED  old: expected rule \"db\": \"never\" decides"),
        (
            "expect: Allow, rule: db",
            "expect: Deny",
            "FAILED  own: expected Deny: Allow: port 5432 of sandbox team/, ",
        ),
        (
            "'db:5432', expect: Deny",
            "'db:5432', expect: Allow",
            "allows it; rules with `sandboxes` decide cases with `sandbox` only\n",
        ),
    ] {
        let output = tested(&format!("{policies}{}", cases.replace(from, to)));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stdout).contains(line), "{line}: {}", text(&output.stdout));
    }
    for (from, to, named) in [
        ("port: 22}", "port: 22}, method: POST", "have no effect with `sandbox`"),
        ("host: 'db:5432'", "host: 'db:5432', sandbox: {port: 1}", "one of them only"),
        ("port: 22", "prot: 22", "prot"),
    ] {
        refused(&tested(&format!("{policies}{}", cases.replace(from, to))), 2, &[named]);
    }
}
