//! Credentials of Pods of `hutch up`: providers have the values, programs have placeholders, and only the server that a
//! provider names receives a value.

use std::path::PathBuf;
use std::process::{Command, Output};

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::audit_strict::{Printed, SmallDisk};
use crate::audited::eventually;
use crate::credentials::in_memory;
use crate::harness::{Up, binary, refused, succeeded, text};
use crate::inspected::{authority, with_port};
use crate::peers::Peer;
use crate::policies::{applied, apply, enforced, policy, proxy, sandbox};
use crate::processes::child_of;

/// Address of the servers. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.32.1";
/// Values.
const VALUE: &str = "value-of-the-secret-8c1f4e2ab7";
const SECOND: &str = "second-value-of-the-secret-03d9";
pub(crate) const OF_FILE: &str = "value-of-the-file-5d2e7740c1";
const OF_VARIABLE: &str = "value-of-the-variable-91ab3f";

/// A server of HTTPS, whose authority `hutch up` trusts, and values of providers.
pub(crate) struct Site {
    pub(crate) up: Up,
    port: u16,
    pub(crate) peer: Peer,
    folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn start() -> Site {
        Site::start_with(&[])
    }

    fn start_with(options: &[&str]) -> Site {
        let folder = tempfile::tempdir().expect("a folder");
        let (public, values) = (folder.path().join("public"), folder.path().join("values"));
        authority(&public, &["web.example", "other.example"]);
        std::fs::create_dir(&values).expect("a folder");
        std::fs::write(values.join("token"), format!("{OF_FILE}\n")).expect("written");
        let mut python = Command::new("python3");
        python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/credentials.py"));
        python.arg(SERVER).arg(&public);
        let (peer, port) = with_port(python, &folder.path().join("log"));
        let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example other.example\n");
        let variables = [("SSL_CERT_FILE", public.join("ca.pem")), ("OF_UP", PathBuf::from(OF_VARIABLE))];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_path()));
        let values = values.display().to_string();
        let options = [&["--credentials-dir", &values, "--credential-env", "OF_UP"], options].concat();
        let up = Up::start_outside(&hosts, &variables, &options);
        Site { up, port, peer, folder }
    }

    pub(crate) fn provide(&self, name: &str, source: &Value) {
        applied(&self.up, &self.provider(name, source));
    }

    fn provider(&self, name: &str, source: &Value) -> Value {
        let mut spec = json!({"hosts": ["web.example"], "ports": [self.port]});
        for (field, value) in source.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "CredentialProvider", "metadata": {"name": name}, "spec": spec})
    }

    /// Opens both hosts, and returns a policy that offers a credential for each of these providers, by their names.
    pub(crate) fn policy(&self, providers: &[&str]) -> Value {
        let rule = json!({"name": "web", "hosts": ["web.example", "other.example"], "ports": [self.port],
            "private": [SERVER], "http": [{}]});
        // Both hosts have an address of the machine, which only administrators open.
        applied(&self.up, &policy("ClusterSandboxPolicy", "machine", &json!({}), &json!([rule])));
        let offer = |name: &&str| {
            let env = format!("{}_TOKEN", name.to_uppercase());
            json!({"name": name, "provider": name, "hosts": ["web.example", "other.example"], "ports": [self.port], "env": env})
        };
        let credentials: Value = providers.iter().map(offer).collect();
        json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": "team"},
            "spec": {"appliesTo": {}, "credentials": credentials}})
    }

    fn ready(&self, name: &str, class: Option<&str>) {
        applied(&self.up, &sandbox(name, &json!({}), class));
        self.up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
        enforced(&self.up, name, "Enforced");
    }

    pub(crate) fn exec(&self, sandbox: &str, script: &str) -> Output {
        let script = script.replace("PORT", &self.port.to_string());
        self.up.kubectl_args(&["exec", sandbox, "--", "sh", "-c", &script])
    }

    /// Sends the variable as a token, and returns what the server has received as such.
    fn received(&self, sandbox: &str, host: &str, variable: &str) -> String {
        let before = self.peer.printed().len();
        let url = format!("https://{host}:{}/", self.port);
        let script = format!("curl -s -m 20 -H \"Authorization: Bearer ${variable}\" {url}");
        self.exec(sandbox, &script);
        let printed = self.peer.printed()[before..].to_owned();
        printed
            .lines()
            .find_map(|line| line.split_once("authorization=Bearer "))
            .map_or_else(String::new, |(_, value)| value.to_owned())
    }

    #[track_caller]
    pub(crate) fn receives(&self, sandbox: &str, variable: &str, value: &str) {
        until(value, || self.received(sandbox, "web.example", variable) == value);
    }
}

