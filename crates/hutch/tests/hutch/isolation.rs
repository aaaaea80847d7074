//! The condition `Isolation` of a Sandbox, and the warning of objects that isolate nothing.

use serde_json::json;

use crate::harness::{Up, succeeded, text};
use crate::policies::{applied, apply, enforced, sandbox};

#[test]
fn condition_says_what_separates_a_sandbox_from_the_machine() {
    hutch_testkit::require!(root, kubectl);
    let mapped = Up::start(&["--runtime-class", "gvisor=hutch"]);
    applied(&mapped, &sandbox("plain", &json!({}), None));
    applied(&mapped, &sandbox("mapped", &json!({}), Some("gvisor")));
    for (name, expected) in [
        ("plain", "handler hutch, level native: a jail\""),
        ("mapped", "--runtime-class maps the class gvisor to the handler hutch"),
    ] {
        mapped.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
        let path = "jsonpath={.status.conditions[?(@.type==\"Isolation\")]}";
        let found = mapped.eventually(&format!("get sandbox {name} -o {path}"), |found| !found.is_empty());
        for part in [expected, "\"reason\":\"Native\"", "\"status\":\"True\""] {
            assert!(found.contains(part), "{name}: {found}");
        }
        enforced(&mapped, name, "NoPolicy");
        let described = mapped.ok(&format!("describe sandbox {name}"));
        let opens_nothing = "A NetworkPolicy object, also the managed one of a template, opens nothing here";
        for part in ["Isolation", "PolicyEnforced", "NoPolicy", opens_nothing] {
            assert!(described.contains(part), "{name}: {described}");
        }
    }
    match hutch_testkit::Need::Runsc.missing() {
        Some(reason) => hutch_testkit::note_skip("the isolation of gVisor", reason),
        None => {
            let up = Up::start(&[]);
            applied(&up, &sandbox("real", &json!({}), Some("gvisor")));
            up.ok("wait --for=condition=Ready sandbox/real --timeout=180s");
            let path = "jsonpath={.status.conditions[?(@.type==\"Isolation\")].reason}";
            up.eventually(&format!("get sandbox real -o {path}"), |found| found.trim() == "Gvisor");
        }
    }
}

#[test]
fn network_policy_warns_that_it_opens_and_closes_nothing() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    for types in [json!(["Egress"]), json!(["Ingress", "Egress"])] {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "n"},
            "spec": {"podSelector": {}, "policyTypes": types}});
        let output = apply(&up, &object);
        succeeded("kubectl apply", &output);
        let warned = text(&output.stderr);
        assert!(warned.starts_with("Warning: ") && warned.contains("SandboxPolicy"), "{warned}");
    }
}
