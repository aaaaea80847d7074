//! Credentials and authorities of Sandboxes that are forked, suspended with their memory, and kept in snapshots.

use std::process::Command;

use hutch_testkit::wait::until;
use serde_json::json;

use crate::harness::{binary, succeeded, text};
use crate::kept::{self, resume, suspend};
use crate::policies::{applied, enforced, sandbox};
use crate::provided::{OF_FILE, Site};

/// A Sandbox in gVisor that may use a credential, and has used it.
fn started() -> Site {
    let site = Site::start();
    site.provide("file", &json!({"file": "token"}));
    applied(&site.up, &site.policy(&["file"]));
    let metadata =
        json!({"annotations": {"hutch.dev/shares-generators": "true", "hutch.dev/suspend-keeps": "memory"}});
    applied(&site.up, &sandbox("s", &metadata, Some("gvisor")));
    site.up.ok("wait --for=condition=Ready sandbox/s --timeout=180s");
    enforced(&site.up, "s", "Enforced");
    site.receives("s", "FILE_TOKEN", OF_FILE);
    site
}

/// The placeholder in the memory of the main process of a Sandbox.
fn in_memory(site: &Site, sandbox: &str) -> String {
    let script = "tr '\\0' '\\n' < /proc/1/environ | sed -n 's/^FILE_TOKEN=//p'";
    let found = text(&site.exec(sandbox, script).stdout).trim().to_owned();
    assert!(found.starts_with("hutch_"), "{found}");
    found
}

/// The placeholder that new processes of a Sandbox have.
fn new(site: &Site, sandbox: &str) -> String {
    text(&site.exec(sandbox, "echo $FILE_TOKEN").stdout).trim().to_owned()
}

/// Sends a text as a token, and returns what the server has received and what the program got.
fn send(site: &Site, sandbox: &str, token: &str) -> (String, String) {
    let before = site.peer.printed().len();
    let script = format!("curl -s -m 20 -H 'Authorization: Bearer {token}' https://web.example:PORT/");
    let answer = text(&site.exec(sandbox, &script).stdout);
    (site.peer.printed()[before..].to_owned(), answer)
}

fn fork(site: &Site, name: &str, more: &[&str]) {
    kept::fork(&site.up, &[&["s", "--name", name], more].concat());
    enforced(&site.up, &format!("{name}-0"), "Enforced");
}

#[test]
fn placeholder_of_the_source_is_refused_in_a_fork_that_has_not_inherited_it() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python, runsc);
    let site = started();
    let of_source = in_memory(&site, "s");
    fork(&site, "none", &[]);
    // Its policy gives it a placeholder of its own, which works.
    let own = new(&site, "none-0");
    assert!(own.starts_with("hutch_") && own != of_source, "{own}");
    site.receives("none-0", "FILE_TOKEN", OF_FILE);
    // That in its memory does not.
    assert_eq!(in_memory(&site, "none-0"), of_source);
    let (received, answer) = send(&site, "none-0", &of_source);
    assert!(!received.contains("authorization"), "{received}");
    assert!(answer.contains("of the Sandbox from which this one was forked"), "{answer}");
    let finding = "get events --field-selector involvedObject.kind=Sandbox,involvedObject.name=none-0,reason=EgressRefused \
         -o jsonpath={.items[*].message}";
    site.up
        .eventually(finding, |found| found.contains("file (of the Sandbox from which this one was forked)"));
    let audit = || {
        let data = site.up.data().display().to_string();
        let listed = Command::new(binary()).args(["audit", "list", "--denied", "--data-dir", &data]).output();
        text(&listed.expect("hutch audit").stdout)
    };
    until("the audit log has it", || audit().contains("from which this one was forked"));
    // The source is not affected.
    site.receives("s", "FILE_TOKEN", OF_FILE);
    assert!(!send(&site, "s", &own).0.contains(OF_FILE), "nor can it use that of the fork");

    let refused = site.up.kubectl("annotate sandbox none-0 hutch.dev/fork-credentials=Inherit/x --overwrite");
    assert!(text(&refused.stderr).contains("is set by the server"), "{}", text(&refused.stderr));
}

