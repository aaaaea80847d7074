//! Images that `hutch image commit` makes of Sandboxes.

use std::process::Command;

use serde_json::{Value, json};

use super::{Images, shell};
use crate::harness::{HUTCH, Up, refused, succeeded, text};
use crate::policies::applied;

/// Changes of each kind: a new file of another user, one that is removed, a folder that replaces another, a changed mode and
/// content, a link, and a name that would remove something from a layer. As in every unpacked
/// layer, set-id bits are dropped.
const CHANGES: &str = "
mkdir -p /srv/new && echo new > /srv/new/file && chown -R www-data:games /srv/new && chmod 2750 /srv/new
rm /etc/debian_version
rm -r /etc/apt && mkdir /etc/apt && echo only > /etc/apt/only
echo more >> /etc/issue && chmod 640 /etc/issue
ln -s /srv/new/file /srv/link
touch /srv/.wh.new";
const CHECKS: &str = "
stat -c '%U:%G %a' /srv/new /srv/new/file
cat /srv/new/file /srv/link
test -e /etc/debian_version || echo gone
ls /etc/apt
tail -n 1 /etc/issue && stat -c %a /etc/issue
id -un www-data";
const EXPECTED: &str = "www-data:games 750\nwww-data:games 644\nnew\nnew\ngone\nonly\nmore\n640\nwww-data\n";

fn sandbox(name: &str, image: &str, class: Option<&str>) -> Value {
    json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"runtimeClassName": class, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": image, "command": ["sleep", "1000000"]}]}}}})
}

fn ready(up: &Up, sandbox: &Value) {
    applied(up, sandbox);
    let name = sandbox["metadata"]["name"].as_str().expect("a name");
    up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=120s"));
}

fn image(up: &Up, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(HUTCH);
    command.arg("image").args(words).arg("--data-dir").arg(up.data());
    command.env("KUBECONFIG", up.kubeconfig()).output().expect("hutch")
}

fn changes_are_those_of_the_next_sandbox(class: Option<&str>) {
    let images = Images::new();
    let up = images.up();
    let folder = images.path().join("debian").display().to_string();
    succeeded("import", &image(&up, &["import", &folder, "debian:v1"]));
    ready(&up, &sandbox("first", "hutch.local/debian:v1", class));
    shell(&up, "first", CHANGES);
    let committed = image(&up, &["commit", "first", "debian:v2", "--json"]);
    assert!(text(&committed.stderr).contains("names that begin with .wh."), "{}", text(&committed.stderr));
    let printed: Value = serde_json::from_str(&succeeded("commit", &committed)).expect("JSON");
    assert_eq!(printed["name"], "hutch.local/debian:v2");
    ready(&up, &sandbox("second", "hutch.local/debian:v2", class));
    assert_eq!(shell(&up, "second", CHECKS), EXPECTED);

    // A layer on a layer.
    shell(&up, "second", "rm -r /srv/new && echo third > /srv/third");
    succeeded("commit", &image(&up, &["commit", "second", "debian:v3"]));
    ready(&up, &sandbox("third", "hutch.local/debian:v3", class));
    assert_eq!(shell(&up, "third", "ls /srv; cat /srv/third; ls /etc/apt"), "link\nthird\nthird\nonly\n");
    let inspected = succeeded("inspect", &image(&up, &["inspect", "hutch.local/debian:v3"]));
    let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
    assert_eq!(inspected[0]["layers"].as_array().map(Vec::len), Some(3), "{inspected}");
    assert_eq!(shell(&up, "first", "cat /srv/new/file"), "new\n", "the Sandbox continues");

    // A file without content that announces more than a disk has, and an attempt that is refused.
    shell(&up, "first", "truncate -s 1T /srv/large");
    let too_large = image(&up, &["commit", "first", "debian:v2"]);
    refused(&too_large, 1, &["srv/large"]);
    let list = succeeded("list", &image(&up, &["list", "--quiet"]));
    assert!(list.contains("hutch.local/debian:v2"), "{list}");
}

#[test]
fn changes_of_a_sandbox_become_an_image() {
    hutch_testkit::require!(root, kubectl, stock);
    changes_are_those_of_the_next_sandbox(None);
}

#[test]
fn changes_of_a_sandbox_in_gvisor_become_an_image() {
    hutch_testkit::require!(root, kubectl, stock, runsc);
    changes_are_those_of_the_next_sandbox(Some("gvisor"));
}

#[test]
fn commit_that_cannot_be_is_refused_by_name() {
    hutch_testkit::require!(root, user_namespaces, kubectl);
    let up = Up::start(&[]);
    let mut built_in = sandbox("built-in", "hutch/host", None);
    built_in["spec"]["podTemplate"]["spec"]["initContainers"] =
        json!([{"name": "first", "image": "hutch/host", "command": ["true"]}]);
    ready(&up, &built_in);
    let init = image(&up, &["commit", "built-in", "app:v1", "--container", "first"]);
    refused(&init, 1, &["container first does not run"]);
    let folder = tempfile::tempdir().expect("tempdir");
    let program = folder.path().join("hutch");
    hutch_testkit::copy_program(HUTCH, &program);
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("chmod");
    let mut ordinary = Command::new("setpriv");
    ordinary.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    ordinary.args(["image", "commit", "built-in", "app:v1", "--data-dir"]).arg(up.data());
    refused(&ordinary.output().expect("setpriv"), 1, &["belong to root: run this command as root"]);
    refused(
        &image(&up, &["commit", "built-in", "app:v1"]),
        1,
        &["hutch/host", "neither pulled nor imported"],
    );
    refused(&image(&up, &["commit", "missing", "app:v1"]), 1, &["missing", "kubectl get sandboxes"]);
    refused(&image(&up, &["commit", "built-in", "ghcr.io/org/app@sha256:00"]), 1, &["sha256"]);
    refused(&image(&up, &["commit", "built-in", "app:v1", "--container", "d"]), 1, &["--container", "d"]);
    let mut elsewhere = Command::new(HUTCH);
    let empty = tempfile::tempdir().expect("tempdir");
    elsewhere.args(["image", "commit", "built-in", "app:v1", "--data-dir"]).arg(empty.path());
    let output = elsewhere.env("KUBECONFIG", up.kubeconfig()).output().expect("hutch");
    refused(&output, 1, &["--data-dir", "not the data folder"]);
}
