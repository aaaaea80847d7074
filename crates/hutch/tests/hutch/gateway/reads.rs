//! TLS ends at the gateway where rules read requests: Pods trust its authority, and the key stays there.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{GATEWAY, Running, SERVER};
use crate::harness::{succeeded, text};
use crate::inspected;

/// Makes the authority as docs/gateway.md does.
pub(super) fn authority(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    let guide = include_str!("../../../../../docs/gateway.md");
    let start = guide.find("openssl req").expect("the command of the guide");
    // Up to the first line that is not continued.
    let end = guide[start..].lines().position(|line| !line.ends_with('\\')).expect("an end");
    let script: String = guide[start..].lines().take(end + 1).map(|line| format!("{line}\n")).collect();
    let mut shell = Command::new("sh");
    shell.args(["-euc", &script]).current_dir(folder);
    succeeded("openssl", &shell.output().expect("sh"));
}

fn policy(port: u16) -> Value {
    let rule =
        |name: &str, host: &str| json!({"name": name, "hosts": [host], "ports": [port], "private": [SERVER]});
    let mut reads = rule("reads", "tls.example");
    reads["http"] = json!([{"methods": ["GET"], "paths": ["/ok/**"]}]);
    json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {"name": "tls"},
        "spec": {"appliesTo": {"selector": {"matchLabels": {"app": "agent"}}},
            "egress": {"rules": [reads, rule("passed", "passed.example")]}}})
}

/// Requests by a program that takes the certificates from its environment, without an option.
const PYTHON: &str = "import base64, http.client, os, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTPS_PROXY'])
client = http.client.HTTPSConnection(proxy.hostname, proxy.port, source_address=(os.environ['POD_IP'], 0))
credential = base64.b64encode(f'{proxy.username}:{proxy.password}'.encode()).decode()
client.set_tunnel(sys.argv[1], int(sys.argv[2]), {'Proxy-Authorization': 'Basic ' + credential})
client.request('GET', sys.argv[3])
print(client.getresponse().status)";

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_tls_hosts_are_decided_at_the_gateway() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, node, openssl, python);
    let running = Running::start().await;
    let folder = running.cluster.folder().to_owned();
    let (server, port) = inspected::serve(SERVER, &folder.join("public"), &folder.join("server.log"));
    running.apply(&policy(port));
    running.sandbox("one");
    running.sandbox("two");

    let curl = |options: &str, host: &str, path: &str| {
        let script = format!(
            "curl -sS --max-time 20 -o answer -w '%{{http_code}} %{{http_connect}}' --interface $POD_IP {options} https://{host}:{port}{path}"
        );
        text(&running.exec("one", &script).stdout)
    };
    let holds = async || curl("", "tls.example", "/ok/a") == "200 200";
    running.cluster.until("an allowed request passes", holds).await.unwrap();
    assert_eq!(curl("", "tls.example", "/other"), "403 200");
    assert_eq!(curl("-d x", "tls.example", "/ok/a"), "403 200", "another method");
    assert_eq!(curl("", "passed.example", "/other"), "200 200", "the public certificates are trusted too");
    for (path, status) in [("/ok/a", "200"), ("/other", "403")] {
        let script = format!("python3 -c \"{PYTHON}\" tls.example {port} {path}");
        let output = running.exec("one", &script);
        assert_eq!(text(&output.stdout).trim(), status, "{}", text(&output.stderr));
    }
    let requests = server.printed();
    assert!(requests.contains("/other") && !requests.contains("POST"), "{requests}");
    assert_eq!(requests.matches("/other").count(), 1, "that of the other host: {requests}");

    // A token inside the tunnel, which no proxy requests, does not leave either.
    let (own, other) = (running.token("one"), running.token("two"));
    let inside = format!("-H 'Proxy-Authorization: Basic {own}' -H 'X-Kept: yes'");
    assert_eq!(curl(&inside, "tls.example", "/ok/headers"), "200 200");
    let headers = text(&running.exec("one", "cat answer").stdout);
    assert!(headers.contains("x-kept") && !headers.contains(&own), "{headers}");

    let gateway = running.gateway;
    for proxy in [format!("http://{gateway}"), format!("http://sandbox:{other}@{gateway}")] {
        assert_eq!(curl(&format!("--proxy {proxy}"), "tls.example", "/ok/a"), "000 407", "{proxy}");
    }
    // A program that does not trust the authority sends nothing.
    assert_eq!(curl("--cacert /dev/null", "tls.example", "/ok/a"), "000 200");

    key_stays_at_the_gateway(&running, &folder.join("ca"));
}

fn key_stays_at_the_gateway(running: &Running, folder: &Path) {
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).expect(file);
    let (certificate, key) = (read("tls.crt"), read("tls.key"));
    let found = running.kubectl(&["get", "configmaps", "-A", "-o", "jsonpath={.items[*].data}"]);
    let pods = running.kubectl(&["get", "pods", "-A", "-o", "json"]);
    let line = |pem: &str| pem.lines().nth(1).expect("a line").to_owned();
    assert!(found.contains(&line(&certificate)), "{found}");
    for text in [found, pods, running.log(GATEWAY), running.log("controller")] {
        assert!(!text.contains(&line(&key)) && !text.contains("PRIVATE KEY"));
    }
    // The right to create the ConfigMap is that for one name.
    let can = |verb: &str, name: &str| {
        let mut command = Command::new("kubectl");
        let account = format!("--as=system:serviceaccount:{}:agent-sandbox-controller", super::NAMESPACE);
        command.args(["auth", "can-i", verb, &format!("configmaps{name}"), &account, "--kubeconfig"]);
        text(&command.arg(running.cluster.kubeconfig()).output().expect("kubectl starts").stdout)
            .trim()
            .to_owned()
    };
    assert_eq!(can("patch", "/hutch-egress-ca"), "yes");
    for (verb, name) in [("get", "/hutch-egress-ca"), ("patch", "/other"), ("create", ""), ("list", "")] {
        assert_eq!(can(verb, name), "no", "{verb} {name}");
    }
}
