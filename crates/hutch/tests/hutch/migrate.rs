//! `hutch migrate` as an operator calls it, and `kubectl apply -k deploy`, both on a `hutch up`.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{HUTCH, Up, succeeded, text};

fn migrate(up: &Up, words: &[&str]) -> Output {
    let mut command = Command::new(HUTCH);
    command.arg("migrate").args(words).arg("--kubeconfig").arg(up.kubeconfig());
    command.stdin(Stdio::null()).output().expect("hutch migrate")
}

#[test]
fn both_phases_around_an_upgrade() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let claim = up.folder().join("claim.yaml");
    let manifest = |name: &str, template: &str| {
        format!(
            "apiVersion: extensions.agents.x-k8s.io/v1alpha1\nkind: SandboxClaim\nmetadata: {{name: {name}}}\n\
             spec: {{sandboxTemplateRef: {{name: {template}}}}}\n"
        )
    };
    std::fs::write(&claim, manifest("old", "python")).expect("a file");
    up.ok_args(&["apply", "-f", &claim.display().to_string()]);

    let dry = migrate(&up, &["--phase=bootstrap", "--dry-run"]);
    let would =
        "SandboxWarmPool default/shadow-pool-python would be made: 1 claim names template python alone\n";
    assert_eq!(succeeded("a dry run", &dry), would);
    succeeded("bootstrap", &migrate(&up, &["--phase", "bootstrap", "--namespace", "default"]));
    let again = succeeded("bootstrap again", &migrate(&up, &["--phase=bootstrap"]));
    assert_eq!(again, "SandboxWarmPool default/shadow-pool-python is there\n");
    let shadow = "agents\\.x-k8s\\.io/migration-shadow";
    let mark = up.ok(&format!("get swp shadow-pool-python -o jsonpath={{.metadata.annotations.{shadow}}}"));
    assert_eq!(mark, "true");
    let printed = succeeded("migrate", &migrate(&up, &["--phase=migrate"]));
    assert!(
        printed.lines().count() == 4 && printed.lines().all(|line| line.ends_with("stored as v1beta1")),
        "{printed}"
    );

    std::fs::write(&claim, manifest("long", &"t".repeat(60))).expect("a file");
    up.ok_args(&["apply", "-f", &claim.display().to_string()]);
    let refused = migrate(&up, &["--phase=bootstrap"]);
    assert_eq!(refused.status.code(), Some(1));
    let complaint = text(&refused.stderr);
    assert!(complaint.starts_with("hutch migrate: 1 problem:\n  SandboxTemplate default/ttt"), "{complaint}");
}

#[test]
fn mistakes_are_named() {
    let run =
        |words: &[&str]| Command::new(HUTCH).arg("migrate").args(words).output().expect("hutch migrate");
    for (words, status, named) in [
        (&[][..], 2, "--phase"),
        (&["--phase=later"], 2, "later"),
        (&["--phase=migrate", "--kubeconfig", "/no/such/file"], 1, "/no/such/file"),
    ] {
        let output = run(words);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {complaint}");
        assert!(complaint.contains(named) && complaint.lines().count() == 1, "{words:?}: {complaint}");
    }
}

#[test]
fn kubectl_renders_and_applies_the_manifests() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let deploy = format!("{}/../../deploy", env!("CARGO_MANIFEST_DIR"));
    let rendered = up.ok_args(&["kustomize", &deploy]);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&rendered).expect("YAML");
    let applied = up.ok_args(&["apply", "--server-side", "--force-conflicts", "-k", &deploy]);
    assert_eq!(applied.lines().count(), documents.len(), "{applied}");
    let image =
        up.ok("get deployment agent-sandbox-controller -n agent-sandbox-system -o jsonpath={..image}");
    assert_eq!(image, concat!("localhost/hutch:", env!("CARGO_PKG_VERSION")));
    let changed = up.ok_args(&["diff", "--server-side", "--force-conflicts", "-k", &deploy]);
    assert_eq!(changed, "", "what was applied is what is there");
}
