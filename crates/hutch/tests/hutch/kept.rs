//! Sandboxes whose memory is kept, for the tests of suspends and snapshots.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{self, Up};

/// Answers every request with the number of those before it, and writes it to an open file and to the volume. Each life of the
/// program adds a line to a file of its claim, if it has one.
pub(crate) const SERVER: &str = r#"
import http.server, itertools, os
if os.path.isdir("/data"):
    with open("/data/starts", "a") as starts: starts.write("start\n")
count = itertools.count()
log = open("/tmp/log", "w")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(next(count)).encode()
        for file in (log, open("/scratch/last", "w")):
            file.write(body.decode())
            file.flush()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8888), Handler).serve_forever()
"#;

/// Options of a server whose router answers requests of the tests.
pub(crate) const ROUTER: [&str; 3] = ["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"];

pub(crate) fn start() -> Up {
    Up::start(&ROUTER)
}

/// A Sandbox that runs [`SERVER`], in gVisor.
pub(crate) fn object(name: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": {"hutch.dev/suspend-keeps": "memory"}},
        "spec": {"podTemplate": {"spec": {
            "runtimeClassName": "gvisor", "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "hutch/host", "command": ["python3", "-u", "-c", SERVER],
                "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1, "failureThreshold": 1},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        }}},
    })
}

/// The same with a claim that counts the lives of the program.
pub(crate) fn counted(name: &str) -> Value {
    let mut object = object(name);
    object["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}]);
    let mounts = &mut object["spec"]["podTemplate"]["spec"]["containers"][0]["volumeMounts"];
    mounts.as_array_mut().expect("mounts").push(json!({"name": "data", "mountPath": "/data"}));
    object
}

/// Lives of the program of a counted Sandbox so far.
pub(crate) fn lives(up: &Up, name: &str) -> usize {
    let uid = up.ok(&format!("get pvc data-{name} -o jsonpath={{.metadata.uid}}"));
    let file = up.data().join("volumes/default").join(uid.trim()).join("starts");
    std::fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

pub(crate) fn apply(up: &Up, object: &Value) {
    let file = up.folder().join("object.json");
    std::fs::write(&file, object.to_string()).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
}

/// Applies a Sandbox and waits until it is Ready.
pub(crate) fn run(up: &Up, object: &Value) {
    apply(up, object);
    ready(up, object["metadata"]["name"].as_str().expect("a name"));
}

pub(crate) fn ready(up: &Up, name: &str) {
    up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=120s"));
}

/// The body of the answer to one request by way of the router.
#[track_caller]
pub(crate) fn answer(up: &Up, name: &str) -> String {
    let mut stream = TcpStream::connect(up.router()).expect("connected");
    let request = format!("GET / HTTP/1.1\r\nhost: r\r\nx-sandbox-id: {name}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.split(' ').nth(1) == Some("200"), "{answer}");
    answer.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned()
}

/// Sets the operating mode of a Sandbox.
pub(crate) fn set(up: &Up, name: &str, mode: &str) {
    let patch = json!({"spec": {"operatingMode": mode}}).to_string();
    up.ok_args(&["patch", "sandbox", name, "--type=merge", "-p", &patch]);
}

pub(crate) fn suspended(up: &Up, name: &str) {
    up.ok(&format!("wait --for=condition=Suspended sandbox/{name} --timeout=170s"));
}

pub(crate) fn suspend(up: &Up, name: &str) {
    set(up, name, "Suspended");
    suspended(up, name);
}

pub(crate) fn resume(up: &Up, name: &str) {
    set(up, name, "Running");
    ready(up, name);
}

pub(crate) fn snapshots(up: &Up) -> Vec<Value> {
    let list: Value = serde_json::from_str(&up.ok("get sandboxsnapshots -o json")).expect("JSON");
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Folders of images on the disk, complete or not.
pub(crate) fn images(up: &Up) -> Vec<PathBuf> {
    let folder = up.data().join("snapshots");
    let entries =
        std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.is_dir()).collect()
}

/// Returns true if each image is complete and belongs to an object, and each complete object has one.
pub(crate) fn images_have_objects(up: &Up) -> bool {
    let complete = |one: &Value| one["status"]["conditions"][0]["reason"] == "Completed";
    let complete: Vec<String> = snapshots(up)
        .iter()
        .filter(|one| complete(one))
        .map(|one| one["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
        .collect();
    let names: Vec<String> = images(up)
        .iter()
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    names.iter().all(|name| complete.contains(name)) && complete.iter().all(|uid| names.contains(uid))
}

/// Message of the condition `Ready` of a Sandbox.
pub(crate) const READY_MESSAGE: &str = "jsonpath={.status.conditions[?(@.type==\"Ready\")].message}";

/// Reason and message of a snapshot that is over.
pub(crate) fn outcome(up: &Up, name: &str) -> String {
    let path = "jsonpath={.status.conditions[0].reason}:{.status.conditions[0].message}";
    up.eventually(&format!("get sandboxsnapshot {name} -o {path}"), |said| {
        said.len() > 1 && !said.starts_with("InProgress") && !said.starts_with("Pending")
    })
}

/// A SandboxSnapshot of a Sandbox.
pub(crate) fn snapshot_object(name: &str, sandbox: &str, content: &str) -> Value {
    json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxSnapshot", "metadata": {"name": name},
        "spec": {"source": {"sandbox": sandbox}, "content": content}})
}

/// Takes a snapshot, and returns the object once it is complete.
pub(crate) fn snapshot(up: &Up, name: &str, sandbox: &str, content: &str) -> Value {
    apply(up, &snapshot_object(name, sandbox, content));
    up.ok(&format!("wait --for=condition=Ready sandboxsnapshot/{name} --timeout=120s"));
    serde_json::from_str(&up.ok(&format!("get sandboxsnapshot {name} -o json"))).expect("JSON")
}

/// Runs `hutch fork` with these arguments, which must succeed.
#[track_caller]
pub(crate) fn fork(up: &Up, arguments: &[&str]) {
    let mut command = Command::new(harness::binary());
    command.arg("fork").args(arguments).env("KUBECONFIG", up.kubeconfig());
    harness::succeeded("hutch fork", &command.output().expect("hutch fork"));
}

/// Deletes the Pod of a Sandbox, and waits for the next one.
pub(crate) fn replace_pod(up: &Up, name: &str) {
    let uid = format!("get pod {name} -o jsonpath={{.metadata.uid}} --ignore-not-found");
    let before = up.ok(&uid);
    up.ok(&format!("delete pod {name}"));
    up.eventually(&uid, |uid| !uid.is_empty() && uid != before);
    up.ok(&format!("wait --for=condition=Ready pod/{name} --timeout=120s"));
}