#[test]
fn fork_that_inherits_credentials_uses_the_placeholder_in_its_memory() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python, runsc);
    let site = started();
    let up = &site.up;
    let of_source = in_memory(&site, "s");
    // Who forks needs the right to use the provider.
    let resources = "sandboxforks.hutch.dev,sandboxsnapshots.hutch.dev";
    up.ok(&format!("create role forker --verb=create,get,restore --resource={resources}"));
    up.ok("create rolebinding forker --role=forker --user=alice");
    let as_alice = || {
        let object = json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxFork", "metadata": {"name": "mine"},
            "spec": {"source": {"sandbox": "s"}, "replicas": 1, "credentials": "Inherit"}});
        let file = up.folder().join("fork.json");
        std::fs::write(&file, object.to_string()).expect("written");
        up.kubectl_args(&["create", "--as=alice", "-f", &file.display().to_string()])
    };
    let error = text(&as_alice().stderr);
    assert!(
        error.contains("spec.credentials") && error.contains("use") && error.contains("\"file\""),
        "{error}"
    );
    let rule = json!({"apiGroups": ["policy.hutch.dev"], "resources": ["credentialproviders"],
        "resourceNames": ["file"], "verbs": ["use"]});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "user-of-file"}, "rules": [rule]});
    applied(up, &role);
    up.ok("create rolebinding user-of-file --role=user-of-file --user=alice");
    succeeded("create", &as_alice());
    up.ok("wait --for=condition=Ready sandboxfork/mine --timeout=180s");
    enforced(up, "mine-0", "Enforced");
    assert_eq!((in_memory(&site, "mine-0"), new(&site, "mine-0")), (of_source.clone(), of_source.clone()));
    until("the value", || send(&site, "mine-0", &of_source).0.contains(OF_FILE));
    assert!(!up.ok("get events -o json").contains("from which this one was forked"));
}

#[test]
fn image_of_a_sandbox_has_placeholders_and_no_value() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python, runsc);
    let site = started();
    let placeholder = in_memory(&site, "s");
    kept::snapshot(&site.up, "snap", "s", "Full");
    suspend(&site.up, "s");
    let folder = site.up.data().join("snapshots");
    let images =
        std::fs::read_dir(&folder).expect("a folder").flatten().filter(|entry| entry.path().is_dir());
    let images: Vec<_> = images.map(|entry| entry.path()).collect();
    assert_eq!(images.len(), 2, "of the snapshot and of the suspend");
    for image in images {
        let found = |text: &str| {
            let output = Command::new("grep").args(["-rlaF", text]).arg(&image).output().expect("grep");
            // 1: no file has it.
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
            !output.stdout.is_empty()
        };
        assert!(!found(OF_FILE), "{image:?}");
        // The search finds what is there.
        assert!(found(&placeholder), "{image:?}");
    }
    resume(&site.up, "s");
    site.receives("s", "FILE_TOKEN", OF_FILE);
    let (received, _) = send(&site, "s", &placeholder);
    assert!(received.contains(OF_FILE), "the placeholder in the memory still works: {received}");
}

/// The certificate of the authority that a Sandbox trusts: the last one of its file.
fn authority(site: &Site, sandbox: &str) -> String {
    let script = "awk '/BEGIN/ {last = \"\"} {last = last $0} END {print last}' $SSL_CERT_FILE";
    let found = text(&site.exec(sandbox, script).stdout);
    assert!(found.starts_with("-----BEGIN CERTIFICATE-----"), "{found}");
    found
}

#[test]
fn authority_stays_the_same_for_a_sandbox_and_is_another_one_in_its_forks() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python, runsc);
    let mut site = started();
    let first = authority(&site, "s");
    // The proxy still has the key: a program that has read the certificate once verifies its answers.
    let script = "cp $SSL_CERT_FILE /etc/kept; curl -s -m 20 --cacert /etc/kept https://web.example:PORT/ && echo verified";
    let verifies = |site: &Site, sandbox: &str, script: &str| {
        until("the certificate is verified", || {
            text(&site.exec(sandbox, script).stdout).contains("verified")
        });
    };
    verifies(&site, "s", script);
    let kept = "curl -s -m 20 --cacert /etc/kept https://web.example:PORT/ && echo verified";
    suspend(&site.up, "s");
    resume(&site.up, "s");
    assert_eq!(authority(&site, "s"), first, "after a suspend with memory");
    verifies(&site, "s", kept);

    fork(&site, "f", &[]);
    let of_fork = authority(&site, "f-0");
    assert_ne!(of_fork, first);
    verifies(&site, "f-0", script);

    // Suspended, also over a restart of everything.
    suspend(&site.up, "s");
    assert_eq!(site.up.stop(), Some(0));
    site.up.restart();
    resume(&site.up, "s");
    assert_eq!(authority(&site, "s"), first, "after a restart");
    verifies(&site, "s", kept);
    assert_eq!(authority(&site, "f-0"), of_fork, "of the fork, after a restart");

    // And one that keeps only its files.
    site.up.ok("annotate sandbox s hutch.dev/suspend-keeps=files --overwrite");
    suspend(&site.up, "s");
    resume(&site.up, "s");
    assert_eq!(authority(&site, "s"), first, "after a suspend without memory");
}