#[test]
fn server_receives_values_of_all_providers_and_the_sandbox_has_none() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    let site = Site::start();
    site.up.ok(&format!("create secret generic github --from-literal=token={VALUE}"));
    site.provide("secret", &json!({"secret": {"name": "github", "key": "token"}}));
    site.provide("file", &json!({"file": "token"}));
    site.provide("variable", &json!({"env": "OF_UP"}));
    site.provide("account", &json!({"serviceAccountToken": {"audience": "https://web.example"}}));
    applied(&site.up, &site.policy(&["secret", "file", "variable", "account"]));
    let mut classes = vec![("native", None)];
    if hutch_testkit::Need::Runsc.missing().is_none() {
        classes.push(("gvisor", Some("gvisor")));
    }
    for (name, class) in classes {
        site.ready(name, class);
        site.receives(name, "SECRET_TOKEN", VALUE);
        site.receives(name, "FILE_TOKEN", OF_FILE);
        site.receives(name, "VARIABLE_TOKEN", OF_VARIABLE);
        until("a token", || site.received(name, "web.example", "ACCOUNT_TOKEN").starts_with("eyJ"));
        let token = site.received(name, "web.example", "ACCOUNT_TOKEN");
        let claims: Value = {
            use base64::Engine;
            let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
            serde_json::from_slice(&engine.decode(token.split('.').nth(1).expect("claims")).unwrap()).unwrap()
        };
        assert_eq!(claims["aud"], json!(["https://web.example"]));
        assert_eq!(claims["kubernetes.io"]["pod"]["name"], name);

        // The provider names one host, whatever a policy says.
        assert_eq!(site.received(name, "other.example", "SECRET_TOKEN"), "");
        nothing_inside(&site, name, &[VALUE, OF_FILE, OF_VARIABLE, &token]);
        // A token ends with its account.
        site.up.ok("delete serviceaccount default");
        until("another token, or none", || site.received(name, "web.example", "ACCOUNT_TOKEN") != token);
        site.up.eventually("get serviceaccount default -o name", |found| found.contains("default"));
    }
    // A policy shows where a value comes from, and not the value.
    for words in ["get sandboxpolicy,credentialprovider -o yaml", "describe pods", "get events -o yaml"] {
        let shown = site.up.ok(words);
        for value in [VALUE, OF_FILE, OF_VARIABLE] {
            assert!(!shown.contains(value), "{words}: {shown}");
        }
    }
}

