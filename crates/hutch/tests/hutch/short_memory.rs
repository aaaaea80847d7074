//! Idle Sandboxes go to sleep before their time while the machine is short of memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::Up;

/// Answers every request with the number of those before it.
const SERVER: &str = r#"
import http.server, itertools
count = itertools.count()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(next(count)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8888), Handler).serve_forever()
"#;

/// Sets the available memory in a file such as `/proc/meminfo`, which is mounted. The other figures are those of this machine.
fn set_available(file: &Path, mebibytes: u64) {
    let real = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let line = |line: &str| match line.starts_with("MemAvailable:") {
        true => format!("MemAvailable: {} kB\n", mebibytes << 10),
        false => format!("{line}\n"),
    };
    std::fs::write(file, real.lines().map(line).collect::<String>()).expect("written");
}

fn sandbox(up: &Up, name: &str, annotations: Value) {
    let object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"podTemplate": {"spec": {
            "runtimeClassName": "gvisor", "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "hutch/host", "command": ["python3", "-u", "-c", SERVER],
                "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1, "failureThreshold": 1},
            }],
        }}},
    });
    let file = up.folder().join(format!("{name}.json"));
    std::fs::write(&file, object.to_string()).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
    up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=120s"));
}

/// The body of the answer to one request by way of the router.
#[track_caller]
fn answer(up: &Up, name: &str) -> String {
    let printed = up.printed.iter().find_map(|line| line.strip_prefix("router")).expect("the router");
    let address = printed.trim().strip_prefix("http://").and_then(|rest| rest.split(' ').next());
    let address: SocketAddr = address.and_then(|address| address.parse().ok()).expect("an address");
    let mut stream = TcpStream::connect(address).expect("connected");
    let request = format!("GET / HTTP/1.1\r\nhost: r\r\nx-sandbox-id: {name}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.split(' ').nth(1) == Some("200"), "{answer}");
    answer.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned()
}

#[test]
fn idle_sandbox_is_suspended_with_its_memory_and_requests_wake_it() {
    hutch_testkit::require!(root, kubectl, runsc, python);
    let memory = tempfile::NamedTempFile::new().expect("a file");
    set_available(memory.path(), 4096);
    let options = ["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"];
    let up = Up::start_with_meminfo(memory.path(), &options);
    // Its processes would end.
    sandbox(&up, "files", json!({"hutch.dev/suspend-after": "1h"}));
    let keeps = json!({
        "hutch.dev/suspend-after": "1h", "hutch.dev/suspend-keeps": "memory", "hutch.dev/wake-on-connect": "true",
    });
    sandbox(&up, "s", keeps);
    assert_eq!((answer(&up, "files"), answer(&up, "s")), ("0".to_owned(), "0".to_owned()));

    set_available(memory.path(), 50);
    up.ok("wait --for=condition=Suspended sandbox/s --timeout=120s");
    let path = "jsonpath={.status.conditions[?(@.type==\"MemoryPressure\")].status}";
    assert_eq!(up.ok(&format!("get node hutch -o {path}")), "True");
    let events = "get events --field-selector reason=MemoryPressure,involvedObject.kind=Sandbox -o json";
    let events: Value =
        serde_json::from_str(&up.eventually(events, |text| text.contains("MiB"))).expect("JSON");
    let [event] = &events["items"].as_array().expect("a list")[..] else { panic!("{events:#}") };
    assert_eq!(event["involvedObject"]["name"], "s");
    let message = event["message"].as_str().unwrap_or_default();
    assert!(message.contains("50 MiB") && message.contains("suspended with its memory"), "{message}");

    // One restore for all; none is lost, and none finds new processes.
    let requests: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| answer(&up, "s"))).collect();
        all.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    let mut numbers: Vec<u32> = requests.iter().map(|body| body.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..9).collect::<Vec<_>>());
    set_available(memory.path(), 4096);
    assert_eq!(answer(&up, "files"), "1");
    up.eventually(&format!("get node hutch -o {path}"), |status| status == "False");
}
