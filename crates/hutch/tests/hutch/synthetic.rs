//! Synthetic addresses of names: memory that is restored may hold them, and they mean the same names then.

use serde_json::json;

use crate::harness::Up;
use crate::kept::{self, resume, start, suspend};
use crate::policies::{applied, enforced, policy};

/// Address that a name has inside a Sandbox.
fn address(up: &Up, sandbox: &str, name: &str) -> String {
    let found = up.ok_args(&["exec", sandbox, "--", "getent", "ahostsv4", name]);
    let address = found.split_whitespace().next().expect("an address");
    assert!(address.starts_with("198.18.1."), "{found}");
    address.to_owned()
}

#[test]
fn names_keep_their_addresses_in_memory_that_is_restored() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    let rule = json!([{"name": "all", "hosts": ["*.names.example"]}]);
    applied(&up, &policy("ClusterSandboxPolicy", "names", &json!({}), &rule));
    let mut object = kept::object("s");
    object["metadata"]["annotations"]["hutch.dev/shares-generators"] = "true".into();
    kept::run(&up, &object);
    enforced(&up, "s", "Enforced");
    let names = ["b.names.example", "a.names.example", "c.names.example"];
    let before = names.map(|name| address(&up, "s", name));
    assert_eq!(before.iter().collect::<std::collections::HashSet<_>>().len(), 3);

    suspend(&up, "s");
    resume(&up, "s");
    // In another order, by which they would have others.
    for (name, before) in names.iter().zip(&before).rev() {
        assert_eq!(address(&up, "s", name), *before, "{name}");
    }

    let fork = json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxFork", "metadata": {"name": "f"},
        "spec": {"source": {"sandbox": "s"}, "replicas": 1, "content": "Full"}});
    kept::apply(&up, &fork);
    up.eventually("get sandbox f-0 -o name", |found| found.contains("f-0"));
    kept::ready(&up, "f-0");
    for (name, before) in names.iter().zip(&before).rev() {
        assert_eq!(address(&up, "f-0", name), *before, "{name} in a fork");
    }
    // Another Sandbox has names of its own.
    kept::run(&up, &kept::object("other"));
    enforced(&up, "other", "Enforced");
    assert_eq!(address(&up, "other", "c.names.example"), before[0]);
}