/// Checks the environment, the memory and the files of a Sandbox, what is copied out of it, its log, and the log of the server.
fn nothing_inside(site: &Site, sandbox: &str, values: &[&str]) {
    site.exec(sandbox, "env > /proc/1/fd/1; env > /tmp/env");
    let script = "env; cat /proc/*/environ /proc/*/cmdline; cat /tmp/env; \
        curl -s -H \"Authorization: Bearer $SECRET_TOKEN\" https://web.example:PORT/x";
    let shown = text(&site.exec(sandbox, script).stdout);
    assert!(shown.contains("SECRET_TOKEN=hutch_") && shown.contains("Bearer hutch_"), "{shown}");
    let log = site.up.ok(&format!("logs {sandbox}"));
    let copy = site.folder.path().join(format!("copy-{sandbox}"));
    let copied = Command::new(binary())
        .args(["cp", &format!("{sandbox}:/tmp"), &copy.display().to_string()])
        .env("KUBECONFIG", site.up.kubeconfig())
        .output()
        .expect("hutch");
    succeeded("hutch cp", &copied);
    let of_up = std::fs::read_to_string(site.up.folder().join("log")).expect("the log");
    for value in values {
        for (what, text) in [("exec", &shown), ("log", &log), ("log of the server", &of_up)] {
            assert!(!text.contains(value), "{what}: {text}");
        }
        // The store has the Secrets.
        let entries = std::fs::read_dir(site.up.data()).expect("the data folder").flatten();
        let data = entries.filter(|entry| entry.file_name() != "store").map(|entry| entry.path());
        let data: Vec<PathBuf> = data.collect();
        for name in ["pods", "audit", "broker"] {
            assert!(data.iter().any(|path| path.ends_with(name)), "{name}: {data:?}");
        }
        for folder in data.iter().chain([&copy]) {
            let mut search = Command::new("grep");
            search.args(["-rlaF", "--devices=skip", value]).arg(folder);
            let mut found = (None, String::new());
            // 2: a file went while it was searched.
            until(&format!("a search of all files of {}", folder.display()), || {
                let output = search.output().expect("grep");
                found = (output.status.code(), text(&output.stdout));
                found.0 != Some(2)
            });
            // 1: no file has it.
            assert_eq!(found, (Some(1), String::new()), "{}", folder.display());
        }
    }
    // The root process and the front serve Secrets, and the proxy puts values in requests.
    let (root, front) = (site.up.pid(), child_of(&site.up, "hutch-front"));
    let mut inside = crate::credentials::descendants(root);
    inside.retain(|pid| *pid != root && *pid != front);
    assert!(inside.len() > 2, "{inside:?}");
    // The search finds what is there.
    assert!(inside.iter().any(|pid| in_memory(*pid, &["SECRET_TOKEN=hutch_"])));
    let named = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let with: Vec<_> = inside.iter().filter(|pid| in_memory(**pid, values)).map(named).collect();
    assert!(with.is_empty(), "{with:?}");
}

#[test]
fn value_that_is_replaced_or_taken_away_counts_at_once() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    let mut site = Site::start();
    site.up.ok(&format!("create secret generic github --from-literal=token={VALUE}"));
    site.provide("secret", &json!({"secret": {"name": "github", "key": "token"}}));
    site.provide("file", &json!({"file": "token"}));
    applied(&site.up, &site.policy(&["secret", "file"]));
    site.ready("a", None);
    site.receives("a", "SECRET_TOKEN", VALUE);
    let placeholder = text(&site.exec("a", "echo $SECRET_TOKEN").stdout);

    let patch = json!({"stringData": {"token": SECOND}}).to_string();
    site.up.ok_args(&["patch", "secret", "github", "--type=merge", "-p", &patch]);
    site.receives("a", "SECRET_TOKEN", SECOND);
    std::fs::write(site.folder.path().join("values/token"), "another-value-of-the-file").expect("written");
    site.receives("a", "FILE_TOKEN", "another-value-of-the-file");

    // The proxy starts again, and so does everything.
    let proxy = proxy(&site.up).expect("the proxy");
    crate::processes::kill(proxy.try_into().expect("a pid"));
    site.receives("a", "SECRET_TOKEN", SECOND);
    let suspend = |mode: &str| {
        let patch = json!({"spec": {"operatingMode": mode}}).to_string();
        site.up.ok_args(&["patch", "sandbox", "a", "--type=merge", "-p", &patch]);
    };
    suspend("Suspended");
    site.up.ok("wait --for=condition=Suspended sandbox/a --timeout=60s");
    suspend("Running");
    site.up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    site.receives("a", "SECRET_TOKEN", SECOND);
    assert_eq!(text(&site.exec("a", "echo $SECRET_TOKEN").stdout), placeholder, "the next Pod has the same");

    site.up.ok("delete secret github");
    until("nothing", || site.received("a", "web.example", "SECRET_TOKEN").is_empty());
    let url = "curl -s -H \"Authorization: Bearer $SECRET_TOKEN\" https://web.example:PORT/";
    let answer = text(&site.exec("a", url).stdout);
    assert!(answer.contains("has no value now"), "{answer}");
    // Nor while the folder is open to others.
    let mode = |mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(site.folder.path().join("values"), permissions).expect("chmod");
    };
    mode(0o777);
    until("nothing", || site.received("a", "web.example", "FILE_TOKEN").is_empty());
    mode(0o755);
    site.receives("a", "FILE_TOKEN", "another-value-of-the-file");
    let condition = "get events --field-selector reason=CredentialNotIssued -o jsonpath={.items[*].message}";
    let told = site.up.eventually(condition, |found| found.contains("Secret default/github"));
    assert!(told.contains("does not exist") && !told.contains(SECOND), "{told}");
    site.up.eventually("describe sandbox a", |described| {
        described.contains("CredentialNotIssued") && described.contains("Secret default/github")
    });
    // A placeholder where its value may not stand.
    site.up.eventually(
        "get events --field-selector involvedObject.kind=Sandbox,reason=EgressRefused",
        |events| events.contains("credential"),
    );
    site.up.ok("delete credentialprovider file");
    until("nothing", || site.received("a", "web.example", "FILE_TOKEN").is_empty());
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].message}";
    site.up.eventually(&format!("get sandbox a -o {path}"), |found| {
        found.contains("CredentialProvider \"file\" does not exist")
    });
    site.up.stop();
}

