//! Sandboxes reach each other through the gateway by rules with `sandboxes`: by the names of Services, and by no address.

use serde_json::{Value, json};

use super::{GATEWAY, Running};
use crate::harness::text;

const PORT: u16 = 8123;
/// A server that answers with what it receives.
const ECHO: &str = "import http.server, os
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (self.requestline + chr(10) + str(self.headers)).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer((os.environ['POD_IP'], int(os.environ['PORT'])), Echo).serve_forever()";

/// A Sandbox with a Service and this server.
fn sandbox(running: &Running, name: &str) {
    let container = json!({"name": "main", "image": "i", "command": ["python3", "-c", ECHO],
        "env": [{"name": "PORT", "value": PORT.to_string()}], "readinessProbe": {"tcpSocket": {"port": PORT}}});
    running.apply(&json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "labels": {"app": "agent"}},
        "spec": {"service": true, "podTemplate": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}}}));
    running.kubectl(&["wait", "sandbox", name, "--for=condition=Ready", "--timeout=90s"]);
}

fn policy(kind: &str, name: &str, sandboxes: &[&str], rule: &Value) -> Value {
    json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": kind, "metadata": {"name": name},
        "spec": {"appliesTo": {"sandboxes": sandboxes}, "egress": {"rules": [rule]}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_reach_each_other_by_rules_and_by_no_address() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, openssl, python);
    let running = Running::start().await;
    sandbox(&running, "app");
    sandbox(&running, "db");
    let request = |from: &str, options: &str, host: &str| {
        let script = format!(
            "curl -sS --max-time 20 -o answer -w '%{{http_code}} %{{http_connect}}' --interface $POD_IP {options} http://{host}"
        );
        text(&running.exec(from, &script).stdout)
    };
    let db = format!("db:{PORT}/x");
    assert_eq!(request("app", "", &db), "403 000", "nothing opens it");

    // A rule for every address and name does not open Sandboxes.
    let all = json!({"name": "all", "any": true, "cidrs": ["0.0.0.0/0"], "ports": [PORT], "protocol": "TCP",
        "private": ["10.0.0.0/8"]});
    running.apply(&policy("SandboxPolicy", "all", &["app"], &all));
    running.apply(&json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy",
        "metadata": {"name": "all"}, "spec": {"appliesTo": {"selector": {"matchLabels": {"app": "agent"}}},
            "egress": {"rules": [all]}}}));
    let literal = format!("{}:{PORT}/x", running.address("db"));
    let holds = async || running.log(GATEWAY).contains("it is the address of a sandbox");
    let tried = async || {
        assert_ne!(request("app", "", &literal), "200 000");
        holds().await
    };
    running.cluster.until("the address is refused as that of a Sandbox", tried).await.unwrap();
    for options in ["--proxytunnel", "--proxy $ALL_PROXY"] {
        assert!(!request("app", options, &literal).starts_with("200"), "{options}");
    }

    let peer = json!({"name": "db", "sandboxes": [{"name": "db"}], "ports": [PORT]});
    running.apply(&policy("SandboxPolicy", "peer", &["app"], &peer));
    running.kubectl(&["delete", "sandboxpolicy", "all"]);
    running.kubectl(&["delete", "clustersandboxpolicy", "all"]);
    let holds = async || request("app", "", &db) == "200 000";
    running.cluster.until("the rule opens the other Sandbox", holds).await.unwrap();
    let echo = text(&running.exec("app", "cat answer").stdout);
    assert!(echo.starts_with("GET /x HTTP/1.1") && echo.contains(&format!("db:{PORT}")), "{echo}");
    assert!(!echo.to_lowercase().contains("proxy") && !echo.contains(&running.token("app")), "{echo}");
    assert_eq!(request("app", "--proxytunnel", &format!("db.default.svc:{PORT}/")), "200 200", "CONNECT");
    assert_eq!(request("app", "--proxy $ALL_PROXY", &db), "200 000", "SOCKS");
    assert_eq!(request("app", "", "db:8124/"), "403 000", "another port");
    assert_eq!(request("app", "", &literal), "403 000", "its address");
    assert_eq!(request("db", "", &format!("app:{PORT}/")), "403 000", "the other direction");

    // The next Pod of the Sandbox has another address and the same name.
    let before = running.address("db");
    running.kubectl(&["delete", "pod", "db"]);
    let renewed = async || {
        let address = running.kubectl(&[
            "get",
            "pods",
            "-o",
            "jsonpath={.items[?(@.metadata.name==\"db\")].status.podIP}",
        ]);
        !address.is_empty() && address != before
    };
    running.cluster.until("the Sandbox has another Pod", renewed).await.unwrap();
    let holds = async || request("app", "", &db) == "200 000";
    running.cluster.until("the next Pod is reached", holds).await.unwrap();

    running.kubectl(&["delete", "sandboxpolicy", "peer"]);
    let holds = async || request("app", "", &db) == "403 000";
    running.cluster.until("without the rule nothing is open", holds).await.unwrap();
}
