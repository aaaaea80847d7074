//! Authorities of the Sandboxes of `hutch up`: programs inside trust theirs, it lasts as long as the Sandbox, and its key
//! stays with the broker and the proxy. Conditions of rules know the Sandbox and the attributes of its task.

use std::path::PathBuf;

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::harness::{Up, refused, text};
use crate::inspected::{authority, serve};
use crate::peers::Peer;
use crate::policies::{applied, enforced, policy, proxy, sandbox};
use crate::processes::{child_of, kill};

/// Address of the servers. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.9.1";

/// A server of HTTPS whose authority `hutch up` trusts.
struct Site {
    up: Up,
    port: u16,
    _peer: Peer,
    _folder: tempfile::TempDir,
}

impl Site {
    fn start() -> Site {
        let folder = tempfile::tempdir().expect("a folder");
        let public = folder.path().join("public");
        authority(&public, &["web.example"]);
        let (peer, port) = serve(SERVER, &public, &folder.path().join("log"));
        let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example\n");
        let up = Up::start_outside(&hosts, &[("SSL_CERT_FILE", &public.join("ca.pem"))], &[]);
        Site { up, port, _peer: peer, _folder: folder }
    }

    /// A rule for the server, with further fields.
    fn rule(&self, more: &Value) -> Value {
        let mut rule =
            json!({"name": "web", "hosts": ["web.example"], "ports": [self.port], "private": [SERVER]});
        for (name, value) in more.as_object().expect("fields") {
            rule[name] = value.clone();
        }
        rule
    }

    /// Applies a Sandbox, and waits until it is ready.
    fn ready(&self, object: &Value) {
        applied(&self.up, object);
        let name = object["metadata"]["name"].as_str().expect("a name");
        self.up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
    }