/// Sends one request with a credential, and then others without one on the same connection until it ends.
const HELD: &str = r#"
import os, socket, ssl, sys, time
port, variable = int(sys.argv[1]), sys.argv[2]
tls = socket.create_connection(("web.example", port))
tls = ssl.create_default_context().wrap_socket(tls, server_hostname="web.example")
def send(header):
    tls.sendall(f"GET /held HTTP/1.1\r\nHost: web.example:{port}\r\n{header}\r\n".encode())
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        part = tls.recv(4096)
        if not part: raise ConnectionError
        answer += part
    return answer.startswith(b"HTTP/1.1 200")
print("answered", send(f"Authorization: Bearer {os.environ[variable]}\r\n"), send(""), flush=True)
try:
    while send(""): time.sleep(0.1)
    print("refused", flush=True)
except OSError: print("ended", flush=True)
"#;

#[test]
fn credential_that_is_revoked_ends_a_connection_that_has_used_it() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    let site = Site::start();
    site.up.ok(&format!("create secret generic github --from-literal=token={VALUE}"));
    site.provide("secret", &json!({"secret": {"name": "github", "key": "token"}}));
    site.provide("file", &json!({"file": "token"}));
    applied(&site.up, &site.policy(&["secret", "file"]));
    site.ready("a", None);
    let port = site.port.to_string();
    for (variable, value, deleted) in
        [("SECRET_TOKEN", VALUE, "secret github"), ("FILE_TOKEN", OF_FILE, "credentialprovider file")]
    {
        site.receives("a", variable, value);
        let words = ["exec", "a", "--", "python3", "-u", "-c", HELD, &port, variable];
        let mut held = Peer::start(site.up.kubectl_command(&words), &site.folder.path().join("held"));
        held.printed_until("answered True True\n");
        assert!(site.peer.printed().contains(&format!("request /held authorization=Bearer {value}")));
        assert!(!held.printed().contains("ended"), "{variable}: {}", held.printed());
        site.up.ok(&format!("delete {deleted}"));
        until("the connection ends", || held.printed().ends_with("ended\n"));
        let before = site.peer.printed().len();
        let script = format!(
            "curl -s -o /dev/null -m 20 -w '%{{http_code}}' -H \"Authorization: Bearer ${variable}\" https://web.example:PORT/"
        );
        assert_eq!(text(&site.exec("a", &script).stdout), "403", "{variable}");
        assert!(!site.peer.printed()[before..].contains(value), "{variable}");
    }
}

#[test]
fn credential_expires_after_its_time_also_over_a_restart() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    const EXPIRES: std::time::Duration = std::time::Duration::from_secs(45);
    let mut site = Site::start();
    site.provide("file", &json!({"file": "token"}));
    let mut policy = site.policy(&["file"]);
    policy["spec"]["credentials"][0]["expires"] = format!("{}s", EXPIRES.as_secs()).into();
    applied(&site.up, &policy);
    site.ready("a", None);
    site.receives("a", "FILE_TOKEN", OF_FILE);
    site.up.stop();
    // If the time began again with the server, the value would still be sent.
    std::thread::sleep(EXPIRES);
    site.up.restart();
    site.up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    let before = site.peer.printed().len();
    let url = "curl -s -m 20 -H \"Authorization: Bearer $FILE_TOKEN\" https://web.example:PORT/";
    until("a refusal", || text(&site.exec("a", url).stdout).contains("has expired"));
    assert!(!site.peer.printed()[before..].contains(OF_FILE), "the value is sent");
    // The time of another Sandbox begins now.
    site.ready("b", None);
    site.receives("b", "FILE_TOKEN", OF_FILE);
}

