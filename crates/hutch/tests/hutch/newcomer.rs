//! First commands of a new user of `hutch up`, with an unmodified kubectl.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::harness::{Up, succeeded, text};
use crate::policies::apply;

/// Redirects within the host and to another one.
const REDIRECTS: &str = r#"
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        to = {"/local": "/broken", "/away": "http://other.example/", "/loop": "/loop"}.get(self.path)
        self.send_response(302 if to else 500)
        if to:
            self.send_header("Location", to)
        self.end_headers()
        self.wfile.write(b"moved")
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"#;

#[test]
fn demo_shows_each_step() {
    hutch_testkit::require!(root, user_namespaces);
    let output = std::process::Command::new(crate::harness::HUTCH).arg("demo").output().expect("hutch demo");
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed} {}", text(&output.stderr));
    for step in [
        "claim to Ready",
        "hello from uid",
        "a request to http://1.1.1.1: ",
        "resumed",
        "the folder is removed",
    ] {
        assert!(printed.contains(step), "{step:?} is not in {printed}");
    }
}

#[test]
fn kubectl_on_an_address_of_the_machine_finds_what_it_expects() {
    hutch_testkit::require!(root, kubectl, python);
    let private = tempfile::tempdir().expect("tempdir");
    // As `mktemp -d` makes it: no other user may enter.
    std::fs::set_permissions(private.path(), PermissionsExt::from_mode(0o700)).expect("chmod");
    let address = hutch_testkit::cluster::machine_address();
    let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)));
    let up = Up::start_on(&private.path().join("data"), &["--api-listen", &format!("{address}:0")]);
    let config = std::fs::read_to_string(up.kubeconfig()).expect("the kubeconfig");
    assert!(config.contains(&format!("server: https://{address}:")), "{address}");
    assert!(up.ok("get nodes").contains(" Ready "));
    job(&up);
    new_image(&up);
    redirects(&up);
}

/// A Job is stored, and no Pod runs for it.
fn job(up: &Up) {
    let created = up.kubectl("create job tried --image=hutch/host -- true");
    succeeded("create job", &created);
    assert!(text(&created.stderr).starts_with("Warning: hutch up runs no jobs"), "{}", text(&created.stderr));
    let shown = up.ok("get job tried --no-headers");
    assert!(shown.split_whitespace().take(3).eq(["tried", "NotRunning", "0/1"]), "{shown}");
    assert_eq!(up.ok("get pods -o name"), "");
}

/// A container is started again with the image that `kubectl set image` names.
fn new_image(up: &Up) {
    up.ok("run changed --image=hutch/host --command -- sleep 1000");
    up.ok("wait --for=condition=Ready pod/changed --timeout=60s");
    up.ok("set image pod/changed changed=hutch/python-runtime");
    let of = "{.status.containerStatuses[0]";
    let words = format!("get pod changed -o jsonpath={of}.restartCount}}:{of}.image}}:{of}.ready}}");
    up.eventually(&words, |shown| shown == "1:hutch/python-runtime:true");
    up.eventually("get events --field-selector involvedObject.name=changed", |events| {
        events.contains("Container changed definition changed, will be restarted")
    });
    up.ok("delete pod changed --now --wait=false");
}

/// A probe follows a redirect within its host; one that leads elsewhere is a success with a warning.
fn redirects(up: &Up) {
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "failureThreshold": 1000, "periodSeconds": 1});
    let liveness =
        |name: &str, path: &str| json!({"name": name, "image": "hutch/pause", "livenessProbe": probe(path)});
    let pod: Value = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probed"}, "spec": {
        "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "away", "image": "hutch/host", "command": ["/usr/bin/python3", "-c", REDIRECTS],
                "readinessProbe": probe("/away")},
            liveness("local", "/local"), liveness("loop", "/loop")]}});
    succeeded("apply", &apply(up, &pod));
    up.ok("wait --for=condition=Ready pod/probed --timeout=60s");
    let message = |reason: &str, part: &str| {
        let fields = format!("involvedObject.name=probed,type=Warning,reason={reason}");
        let words = format!("get events --field-selector {fields} -o jsonpath={{.items[*].message}}");
        up.eventually(&words, |messages| messages.contains(part));
    };
    message("ProbeWarning", "Readiness probe warning: Probe terminated redirects, Response body: moved");
    message("Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 500");
    message("Unhealthy", "Liveness probe failed: Get \"/loop\": stopped after 10 redirects");
}
