//! Webhooks of admission with an unmodified kubectl: on a host, and in a Pod behind a Service.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::harness::{Up, refused, succeeded, text};

/// Address of the server on the machine. It is loopback, and no other test uses it.
const SERVER_ADDRESS: &str = "127.77.35.1";
/// An HTTPS server that denies objects named `bad` and labels the others. Arguments: certificate, key, port and address.
const SERVER: &str = r#"
import base64, http.server, json, ssl, sys

class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        response = {"uid": request["uid"], "allowed": request["name"] != "bad", "status": {"message": "no bad names"}}
        if self.path.startswith("/label"):
            patch = json.dumps([{"op": "add", "path": "/metadata/labels", "value": {"seen": request["operation"]}}])
            response.update(patchType="JSONPatch", patch=base64.b64encode(patch.encode()).decode())
        review = {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server = http.server.ThreadingHTTPServer((sys.argv[4], int(sys.argv[3])), Hook)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

/// A certificate with its key and its authority, PEM.
struct Pair {
    authority: String,
    certificate: String,
    key: String,
}

impl Pair {
    fn new(names: &[&str]) -> Pair {
        let (key, mut authority) = (rcgen::KeyPair::generate().unwrap(), rcgen::CertificateParams::default());
        authority.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = authority.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(authority, key);
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        Pair { authority: STANDARD.encode(pem), certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Applies an object through standard input. Returns what kubectl wrote to standard error.
fn apply(up: &Up, object: &Value) -> String {
    let mut command = up.kubectl_command(&["apply", "-f", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    succeeded("apply", &output);
    text(&output.stderr)
}

fn configuration(kind: &str, client: &Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "hook"}, "webhooks": [{
        "name": "hook.example.com", "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}]})
}

/// The webhook denies one ConfigMap and labels another, and the configuration can be removed.
fn decides(up: &Up, client: &Value) {
    let mut labels = client.clone();
    match labels["url"].as_str() {
        Some(url) => labels["url"] = format!("{url}/label").into(),
        None => labels["service"]["path"] = "/label".into(),
    }
    apply(up, &configuration("ValidatingWebhookConfiguration", client));
    apply(up, &configuration("MutatingWebhookConfiguration", &labels));
    let denied = up.kubectl("create configmap bad");
    refused(&denied, 1, &["admission webhook \"hook.example.com\" denied the request: no bad names"]);
    up.ok("create configmap good");
    assert_eq!(up.ok("get configmap good -o jsonpath={.metadata.labels.seen}"), "CREATE");
    up.ok("delete configmap good");
    assert!(up.ok("get validatingwebhookconfigurations").contains("hook   1"));
    up.ok("delete mutatingwebhookconfiguration,validatingwebhookconfiguration hook");
}

#[test]
fn webhooks_on_an_allowed_host_and_in_a_pod_decide_requests_of_kubectl() {
    hutch_testkit::require!(root, kubectl, python);
    // Of an address of its own: no other program takes the port before the server.
    let free = std::net::TcpListener::bind((SERVER_ADDRESS, 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let mut up = Up::start(&["--webhook-host", &address.to_string()]);
    let pair = Pair::new(&[SERVER_ADDRESS, "hook.default.svc"]);
    let [certificate, key] =
        [("tls.crt", &pair.certificate), ("tls.key", &pair.key)].map(|(name, content)| {
            let file = up.folder().join(name);
            std::fs::write(&file, content).unwrap();
            file
        });
    let mut server = Command::new("python3");
    server
        .args(["-c", SERVER])
        .args([&certificate, &key])
        .args([&address.port().to_string(), SERVER_ADDRESS]);
    let server = Running(server.stderr(Stdio::null()).spawn().unwrap());
    hutch_testkit::wait::until("the webhook listens", || TcpStream::connect(address).is_ok());

    let url = |host: &str| json!({"url": format!("https://{host}"), "caBundle": pair.authority});
    decides(&up, &url(&address.to_string()));
    crate::processes::kill(crate::processes::child_of(&up, "hutch-callout"));
    decides(&up, &url(&address.to_string()));
    let other = configuration("ValidatingWebhookConfiguration", &url("other.example"));
    let file = up.folder().join("other.json");
    std::fs::write(&file, other.to_string()).unwrap();
    let denied = up.kubectl_args(&["apply", "-f", file.to_str().unwrap()]);
    refused(&denied, 1, &["webhooks[0].clientConfig.url: Forbidden", "does not name other.example:443"]);

    up.ok_args(&[
        "create",
        "secret",
        "tls",
        "hook",
        "--cert",
        certificate.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ]);
    apply(
        &up,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hook", "labels": {"app": "hook"}}, "spec": {
        "terminationGracePeriodSeconds": 0, "volumes": [{"name": "tls", "secret": {"secretName": "hook"}}],
        "containers": [{"name": "hook", "image": "hutch/host",
            "command": ["/usr/bin/python3", "-c", SERVER, "/tls/tls.crt", "/tls/tls.key", "8443", "0.0.0.0"],
            "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
            "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1}}]}}),
    );
    up.ok("expose pod hook --port=443 --target-port=8443");
    up.ok("wait --for=condition=Ready pod/hook --timeout=60s");
    up.eventually("get endpoints hook -o jsonpath={.subsets[*].ports[*].port}", |port| port == "8443");
    let service = json!({"service": {"name": "hook", "namespace": "default"}, "caBundle": pair.authority});
    decides(&up, &service);

    // A webhook that matches everything and has gone keeps neither the server from starting nor itself from being removed.
    let mut everything = configuration("ValidatingWebhookConfiguration", &url(&address.to_string()));
    everything["webhooks"][0]["rules"] =
        json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    apply(&up, &everything);
    drop(server);
    up.stop();
    up.restart();
    refused(
        &up.kubectl("create configmap x"),
        1,
        &["failed calling webhook \"hook.example.com\"", "Connection refused"],
    );
    up.ok("delete validatingwebhookconfiguration hook");
    up.ok("create configmap x");
}

#[test]
fn admission_policy_decides_requests_of_kubectl() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let page = include_str!("../../../../docs/api.md");
    let example = page.split("## Admission policies").nth(1).unwrap().split("```yaml\n").nth(1).unwrap();
    let file = up.folder().join("policy.yaml");
    std::fs::write(&file, example.split("```").next().unwrap()).unwrap();
    up.ok_args(&["apply", "-f", file.to_str().unwrap()]);
    refused(
        &up.kubectl("run bad --image=hutch/pause"),
        1,
        &["ValidatingAdmissionPolicy 'tags' with binding 'tags' denied request: an image needs a tag"],
    );
    up.ok("run good --image=hutch/pause:1 --dry-run=server");
    assert!(up.ok("get validatingadmissionpolicies,validatingadmissionpolicybindings").contains("tags"));
    assert!(up.ok("explain validatingadmissionpolicy.spec.validations").contains("messageExpression"));
}

#[test]
fn kubectl_explains_configurations_and_shows_their_warnings() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let explained = up.ok("explain validatingwebhookconfiguration.webhooks.matchConditions");
    assert!(explained.contains("expression") && explained.contains("-required-"), "{explained}");
    let client = json!({"service": {"name": "hook", "namespace": "default"}});
    let warned = apply(&up, &configuration("ValidatingWebhookConfiguration", &client));
    assert!(
        warned.contains("Warning: webhooks[0].clientConfig.caBundle: calls fail until it is set"),
        "{warned}"
    );
}
