//! The kinds of policies on a real Kubernetes: it takes their CRDs, with every rule in CEL, and judges policies as `hutch up`.

use std::path::Path;
use std::process::{Command, Output};

use hutch_testkit::cluster::{Cluster, Options};
use serde_json::{Value, json};

use crate::harness::{Up, text};

/// Fields, and a part of their description.
const EXPLAINED: [(&str, &str); 3] = [
    ("sandboxpolicy.spec.egress.rules", "plaintext"),
    ("clustersandboxpolicy.spec.appliesTo", "namespaceSelector"),
    ("credentialprovider.spec", "serviceAccountToken"),
];

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(cluster.kubeconfig()).args(arguments).output().expect("kubectl")
}

fn apply(cluster: &Cluster, kind: &str, spec: &Value) -> Output {
    let object = json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": kind, "metadata": {"name": "p"}, "spec": spec,
    });
    let file = cluster.folder().join("policy.json");
    std::fs::write(&file, object.to_string()).expect("written");
    kubectl(cluster, &["apply", "--server-side", "-f", &file.display().to_string()])
}

fn rules(rule: &Value) -> Value {
    json!({"egress": {"rules": [rule]}})
}

#[tokio::test]
async fn kubernetes_takes_the_crds_and_judges_policies() {
    hutch_testkit::require!(kubernetes, kubectl);
    let options = Options { crds: None, controllers: false, node: false };
    let cluster = Cluster::start(options).await.expect("a cluster");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy");
    let applied = kubectl(&cluster, &["apply", "--server-side", "-k", &folder.display().to_string()]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let kinds = ["clustersandboxpolicies", "sandboxpolicies", "credentialproviders"];
    for kind in kinds {
        let name = format!("crd/{kind}.policy.hutch.dev");
        let served = kubectl(&cluster, &["wait", "--for=condition=Established", &name, "--timeout=60s"]);
        assert!(served.status.success(), "{}", text(&served.stderr));
    }
    let everything = json!({
        "mode": "Enforce", "onUnsupported": "Report", "appliesTo": {"selector": {"matchLabels": {"app": "agent"}}},
        "scanner": {"rules": ["builtin/secrets", "builtin/pii"], "outbound": "Block", "inbound": "Redact", "injection": "Log"},
        "files": [{"path": "/workspace", "access": "Read"}, {"path": "/workspace/.env", "access": "None"}],
        "egress": {
            "rules": [
                {"name": "tls", "hosts": ["a.example.com"], "tls": "Passthrough", "when": "task.risk <= 2"},
                {"name": "read", "hosts": ["b.example.com"], "http": [{
                    "methods": ["GET"], "paths": ["/a/**"], "query": [{"name": "q", "exact": "1"}],
                    "headers": [{"name": "x", "regex": "[0-9]+"}], "body": {"maxBytes": "64Ki", "contentTypes": ["text/plain"]},
                    "decision": "Deny",
                }]},
                {"name": "tools", "any": true, "mcp": [{"methods": ["tools/call"], "tools": ["search_*"], "args": "args.a == 1"}]},
            ],
            "budget": {"bytesOut": "50Mi", "per": "1h", "requests": 60, "requestsPer": "1m", "hosts": 40},
        },
    });
    for kind in ["ClusterSandboxPolicy", "SandboxPolicy"] {
        let applied = apply(&cluster, kind, &everything);
        assert!(applied.status.success(), "{kind}: {}", text(&applied.stderr));
        for (spec, field) in [
            (rules(&json!({"name": "a"})), "matches nothing"),
            (rules(&json!({"name": "a", "any": true, "http": [{}], "protocol": "TCP"})), "`Auto`"),
            (rules(&json!({"name": "a", "any": true, "mcp": [{}], "decision": "Deny"})), "entries"),
            (rules(&json!({"name": "a", "any": true, "http": [{"methods": ["get"]}]})), "methods"),
            (rules(&json!({"name": "a", "any": true, "http": [{"query": [{"name": "q"}]}]})), "one of"),
            (json!({"egress": {"budget": {"requests": 1}}}), "belong together"),
            (rules(&json!({"name": "a", "any": true, "scanner": {}})), "scanner"),
            (json!({"files": [{"path": "workspace", "access": "Read"}]}), "files"),
            (
                json!({"files": [{"path": "/a", "access": "Read"}, {"path": "/a", "access": "None"}]}),
                "uplicate",
            ),
            (json!({"mode": "Observe", "files": [{"path": "/a", "access": "Read"}]}), "no effect"),
            (json!({"onUnsupported": "Report", "scanner": {"outbound": "Block"}}), "onUnsupported"),
            (json!({"onUnsupported": "Ignore", "scanner": {"logs": "Block"}}), "onUnsupported"),
        ] {
            let refused = apply(&cluster, kind, &spec);
            let reason = text(&refused.stderr);
            assert!(!refused.status.success() && reason.contains(field), "{kind} {spec}: {reason}");
        }
    }
    for (spec, field) in [
        (json!({"hosts": ["a.example.com"], "secret": {"name": "s", "key": "token"}}), None),
        (
            json!({"hosts": ["a.example.com"], "env": "A", "vault": {"path": "secret/data/a", "field": "b"}}),
            Some("source"),
        ),
        (json!({"hosts": ["a.example.com"]}), Some("source")),
        (json!({"hosts": [], "env": "A"}), Some("hosts")),
        (json!({"hosts": ["a.example.com"], "env": "1A"}), Some("env")),
        (
            json!({"hosts": ["a.example.com"], "serviceAccountToken": {"audience": "a", "expirationSeconds": 1}}),
            Some("expirationSeconds"),
        ),
        (json!({"hosts": ["a.example.com"], "env": "A", "unknown": 1}), Some("unknown")),
    ] {
        let output = apply(&cluster, "CredentialProvider", &spec);
        let reason = text(&output.stderr);
        match field {
            None => assert!(output.status.success(), "{spec}: {reason}"),
            Some(field) => assert!(!output.status.success() && reason.contains(field), "{spec}: {reason}"),
        }
    }
    for (path, described) in EXPLAINED {
        let output = kubectl(&cluster, &["explain", path]);
        assert!(text(&output.stdout).contains(described), "{path}: {output:?}");
    }
    let listed = text(&kubectl(&cluster, &["get", "sandboxpolicies,clustersandboxpolicies"]).stdout);
    assert!(listed.contains("MODE") && listed.contains("Enforce"), "{listed}");
}

#[test]
fn kubectl_explains_the_kinds_of_policies() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    for (path, described) in EXPLAINED {
        let printed = up.ok(&format!("explain {path}"));
        assert!(printed.contains(described) && printed.contains("DESCRIPTION"), "{path}: {printed}");
    }
}