#[test]
fn strict_log_on_a_full_disk_holds_the_use_of_a_credential_back() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    let mut site = Site::start_with(&["--audit", "strict"]);
    let disk = SmallDisk::under(&mut site.up);
    site.provide("file", &json!({"file": "token"}));
    applied(&site.up, &site.policy(&["file"]));
    let mut held = sandbox("box", &json!({}), None);
    let curl = |host: &str| {
        format!(
            "curl -s -o /dev/null -m 20 -w '%{{http_code}}\\n' -H \"Authorization: Bearer $FILE_TOKEN\" https://{host}.example:{}/",
            site.port
        )
    };
    let script = format!("while :; do {}; sleep 0.05; done", curl("web"));
    held["spec"]["podTemplate"]["spec"]["containers"][0]["command"] = vec!["sh", "-c", &script].into();
    applied(&site.up, &held);
    site.up.ok("wait --for=condition=Ready sandbox/box --timeout=120s");
    let output = Printed::of(&site.up);
    output.all("200");
    assert!(site.peer.printed().contains(OF_FILE), "{}", site.peer.printed());
    disk.fill();
    output.all("503");
    let (before, from) = (site.peer.printed(), output.lines().len());
    until("more tries", || output.lines().len() > from + 20);
    assert_eq!(site.peer.printed(), before, "the server gets nothing");
    disk.empty();
    output.all("200");
    until("the value", || site.peer.printed()[before.len()..].contains(OF_FILE));
    let words = ["list", "--kind", "credential", "--sandbox", "box"];
    eventually(&site.up, &words, "default/box&allowed&file for web.example");
    assert_eq!(text(&site.exec("box", &curl("other")).stdout), "403\n");
    let denied = [&words[..], &["--denied"]].concat();
    let denied = eventually(&site.up, &denied, "default/box&denied&file for other.example");
    assert!(!denied.contains("web.example"), "{denied}");
    disk.remove(&mut site.up);
}

#[test]
fn pooled_sandbox_has_the_placeholder_and_gets_the_value_with_its_claim() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    let site = Site::start();
    site.provide("file", &json!({"file": "token"}));
    applied(&site.up, &site.policy(&["file"]));
    let container = json!({"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]});
    let template = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "t"}, "spec": {"podTemplate": {"spec": {"containers": [container]}}}});
    applied(&site.up, &template);
    let pool = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
        "metadata": {"name": "t"}, "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}});
    applied(&site.up, &pool);
    let all = "get sandboxes -o jsonpath={.items[0].metadata.name}";
    let pooled = site.up.eventually(all, |name| !name.is_empty());
    site.up.ok(&format!("wait --for=condition=Ready sandbox/{pooled} --timeout=180s"));
    enforced(&site.up, &pooled, "Enforced");
    let placeholder = text(&site.exec(&pooled, "echo $FILE_TOKEN").stdout);
    assert!(placeholder.starts_with("hutch_"), "{placeholder}");
    assert_eq!(site.received(&pooled, "web.example", "FILE_TOKEN"), "");

    let claim = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": "mine"}, "spec": {"warmPoolRef": {"name": "t"}}});
    applied(&site.up, &claim);
    let bound = site
        .up
        .eventually("get sandboxclaim mine -o jsonpath={.status.sandbox.name}", |name| !name.is_empty());
    assert_eq!(bound, pooled);
    site.receives(&pooled, "FILE_TOKEN", OF_FILE);
    assert_eq!(text(&site.exec(&pooled, "echo $FILE_TOKEN").stdout), placeholder);
}

