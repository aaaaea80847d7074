//! Users with client certificates: what they may do, and that deleting one ends what it has open.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use base64::Engine;
use serde_json::json;

use crate::harness::{Up, binary, refused, running, text};
use crate::names::submitted;

/// Runs `hutch user` with the admin credential.
fn user(up: &Up, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("user").args(words).arg("--kubeconfig").arg(up.kubeconfig());
    command.output().expect("hutch user runs")
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// kubectl with the credential of a user.
fn kubectl(kubeconfig: &Path, words: &str) -> Command {
    let mut command = Command::new(hutch_testkit::tool("kubectl").expect("kubectl"));
    command.arg("--kubeconfig").arg(kubeconfig).args(words.split(' '));
    // Its cache.
    command.env("HOME", kubeconfig.parent().expect("a folder"));
    command
}

#[test]
fn deleted_user_loses_its_exec_and_its_watch_at_once() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let file = up.folder().join("alice.kubeconfig");
    let path = file.to_str().expect("a path");
    succeeds(&user(&up, &["create", "alice", "--group", "devs", "--output", path]));
    assert_eq!(std::fs::metadata(&file).expect("the kubeconfig").mode() & 0o777, 0o600);
    refused(&user(&up, &["create", "alice"]), 1, &["alice", "hutch user delete alice"]);
    let shown = succeeds(&user(&up, &["list"]));
    let shown: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(shown[0], ["NAME", "GROUPS", "EXPIRES", "REQUEST"]);
    assert!(matches!(shown[1][..], ["alice", "devs", end, "alice"] if end.starts_with("20")), "{shown:?}");
    let denied = kubectl(&file, "get pods").output().expect("kubectl");
    assert!(
        text(&denied.stderr).contains("User \"alice\" cannot list resource \"pods\""),
        "{}",
        text(&denied.stderr)
    );
    up.ok("create rolebinding devs --clusterrole=edit --group=devs");
    up.ok("run waiting --image=hutch/host --restart=Never --command -- sleep 1000");
    up.ok("wait pod/waiting --for=condition=Ready --timeout=30s");
    let open = |words: &str| {
        let mut command = kubectl(&file, words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kubectl")
    };
    let mut open =
        [open("exec waiting -- sleep 1234567"), open("get pods --watch"), open("logs --follow waiting")];
    while !running("sleep 1234567") {
        std::thread::sleep(Duration::from_millis(20));
    }
    succeeds(&user(&up, &["delete", "alice"]));
    for child in &mut open {
        let _ = child.wait().expect("kubectl ends");
    }
    let after = kubectl(&file, "get pods").output().expect("kubectl");
    assert!(text(&after.stderr).contains("Unauthorized"), "{}", text(&after.stderr));
    refused(&user(&up, &["delete", "alice"]), 1, &["there is no user alice"]);
}

/// Makes a request for a certificate, and names the object differently.
fn request(up: &Up, object: &str, user: &str, group: &str) {
    let made = hutch_serve::NewRequest::new(user, &[group.to_owned()]).expect("a request");
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let pem = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        encode(&made.der)
    );
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": object, "annotations": {"hutch.dev/groups": "harmless"}},
        "spec": {"request": encode(pem.as_bytes()), "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"]}});
    assert!(submitted(up, &object));
}

#[test]
fn users_are_those_of_the_certificates_whatever_the_objects_are_called() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    request(&up, "harmless", "zoe", "owners");
    up.ok("certificate approve harmless");
    request(&up, "waiting", "zoe", "more");
    request(&up, "other", "yan", "devs");
    let shown = succeeds(&user(&up, &["list"]));
    let has = |words: [&str; 2], last: &str| {
        shown.lines().any(|line| {
            let found: Vec<&str> = line.split_whitespace().collect();
            found.starts_with(&words) && found.last() == Some(&last)
        })
    };
    assert!(has(["zoe", "owners"], "harmless") && has(["zoe", "more"], "waiting"), "{shown}");
    assert!(has(["yan", "devs"], "other") && shown.contains("(not approved)"), "{shown}");
    refused(&user(&up, &["create", "zoe"]), 1, &["there is a user zoe"]);
    refused(&user(&up, &["delete", "harmless"]), 1, &["there is no user harmless"]);
    succeeds(&user(&up, &["delete", "zoe"]));
    let left = up.ok("get csr -o name");
    assert_eq!(left.trim(), "certificatesigningrequest.certificates.k8s.io/other");
}

