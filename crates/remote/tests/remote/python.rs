//! The Python package `kubernetes` against this crate: WebSocket channels of version 4.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::server;

const SCRIPT: &str = r#"
import sys
from kubernetes import client
from kubernetes.stream import stream, portforward
server, port = sys.argv[1], int(sys.argv[2])
api = client.CoreV1Api(client.ApiClient(client.Configuration(host=server)))
call = lambda command, **more: stream(api.connect_get_namespaced_pod_exec, "p", "default", command=command, **more)
text = call(["sh", "-c", "echo out"], stdout=True, stderr=True, stdin=False, tty=False)
assert text == "out\n", text
session = call(["sh", "-c", "read line; echo got $line; echo bad >&2; exit 4"],
               stdout=True, stderr=True, stdin=True, tty=False, _preload_content=False)
session.write_stdin("word\n")
session.run_forever(timeout=20)
assert session.read_stdout() == "got word\n"
assert session.read_stderr() == "bad\n"
assert session.returncode == 4, session.returncode
session.close()
forward = portforward(api.connect_get_namespaced_pod_portforward, "p", "default", ports=f"{port}")
socket = forward.socket(port)
socket.setblocking(True)
socket.sendall(b"x" * 100000)
left = 100000
while left:
    left -= len(socket.recv(left))
assert forward.error(port) is None
print("all well")
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_execs_and_forwards() {
    hutch_testkit::require!(python);
    let has = std::process::Command::new("python3")
        .args(["-c", "import kubernetes"])
        .stderr(Stdio::null())
        .status();
    if !has.is_ok_and(|status| status.success()) {
        return hutch_testkit::note_skip(
            "the_python_client_execs_and_forwards",
            "needs the Python package kubernetes",
        );
    }
    let (address, _) = server::start_server().await;
    let port = server::start_echo().await;
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT, &format!("http://{address}"), &port.to_string()]).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await;
    let output = output.expect("Python ends in time").expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"all well\n");
}