#[test]
fn policy_that_comes_later_gives_placeholders_to_processes_that_start_from_then_on() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    let site = Site::start();
    applied(&site.up, &sandbox("a", &json!({}), None));
    site.up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    assert_eq!(text(&site.exec("a", "echo $VARIABLE_TOKEN").stdout), "\n");
    site.provide("variable", &json!({"env": "OF_UP"}));
    applied(&site.up, &site.policy(&["variable"]));
    until("a placeholder", || text(&site.exec("a", "echo $VARIABLE_TOKEN").stdout).starts_with("hutch_"));
    site.receives("a", "VARIABLE_TOKEN", OF_VARIABLE);
    // Without the policy, the placeholder goes and is worth nothing.
    let placeholder = text(&site.exec("a", "echo $VARIABLE_TOKEN").stdout);
    applied(&site.up, &site.policy(&[]));
    until("no placeholder", || text(&site.exec("a", "echo $VARIABLE_TOKEN").stdout) == "\n");
    let script =
        format!("curl -s -H \"Authorization: Bearer {}\" https://web.example:PORT/", placeholder.trim());
    site.exec("a", &script);
    assert!(site.peer.printed().trim_end().ends_with(placeholder.trim()), "{}", site.peer.printed());
}

#[test]
fn author_of_a_policy_needs_the_right_to_use_its_provider() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    let site = Site::start();
    let up = &site.up;
    site.provide("file", &json!({"file": "token"}));
    let resources = "--resource=sandboxpolicies.policy.hutch.dev";
    up.ok(&format!("create role author --verb=create,get,patch,update {resources}"));
    up.ok("create rolebinding author --role=author --user=alice");
    let as_alice = |object: &Value| {
        let file = up.folder().join("object.json");
        std::fs::write(&file, object.to_string()).expect("written");
        up.kubectl_args(&["apply", "--as=alice", "-f", &file.display().to_string()])
    };
    let with = site.policy(&["file"]);
    let mut without = with.clone();
    without["spec"].as_object_mut().expect("a spec").remove("credentials");
    let denied = r#"user "alice" cannot use credentialproviders.policy.hutch.dev "file""#;
    let is_denied = |output: &Output| {
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(denied), "{error}");
    };
    is_denied(&as_alice(&with));
    // As written by some clients; the server stores it as an integer.
    let raw = |object: &Value| {
        let file = up.folder().join("raw.json");
        std::fs::write(&file, object.to_string().replace("\"ports\":[", "\"ports\":[1.0,")).expect("written");
        let path = "/apis/policy.hutch.dev/v1alpha1/namespaces/default/sandboxpolicies";
        up.kubectl_args(&["create", "--as=alice", "--raw", path, "-f", &file.display().to_string()])
    };
    is_denied(&raw(&with));
    succeeded("without", &as_alice(&without));
    is_denied(&as_alice(&with));
    // Someone with the right adds the credential. Who has it not cannot open it to further Sandboxes or hosts.
    applied(up, &with);
    let mut wider = with.clone();
    wider["spec"]["appliesTo"] = json!({"selector": {}});
    is_denied(&as_alice(&wider));
    let mut labeled = with.clone();
    labeled["metadata"]["labels"] = json!({"a": "b"});
    succeeded("a label", &as_alice(&labeled));
    let rule = json!({"apiGroups": ["policy.hutch.dev"], "resources": ["credentialproviders"], "resourceNames": ["file"],
        "verbs": ["use"]});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "user"},
        "rules": [rule]});
    applied(up, &role);
    up.ok("create rolebinding user --role=user --user=alice");
    succeeded("with the right", &as_alice(&wider));

    for (source, field) in [
        (json!({"file": "../passwd"}), "spec.file"),
        (json!({"file": "a", "env": "B"}), "exactly one source"),
        (json!({"secret": {"name": "a"}}), "spec.secret.key"),
        (json!({"value": "x"}), "value"),
    ] {
        let error = text(&apply(up, &site.provider("bad", &source)).stderr);
        assert!(error.contains(field), "{source}: {error}");
    }
    let mut own = with.clone();
    own["spec"]["credentials"] =
        json!([{"name": "a", "source": {"env": "A"}, "hosts": ["web.example"], "env": "A"}]);
    refused(&apply(up, &own), 1, &["spec.credentials[0].source", "CredentialProvider"]);
}