/// Regression: a Pod with the image of the router stands for the router of the server. A user with rights in one namespace
/// created such a Pod there, and reached the Sandboxes of all namespaces through it.
#[test]
fn router_pod_in_a_namespace_reaches_the_sandboxes_of_that_namespace_only() {
    hutch_testkit::require!(root, kubectl, curl);
    let up = Up::start(&[]);
    up.ok("create namespace team");
    up.ok("create rolebinding ed --clusterrole=edit --user=ed --namespace=team");
    let file = up.folder().join("ed.kubeconfig");
    succeeds(&user(&up, &["create", "ed", "--output", file.to_str().expect("a path")]));
    for namespace in ["default", "team"] {
        let sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "target", "namespace": namespace},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "hutch/python-runtime"}]}}}});
        assert!(submitted(&up, &sandbox));
        up.ok(&format!("wait --for=condition=Ready sandbox/target --namespace={namespace} --timeout=60s"));
    }
    for image in ["hutch/router", "registry.k8s.io/agent-sandbox/sandbox-router:v1"] {
        let pod = format!("--namespace=team run router --image={image} --restart=Never");
        assert!(kubectl(&file, &pod).output().expect("kubectl").status.success());
        up.ok("wait --for=condition=Ready pod/router --namespace=team --timeout=60s");
        let mut forward = kubectl(&file, "--namespace=team port-forward pod/router :8080");
        let mut forward = forward.stdout(Stdio::piped()).spawn().expect("kubectl");
        let mut line = String::new();
        let mut output = std::io::BufReader::new(forward.stdout.take().expect("output"));
        std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
        let port = line.trim_start_matches("Forwarding from 127.0.0.1:").split(' ').next().expect("a port");
        let status = |namespace: &str| {
            let mut curl = Command::new("curl");
            curl.args([
                "--silent",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code}",
                "--max-time",
                "20",
            ]);
            curl.args(["-H", "X-Sandbox-ID: target", "-H", &format!("X-Sandbox-Namespace: {namespace}")]);
            curl.args(["-H", "Content-Type: application/json", "-d", "{\"command\":\"true\"}"]);
            let output = curl.arg(format!("http://127.0.0.1:{port}/execute")).output().expect("curl");
            text(&output.stdout)
        };
        let found = [status("team"), status("default"), status("agent-sandbox-system")];
        let _ = forward.kill();
        let _ = forward.wait();
        assert_eq!(found, ["200", "403", "403"], "{image}");
        up.ok("delete pod router --namespace=team --wait");
    }
}

#[test]
fn who_may_not_approve_leaves_no_request() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let file = up.folder().join("eve.kubeconfig");
    succeeds(&user(&up, &["create", "eve", "--output", file.to_str().expect("a path")]));
    up.ok("create clusterrole asks --verb=create,list --resource=certificatesigningrequests");
    up.ok("create clusterrolebinding asks --clusterrole=asks --user=eve");
    let mut create = Command::new(binary());
    let create =
        create.args(["user", "create", "mallory", "--kubeconfig"]).arg(&file).output().expect("runs");
    refused(&create, 1, &["may not approve users", "verb approve"]);
    assert!(!up.ok("get csr -o name").contains("mallory"));
}

#[test]
fn user_whose_kubeconfig_cannot_be_written_is_not_created() {
    hutch_testkit::require!(root);
    let up = Up::start(&[]);
    refused(&user(&up, &["create", "bob", "--output", "/proc/bob"]), 1, &["cannot write", "/proc/bob"]);
    let taken = up.folder().join("taken");
    std::fs::write(&taken, "mine").expect("written");
    let words = ["create", "bob", "--output", taken.to_str().expect("a path")];
    refused(&user(&up, &words), 1, &["--output", "exists"]);
    assert_eq!(std::fs::read_to_string(&taken).expect("read"), "mine");
    assert!(!succeeds(&user(&up, &["list"])).contains("bob"));
    succeeds(&user(&up, &["create", "bob"]));
}
