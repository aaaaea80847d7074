//! Credentials on a cluster: a Pod has placeholders, the gateway puts the values of Secrets in their place, and no other
//! component has a value.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{GATEWAY, NAMESPACE, Running, SERVER};
use crate::harness::text;
use crate::inspected;
use crate::peers::Peer;

/// Values of the Secret, one after the other.
const FIRST: &str = "first-real-value-of-the-secret";
const SECOND: &str = "second-real-value-of-the-secret";

struct Site {
    running: Running,
    peer: Peer,
    port: u16,
}

fn policy_object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn offering(provider: &str, port: u16) -> Value {
    let credential = json!({"name": "github", "provider": provider, "hosts": ["tls.example"], "ports": [port],
        "env": "GITHUB_TOKEN"});
    policy_object("SandboxPolicy", "github", &json!({"appliesTo": {}, "credentials": [credential]}))
}

impl Site {
    async fn start() -> Site {
        let running = Running::start().await;
        let folder = running.cluster.folder().to_owned();
        let mut python = Command::new("python3");
        python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/credentials.py"));
        python.arg(SERVER).arg(folder.join("public"));
        let (peer, port) = inspected::with_port(python, &folder.join("server.log"));
        let rule = json!({"name": "web", "hosts": ["tls.example", "passed.example"], "ports": [port], "private": [SERVER],
            "http": [{"paths": ["/**"]}]});
        let spec = json!({"appliesTo": {"namespaceSelector": {}}, "egress": {"rules": [rule]}});
        running.apply(&policy_object("ClusterSandboxPolicy", "web", &spec));
        // As docs/gateway.md says.
        running.apply(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "hutch-egress-secrets"},
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["github"], "verbs": ["list", "watch"]}]}));
        running.apply(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "hutch-egress-secrets"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hutch-egress-secrets"},
            "subjects": [{"kind": "ServiceAccount", "name": "hutch-egress", "namespace": NAMESPACE}]}));
        Site { running, peer, port }
    }

    fn secret(&self, value: &str) {
        self.running.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "github"},
            "stringData": {"token": value}}));
    }

    fn provider(&self) {
        let spec = json!({"hosts": ["tls.example"], "ports": [self.port], "secret": {"name": "github", "key": "token"}});
        self.running.apply(&policy_object("CredentialProvider", "github", &spec));
    }

    /// Sends a request with the placeholder, by curl in a Sandbox. Returns the status, and the answer.
    fn request(&self, sandbox: &str, host: &str) -> (String, String) {
        let script = format!(
            "curl -sS --max-time 20 -o answer -w '%{{http_code}}' --interface $POD_IP \
             -H \"Authorization: Bearer $GITHUB_TOKEN\" https://{host}:{}/ok/a; echo; cat answer; rm -f answer",
            self.port
        );
        let printed = text(&self.running.exec(sandbox, &script).stdout);
        let (status, answer) = printed.split_once('\n').unwrap_or((&printed, ""));
        (status.to_owned(), answer.to_owned())
    }

    async fn until_status(&self, sandbox: &str, status: &str) {
        let holds = async || self.request(sandbox, "tls.example").0 == status;
        self.running.cluster.until(&format!("{sandbox}: {status}"), holds).await.unwrap();
    }

    fn received(&self, value: &str) -> bool {
        self.peer.printed().contains(&format!("authorization=Bearer {value}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn value_of_a_secret_reaches_the_server_and_the_pod_has_only_the_placeholder() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, openssl, python);
    let site = Site::start().await;
    let running = &site.running;
    site.secret(FIRST);
    site.provider();
    running.apply(&offering("github", site.port));
    running.sandbox("one");

    let placeholder = running.variable("one", "GITHUB_TOKEN");
    assert!(placeholder.starts_with("ghp_") && placeholder.len() == 40, "{placeholder}");
    site.until_status("one", "200").await;
    let (_, answer) = site.request("one", "tls.example");
    assert!(site.received(FIRST), "{}", site.peer.printed());
    assert!(answer.contains(&placeholder) && !answer.contains(FIRST), "the answer is redacted: {answer}");
    running.until_recorded(GATEWAY, &["list", "--kind", "credential"], &["default/one", "github"]).await;

    assert_eq!(site.request("one", "passed.example").0, "403", "another host");
    let finding = ["default/one", "github", "passed.example"];
    running.until_recorded(GATEWAY, &["list", "--kind", "finding"], &finding).await;

    // Each change of the source counts, also on the next request of the same Sandbox.
    site.secret(SECOND);
    let holds = async || site.request("one", "tls.example").0 == "200" && site.received(SECOND);
    running.cluster.until("the new value is used", holds).await.unwrap();
    running.kubectl(&["delete", "secret", "github"]);
    site.until_status("one", "403").await;
    site.secret(FIRST);
    site.until_status("one", "200").await;
    running.kubectl(&["delete", "credentialprovider", "github"]);
    site.until_status("one", "403").await;
    site.provider();
    site.until_status("one", "200").await;
    // Nothing else says who may use the provider.
    running.kubectl(&["delete", "validatingadmissionpolicybinding", "hutch-credential-providers"]);
    site.until_status("one", "403").await;
    let manifest = crate::deploy::manifests::folder().join("egress.yaml").display().to_string();
    running.kubectl(&["apply", "--server-side", "-f", &manifest]);
    running.kubectl(&["delete", "deployment", "hutch-egress", "-n", NAMESPACE]);
    site.until_status("one", "200").await;

    // A new Pod of the Sandbox has the same placeholder, and another Sandbox another one.
    running.kubectl(&["delete", "pod", "one"]);
    running.sandbox("two");
    let holds = async || {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let mut command = Command::new("kubectl");
        command.args(["get", "pod", "one", "-o", ready, "--kubeconfig"]).arg(running.cluster.kubeconfig());
        text(&command.output().expect("kubectl starts").stdout) == "True"
    };
    running.cluster.until("the Pod is made again", holds).await.unwrap();
    assert_eq!(running.variable("one", "GITHUB_TOKEN"), placeholder);
    let other = running.variable("two", "GITHUB_TOKEN");
    assert!(other.starts_with("ghp_") && other != placeholder, "{other}");
    site.until_status("two", "200").await;

    values_are_nowhere_else(&site);
}

fn values_are_nowhere_else(site: &Site) {
    let running = &site.running;
    let environment = text(&running.exec("two", "env; cat /proc/1/environ").stdout);
    assert!(environment.contains("GITHUB_TOKEN="), "{environment}");
    let pods = running.kubectl(&["get", "pods,configmaps,sandboxes", "-A", "-o", "json"]);
    let exported = text(&running.audit(GATEWAY, &["export"]).stdout);
    for found in [environment, pods, exported, running.log(GATEWAY), running.log("controller")] {
        assert!(!found.contains(FIRST) && !found.contains(SECOND), "{found}");
    }
    let can = |account: &str, verb: &str, what: &str| {
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:{account}");
        let mut command = Command::new("kubectl");
        command.args(["auth", "can-i", verb, what, &account, "--kubeconfig"]);
        text(&command.arg(running.cluster.kubeconfig()).output().expect("kubectl starts").stdout)
            .trim()
            .to_owned()
    };
    assert_eq!(can("hutch-egress", "watch", "secrets/github"), "yes");
    assert_eq!(can("hutch-egress", "watch", "secrets"), "no");
    for what in ["secrets", "secrets/github"] {
        assert_eq!(can("agent-sandbox-controller", "get", what), "no", "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_names_only_providers_that_its_author_may_use() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, openssl, python);
    let site = Site::start().await;
    let running = &site.running;
    let role = |name: &str, rule: Value, resource: &str| {
        running.apply(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": name}, "rules": [rule]}));
        running.kubectl(&["create", "rolebinding", resource, &format!("--role={name}"), "--user=dev"]);
    };
    let verbs = json!(["get", "create", "update", "patch"]);
    role(
        "writer",
        json!({"apiGroups": ["policy.hutch.dev"], "resources": ["sandboxpolicies"], "verbs": verbs}),
        "writer",
    );
    let write = |object: &Value| -> Output {
        let file = running.cluster.folder().join("policy.json");
        std::fs::write(&file, object.to_string()).expect("written");
        let mut command = Command::new("kubectl");
        command
            .args(["apply", "--as=dev", "-f"])
            .arg(&file)
            .arg("--kubeconfig")
            .arg(running.cluster.kubeconfig());
        command.output().expect("kubectl starts")
    };
    // The API server takes a while to know the rule.
    let denied =
        async || text(&write(&offering("github", site.port)).stderr).contains("has the verb \"use\"");
    let refused = async || {
        let is_denied = denied().await;
        if !is_denied {
            running.kubectl(&["delete", "sandboxpolicy", "github", "--ignore-not-found"]);
        }
        is_denied
    };
    running.cluster.until("the policy is refused", refused).await.unwrap();
    let without =
        policy_object("SandboxPolicy", "github", &json!({"appliesTo": {}, "egress": {"rules": []}}));
    let output = write(&without);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(denied().await, "an update needs the right too");

    let rule = json!({"apiGroups": ["policy.hutch.dev"], "resources": ["credentialproviders"], "resourceNames": ["github"],
        "verbs": ["use"]});
    role("user", rule, "user");
    let allowed = async || write(&offering("github", site.port)).status.success();
    running.cluster.until("the verb is enough", allowed).await.unwrap();
    assert!(!write(&offering("other", site.port)).status.success(), "another provider");
    // Each credential is a check, which costs the API server much.
    let many = |providers: &[&str]| {
        let one = |(number, provider): (usize, &&str)| {
            let (name, variable) = (format!("c{number}"), format!("C{number}"));
            json!({"name": name, "provider": provider, "hosts": ["tls.example"], "env": variable})
        };
        let credentials: Vec<Value> = providers.iter().enumerate().map(one).collect();
        policy_object("SandboxPolicy", "github", &json!({"appliesTo": {}, "credentials": credentials}))
    };
    for count in [3, 16] {
        let mut providers = vec!["github"; count];
        let output = write(&many(&providers));
        assert!(output.status.success(), "{count}: {}", text(&output.stderr));
        providers[count - 1] = "other";
        let output = write(&many(&providers));
        assert!(text(&output.stderr).contains("has the verb \"use\""), "{count}: {}", text(&output.stderr));
    }
}