#[test]
fn object_of_a_sandbox_needs_the_right_to_change_the_sandbox() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python);
    let site = Site::start();
    let up = &site.up;
    applied(up, &sandbox("a", &json!({}), None));
    up.ok("create role author --verb=create,get,patch,update --resource=pods,services");
    up.ok("create rolebinding author --role=author --user=mallory");
    let uid = up.ok("get sandbox a -o jsonpath={.metadata.uid}");
    let owned = |kind: &str, owner: &str, uid: &str| {
        let spec = match kind {
            "Pod" => json!({"containers": [{"name": "main", "image": "hutch/pause"}]}),
            _ => json!({"ports": [{"port": 80}]}),
        };
        let owner = json!({"apiVersion": "agents.x-k8s.io/v1", "kind": "Sandbox", "name": owner, "uid": uid, "controller": true});
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "forged", "ownerReferences": [owner]}, "spec": spec})
    };
    let as_mallory = |verb: &str, object: &Value| {
        let file = up.folder().join("forged.json");
        std::fs::write(&file, object.to_string()).expect("written");
        up.kubectl_args(&[verb, "--as=mallory", "-f", &file.display().to_string()])
    };
    let why = r#"user "mallory" cannot update sandboxes.agents.x-k8s.io "a""#;
    // The errors of `kubectl apply` are long.
    let denied = |output: &Output, words: &[&str]| {
        let error = text(&output.stderr);
        assert!(!output.status.success() && words.iter().all(|word| error.contains(word)), "{error}");
    };
    for kind in ["Pod", "Service"] {
        refused(&as_mallory("create", &owned(kind, "a", &uid)), 1, &[why]);
        // Not by a change either.
        let mut plain = owned(kind, "a", &uid);
        plain["metadata"].as_object_mut().expect("metadata").remove("ownerReferences");
        succeeded("a plain one", &as_mallory("create", &plain));
        denied(&as_mallory("apply", &owned(kind, "a", &uid)), &[why]);
    }
    up.ok("create role changer --verb=update --resource=sandboxes.agents.x-k8s.io --resource-name=b");
    up.ok("create rolebinding changer --role=changer --user=mallory");
    denied(
        &as_mallory("apply", &owned("Service", "b", &uid)),
        &["ownerReferences[0].uid", "the Sandbox of this name"],
    );
    let allowed =
        json!({"metadata": {"ownerReferences": owned("Service", "a", &uid)["metadata"]["ownerReferences"]}});
    up.ok_args(&["patch", "service", "forged", "--type=merge", "-p", &allowed.to_string()]);
}

/// A Vault in its development mode, with an engine of secrets that have leases.
struct Vault {
    _peer: Peer,
    address: String,
    folder: PathBuf,
}

const ROOT: &str = "root-token-of-this-test";

impl Vault {
    fn start(folder: &std::path::Path) -> Vault {
        let port = crate::peers::free_port("127.0.0.1");
        let mut vault = Command::new("vault");
        let listen = format!("-dev-listen-address=127.0.0.1:{port}");
        vault.args(["server", "-dev", "-dev-no-store-token", &format!("-dev-root-token-id={ROOT}"), &listen]);
        let mut peer = Peer::start(vault, &folder.join("vault"));
        peer.printed_until("Development mode should NOT be used in production");
        Vault { _peer: peer, address: format!("http://127.0.0.1:{port}"), folder: folder.to_owned() }
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = Command::new("vault")
            .args(words)
            .env("VAULT_ADDR", &self.address)
            .env("VAULT_TOKEN", ROOT)
            .env("HOME", &self.folder)
            .output()
            .expect("vault");
        succeeded(&words.join(" "), &output)
    }

    /// Secrets that it has issued and not revoked.
    fn leases(&self) -> Vec<String> {
        let mut list = Command::new("vault");
        list.args(["list", "-format=json", "sys/leases/lookup/ssh/creds/once"]).env("HOME", &self.folder);
        let listed = list.env("VAULT_ADDR", &self.address).env("VAULT_TOKEN", ROOT).output().expect("vault");
        serde_json::from_slice(&listed.stdout).unwrap_or_default()
    }
}