    /// Status of a request from inside a Sandbox: `000` without an answer.
    fn status(&self, sandbox: &str, method: &str) -> String {
        let url = format!("https://web.example:{}/", self.port);
        let curl = ["curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, &url];
        text(&self.up.kubectl_args(&[&["exec", sandbox, "--"], &curl[..]].concat()).stdout)
    }

    /// The authority that a Sandbox trusts: the last certificate of its file.
    fn authority(&self, sandbox: &str) -> String {
        let script = "awk '/BEGIN/ {last = \"\"} {last = last $0} END {print last}' $SSL_CERT_FILE";
        let found = self.up.ok_args(&["exec", sandbox, "--", "sh", "-c", script]);
        assert!(found.starts_with("-----BEGIN CERTIFICATE-----"), "{found}");
        found
    }

    fn suspend(&self, sandbox: &str, mode: &str) {
        let patch = json!({"spec": {"operatingMode": mode}}).to_string();
        self.up.ok_args(&["patch", "sandbox", sandbox, "--type=merge", "-p", &patch]);
    }

    /// Names of the files of the broker.
    fn kept(&self) -> Vec<PathBuf> {
        let folder = self.up.data().join("broker/authorities");
        folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
    }
}

#[test]
fn authority_lasts_as_long_as_its_sandbox_and_the_key_stays_outside() {
    hutch_testkit::require!(root, kubectl, openssl, node, curl);
    let mut site = Site::start();
    let reads = site.rule(&json!({"http": [{"methods": ["GET"]}]}));
    applied(&site.up, &policy("ClusterSandboxPolicy", "reads", &json!({}), &json!([reads])));
    let other = match hutch_testkit::Need::Runsc.missing() {
        None => "gvisor",
        Some(_) => "hutch",
    };
    site.ready(&sandbox("a", &json!({}), None));
    site.ready(&sandbox("b", &json!({}), Some(other)));
    for name in ["a", "b"] {
        enforced(&site.up, name, "Enforced");
        until("the policy counts", || site.status(name, "GET") == "200");
        assert_eq!(site.status(name, "POST"), "403", "{name}");
    }
    let first = site.authority("a");
    assert_ne!(first, site.authority("b"));
    // The key is in no file inside, nor in clear in a file of the broker.
    let search =
        "grep -rl 'PRIVATE KEY' /etc /tmp /run /workspace /.hutch || echo none; env | grep -c PRIVATE";
    let found = text(&site.up.kubectl_args(&["exec", "a", "--", "sh", "-c", search]).stdout);
    assert_eq!(found, "none\n0\n");
    assert_eq!(site.kept().len(), 2);
    let broker = site.up.data().join("broker");
    let grep =
        std::process::Command::new("grep").args(["-rlaE", "PRIVATE|CERTIFICATE|MIG"]).arg(&broker).output();
    assert_eq!(text(&grep.expect("grep").stdout), "");

    site.suspend("a", "Suspended");
    site.up.eventually("get pods", |pods| !pods.lines().any(|line| line.starts_with("a ")));
    site.suspend("a", "Running");
    site.up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    assert_eq!(site.authority("a"), first, "after a suspend");
    until("the policy counts", || site.status("a", "GET") == "200");

    // Another proxy and another broker.
    kill(child_of(&site.up, "hutch-broker"));
    kill(u32::try_from(proxy(&site.up).expect("a proxy")).expect("an id"));
    site.ready(&sandbox("c", &json!({}), None));
    for name in ["a", "c"] {
        until("the policy counts", || site.status(name, "GET") == "200");
    }
    site.up.ok("delete sandbox b --wait=true");
    until("the authority of b is forgotten", || site.kept().len() == 2);
    // One that vanishes while nothing runs is forgotten at the next start.
    assert_eq!(site.up.stop(), Some(0));
    let gone = broker.join("authorities/default.00000000-0000-0000-0000-000000000000");
    std::fs::copy(&site.kept()[0], &gone).expect("copied");
    site.up.restart();
    site.up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    site.up.eventually("get pods", |pods| pods.lines().filter(|line| line.contains("Running")).count() == 2);
    assert_eq!(site.authority("a"), first, "after a restart");
    until("a vanished sandbox is forgotten", || !gone.exists());
    assert_eq!(site.kept().len(), 2);
    site.up.ok("delete sandbox a --wait=true");
    site.ready(&sandbox("a", &json!({}), None));
    assert_ne!(site.authority("a"), first, "another Sandbox of this name");
    assert_eq!(site.up.stop(), Some(0));
}

#[test]
fn container_with_variables_or_volumes_of_its_own_keeps_them() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}], "containers": [
        {"name": "env", "image": "hutch/host", "command": ["sleep", "1000"],
            "env": [{"name": "PIP_CERT", "value": "/mine"}]},
        {"name": "volume", "image": "hutch/host", "command": ["sleep", "1000"],
            "volumeMounts": [{"name": "v", "mountPath": "/etc/ssl/certs"}]},
    ]}});
    applied(&up, &pod);
    up.ok("wait --for=condition=Ready pod/p --timeout=180s");
    let show = |container: &str| {
        let script = "echo \"$PIP_CERT $DENO_CERT\"; ls /etc/ssl/certs | wc -l";
        up.ok_args(&["exec", "p", "-c", container, "--", "sh", "-c", script])
    };
    assert!(show("env").starts_with("/mine /etc/ssl/certs/ca-certificates.crt\n"), "{}", show("env"));
    assert_eq!(show("volume"), " \n0\n");
    up.ok("delete pod p --wait=true");
    let kept = || up.data().join("broker/authorities").read_dir().expect("a folder").count();
    until("the authority of a Pod without a Sandbox goes with it", || kept() == 0);
}