#[test]
fn vault_gives_values_and_its_leases_end_with_the_sandbox() {
    hutch_testkit::require!(root, kubectl, openssl, curl, python, vault);
    let folder = tempfile::tempdir().expect("a folder");
    let vault = Vault::start(folder.path());
    vault.ok(&["kv", "put", "-mount=secret", "default/github", &format!("token={VALUE}")]);
    vault.ok(&["secrets", "enable", "ssh"]);
    vault.ok(&["write", "ssh/roles/once", "key_type=otp", "default_user=agent", "cidr_list=192.0.2.0/24"]);
    vault.ok(&["secrets", "tune", "-default-lease-ttl=6s", "ssh"]);
    // The token of `hutch up` may do this, and nothing else.
    let rules = "path \"secret/data/default/github\" { capabilities = [\"read\"] }\n\
        path \"ssh/creds/once\" { capabilities = [\"update\"] }\n\
        path \"sys/leases/*\" { capabilities = [\"update\"] }\n";
    std::fs::write(folder.path().join("rules"), rules).expect("written");
    vault.ok(&["policy", "write", "hutch", &folder.path().join("rules").display().to_string()]);
    let token = vault.ok(&["token", "create", "-policy=hutch", "-field=token"]);
    let file = folder.path().join("token");
    std::fs::write(&file, &token).expect("written");
    let options = ["--vault", &vault.address, "--vault-token-file", &file.display().to_string()];
    let site = Site::start_with(&options);
    site.provide("vault", &json!({"vault": {"path": "secret/data/{namespace}/github", "field": "token"}}));
    let once = json!({"path": "ssh/creds/once", "field": "key", "parameters": {"ip": "192.0.2.7"}});
    site.provide("once", &json!({"vault": once}));
    applied(&site.up, &site.policy(&["vault", "once"]));
    site.ready("a", None);
    site.receives("a", "VAULT_TOKEN", VALUE);
    let issued = |name: &str| {
        let value = || site.received(name, "web.example", "ONCE_TOKEN");
        until("a value", || !matches!(value().as_bytes(), [] | [b'h', ..]));
        value()
    };
    let first = issued("a");
    assert_eq!((first.len(), vault.leases().len()), (36, 1), "{first}");
    // It ends after six seconds, unless it is renewed or replaced.
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert!(vault.leases().len() == 1 && issued("a").len() == 36);
    site.ready("b", None);
    assert_ne!(issued("b"), issued("a"), "each Sandbox has its own");
    until("two leases", || vault.leases().len() == 2);
    site.up.ok("delete sandbox b");
    until("one lease", || vault.leases().len() == 1);
    assert!(!in_memory(child_of(&site.up, "hutch-broker"), &[VALUE, &token]));
    // A lease that is revoked ends long before its time.
    vault.ok(&["secrets", "tune", "-default-lease-ttl=1h", "ssh"]);
    site.ready("c", None);
    let (revoked, all) = (issued("c"), vault.leases());
    assert_eq!(all.len(), 2);
    all.iter().for_each(|lease| drop(vault.ok(&["lease", "revoke", &format!("ssh/creds/once/{lease}")])));
    until("another value", || issued("c") != revoked);
    site.up.ok("delete sandbox c");
    until("one lease", || vault.leases().len() == 1);

    vault.ok(&["kv", "put", "-mount=secret", "default/github", &format!("token={SECOND}")]);
    site.receives("a", "VAULT_TOKEN", SECOND);
    // The client of Vault starts again.
    crate::processes::kill(child_of(&site.up, "hutch-vault"));
    vault.ok(&["kv", "put", "-mount=secret", "default/github", &format!("token={VALUE}")]);
    site.receives("a", "VAULT_TOKEN", VALUE);
    vault.ok(&["token", "revoke", token.trim()]);
    until("nothing", || site.received("a", "web.example", "VAULT_TOKEN").is_empty());
    let told = site.up.eventually(
        "get events --field-selector reason=CredentialNotIssued -o jsonpath={.items[*].message}",
        |found| found.contains("403"),
    );
    assert!(!told.contains(token.trim()) && !told.contains(VALUE), "{told}");
}