#[test]
fn conditions_know_the_sandbox_its_creator_and_the_attributes_of_its_claim() {
    hutch_testkit::require!(root, kubectl, openssl, node, curl);
    let site = Site::start();
    let condition =
        "task.risk <= 2 && task.id == 'T-1' && sandbox.namespace == 'default' && user.name == 'alice'";
    let rule = site.rule(&json!({"when": condition, "http": [{"methods": ["GET"]}]}));
    applied(&site.up, &policy("ClusterSandboxPolicy", "p", &json!({}), &json!([rule])));
    let group = "extensions.agents.x-k8s.io/v1beta1";
    let pod = json!({"spec": {"terminationGracePeriodSeconds": 0, "containers": [
        {"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]},
    ]}});
    let template = json!({"apiVersion": group, "kind": "SandboxTemplate", "metadata": {"name": "t"},
        "spec": {"podTemplate": pod}});
    let pool = json!({"apiVersion": group, "kind": "SandboxWarmPool", "metadata": {"name": "pool"},
        "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}});
    for object in [template, pool] {
        applied(&site.up, &object);
    }
    let ready = "get sandboxwarmpool pool -o jsonpath={.status.readyReplicas}";
    site.up.eventually(ready, |ready| ready.trim() == "1");
    let annotations = json!({"attr.policy.hutch.dev/risk": "2", "attr.policy.hutch.dev/id": "T-1",
        "policy.hutch.dev/user": "bob"});
    let claim = json!({"apiVersion": group, "kind": "SandboxClaim",
        "metadata": {"name": "c", "annotations": annotations}, "spec": {"warmPoolRef": {"name": "pool"}}});
    let file = site.up.folder().join("claim.json");
    std::fs::write(&file, claim.to_string()).expect("written");
    site.up.ok(&format!("create --as alice --as-group system:masters -f {}", file.display()));
    site.up.ok("wait --for=condition=Ready sandboxclaim/c --timeout=180s");
    let name = site.up.ok("get sandboxclaim c -o jsonpath={.status.sandbox.name}");
    let launch =
        format!("get sandbox {name} -o jsonpath={{.metadata.labels.agents\\.x-k8s\\.io/launch-type}}");
    assert_eq!(site.up.ok(&launch), "warm");
    until("the attributes count", || site.status(&name, "GET") == "200");
    kill(u32::try_from(proxy(&site.up).expect("a proxy")).expect("an id"));
    until("the next proxy has them", || site.status(&name, "GET") == "200");
    for object in ["sandboxclaim c".to_owned(), format!("sandbox {name}")] {
        for change in ["=bob", "-"] {
            let command = format!("annotate {object} policy.hutch.dev/user{change} --overwrite");
            let output = site.up.kubectl(&command);
            let creator = "-o jsonpath={.metadata.annotations.policy\\.hutch\\.dev/user}";
            assert_eq!(site.up.ok(&format!("get {object} {creator}")), "alice");
            let error = text(&output.stderr);
            assert_eq!(error.contains("is set by the server"), change == "=bob", "{command}: {error}");
        }
    }
    // Policies apply by the template too: the caller would get, or escape, those of any template.
    let template = "agents.x-k8s.io/sandbox-template-ref";
    site.up.ok("create rolebinding bob --clusterrole=edit --user=bob");
    for change in ["=other", "-"] {
        let command = format!("annotate sandbox {name} {template}{change} --overwrite --as bob");
        let output = site.up.kubectl(&command);
        let of = "-o jsonpath={.metadata.annotations.agents\\.x-k8s\\.io/sandbox-template-ref}";
        assert_eq!(site.up.ok(&format!("get sandbox {name} {of}")), "t");
        let error = text(&output.stderr);
        assert_eq!(error.contains("names the template from which"), change == "=other", "{error}");
    }
    let forged = sandbox("forged", &json!({"annotations": {template: "t"}}), None);
    std::fs::write(&file, forged.to_string()).expect("written");
    let output = site.up.kubectl(&format!("create --as bob -f {}", file.display()));
    refused(&output, 1, &["metadata.annotations[agents.x-k8s.io/sandbox-template-ref]"]);
    site.up.ok(&format!("annotate sandbox {name} attr.policy.hutch.dev/risk=3 --overwrite"));
    until("a change counts", || site.status(&name, "GET") == "403");
    site.up.ok(&format!("annotate sandbox {name} attr.policy.hutch.dev/risk=1 --overwrite"));
    until("a change counts", || site.status(&name, "GET") == "200");
    site.up.ok(&format!("annotate sandbox {name} attr.policy.hutch.dev/id-"));
    until("a missing attribute allows nothing", || site.status(&name, "GET") == "403");
    // A Sandbox without a claim has no attributes.
    site.ready(&sandbox("other", &json!({}), None));
    enforced(&site.up, "other", "Enforced");
    assert_eq!(site.status("other", "GET"), "403");
}
