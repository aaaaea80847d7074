//! The Worker's Pods are processes whose streams kubectl gets through a real API server, and nothing of them is left behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use hutch_testkit::cluster::{Cluster, Options, Worker};
use hutch_testkit::wait::{eventually, until};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

/// Listens on 8080 of its address, and answers what it gets.
const ECHO: &str = "import os, socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self): self.wfile.write(b'echo ' + self.rfile.readline())
socketserver.ThreadingTCPServer((os.environ['POD_IP'], 8080), Echo).serve_forever()";

struct Kubectl<'a>(&'a Cluster);

impl Kubectl<'_> {
    fn command(&self, words: &[&str], websockets: bool) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(words)
            .env("KUBECONFIG", self.0.kubeconfig())
            .env("HOME", self.0.folder())
            .stdin(Stdio::null());
        for variable in ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"] {
            command.env(variable, websockets.to_string());
        }
        command
    }

    fn run(&self, words: &[&str], websockets: bool) -> Output {
        self.command(words, websockets).output().expect("kubectl starts")
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words, true);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn create(client: &Client, name: &str, containers: serde_json::Value) -> Pod {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let spec =
        json!({"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": containers});
    let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("well formed");
    pods.create(&PostParams::default(), &pod).await.expect("created");
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    eventually(&format!("{name} runs"), || async {
        let pod = pods.get(name).await.expect("there");
        (phase(&pod) != "Pending").then_some(pod)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_gets_the_streams_of_processes_through_a_real_api_server() {
    hutch_testkit::require!(root, kubernetes, kubectl, python);
    let options = Options { crds: None, node: false, ..Options::default() };
    let cluster = Cluster::start(options).await.expect("a cluster");
    let client = cluster.client("tester").await.expect("a client");
    let worker = Worker::start(&cluster, Path::new("/nonexistent")).await.expect("a Node");
    let probe = json!({"tcpSocket": {"port": 8080}});
    let talker = "echo started; echo warned >&2; while sleep 0.1; do echo later; done";
    let pod = create(&client, "p", json!([
        {"name": "echo", "image": "i", "command": ["python3", "-c", ECHO], "readinessProbe": probe, "env": [{"name": "WHO", "value": "echo"}]},
        {"name": "talker", "image": "i", "command": ["sh", "-c", talker]},
    ])).await;
    let address = pod.status.and_then(|status| status.pod_ip).expect("an address");
    let kubectl = Kubectl(&cluster);
    for websockets in [true, false] {
        commands_run(&kubectl, websockets);
        ports_are_forwarded(&kubectl, websockets);
    }
    logs_are_read(&kubectl);
    pods_end(&kubectl, &client).await;
    a_stranger_gets_nothing(&kubectl);

    let marker =
        Command::new("pgrep").args(["-f", "while sleep 0.1; do echo later"]).output().expect("pgrep");
    assert!(marker.status.success());
    drop(worker);
    let addresses = Command::new("ip").args(["-o", "address", "show", "dev", "lo"]).output().expect("ip");
    assert!(!text(&addresses.stdout).contains(&format!("{address}/")), "{}", text(&addresses.stdout));
    assert!(!cluster.folder().join("pods").exists());
    until("its processes are gone", || {
        let found = Command::new("pgrep").args(["-f", "while sleep 0.1; do echo later"]).output();
        !found.expect("pgrep").status.success()
    });
}

fn commands_run(kubectl: &Kubectl<'_>, websockets: bool) {
    let script = "echo \"$WHO $POD_IP\"; echo err >&2; exit 3";
    let output = kubectl.run(&["exec", "p", "-c", "echo", "--", "sh", "-c", script], websockets);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("echo 10."), "{}", text(&output.stdout));
    assert!(text(&output.stderr).starts_with("err\n"));
    let output = kubectl.run(&["exec", "p", "--", "no-such-program"], websockets);
    assert!(text(&output.stderr).contains("executable file not found in $PATH"), "{}", text(&output.stderr));
    let output = kubectl.run(&["exec", "p", "-c", "other", "--", "true"], websockets);
    assert!(text(&output.stderr).contains("other"), "{}", text(&output.stderr));
    let mut child = kubectl.command(&["exec", "-i", "p", "--", "wc", "-c"], websockets);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("kubectl starts");
    child.stdin.take().expect("stdin").write_all(&vec![7; 3 << 20]).expect("written");
    assert_eq!(text(&child.wait_with_output().expect("wait").stdout).trim(), (3 << 20).to_string());
    // The size comes on its own, after the process has begun.
    let script = "tty; while [ \"$(stty size)\" = \"0 0\" ]; do sleep 0.05; done; stty size; exit 5";
    let mut child = kubectl.command(&["exec", "-it", "p", "--", "sh", "-c", script], websockets);
    // `script` is the terminal that kubectl wants.
    let words: Vec<String> =
        child.get_args().map(|word| format!("'{}'", text(word.as_encoded_bytes()))).collect();
    child = kubectl.command(&[], websockets);
    let mut script = Command::new("script");
    script.args(["-qec", &format!("stty cols 90 rows 30; kubectl {}", words.join(" ")), "/dev/null"]);
    script.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = script.stdin(Stdio::piped()).output().expect("script");
    let screen = text(&output.stdout);
    assert!(screen.contains("/dev/pts/") && screen.contains("30 90"), "{screen}");
    assert_eq!(output.status.code(), Some(5), "{screen}");
}

/// A running `kubectl port-forward`, and the port of this machine.
fn forward(kubectl: &Kubectl<'_>, websockets: bool) -> (Child, u16) {
    let mut command = kubectl.command(&["port-forward", "--address=127.0.0.1", "pod/p", ":8080"], websockets);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("kubectl starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("stdout")).read_line(&mut line).expect("a line");
    let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
    (child, port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{line}")))
}

fn ports_are_forwarded(kubectl: &Kubectl<'_>, websockets: bool) {
    let (mut child, port) = forward(kubectl, websockets);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("kubectl listens");
        stream.write_all(b"hello\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert_eq!(answer, "echo hello\n");
    }
    child.kill().expect("killed");
    child.wait().expect("wait");
}

fn logs_are_read(kubectl: &Kubectl<'_>) {
    let log = kubectl.ok(&["logs", "p", "-c", "talker"]);
    assert!(log.contains("started\n") && log.contains("warned\n"), "{log}");
    assert_eq!(kubectl.ok(&["logs", "p", "-c", "talker", "--tail=1"]), "later\n");
    let mut command = kubectl.command(&["logs", "-f", "p", "-c", "talker", "--tail=1"], true);
    let mut follow = command.stdout(Stdio::piped()).spawn().expect("kubectl starts");
    let lines = BufReader::new(follow.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    assert_eq!(lines.filter(|line| line == "later").take(3).count(), 3);
    follow.kill().expect("killed");
    follow.wait().expect("wait");
    let mut command = kubectl.command(&["attach", "p", "-c", "talker"], true);
    let mut attached = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("kubectl starts");
    let lines = BufReader::new(attached.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    assert_eq!(lines.filter(|line| line == "later").take(2).count(), 2);
    attached.kill().expect("killed");
    attached.wait().expect("wait");
}

/// Pods end by themselves, or on request.
async fn pods_end(kubectl: &Kubectl<'_>, client: &Client) {
    let once = json!([{"name": "once", "image": "i", "command": ["sh", "-c", "echo done; exit 4"]}]);
    create(client, "once", once).await;
    kubectl.ok(&["wait", "pod/once", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s"]);
    assert_eq!(kubectl.ok(&["logs", "once"]), "done\n");
    let stubborn = json!([{"name": "s", "image": "i", "command": ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]}]);
    create(client, "stubborn", stubborn).await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.delete("stubborn", &DeleteParams::default()).await.expect("deleted");
    kubectl.ok(&["wait", "pod/stubborn", "--for=delete", "--timeout=60s"]);
}

/// The kubelet's port refuses every client but the API server.
fn a_stranger_gets_nothing(kubectl: &Kubectl<'_>) {
    let port = kubectl.ok(&[
        "get",
        "node",
        "worker-1",
        "-o",
        "jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}",
    ]);
    let script = format!(
        "import ssl, urllib.request\ncontext = ssl._create_unverified_context()\n\
         try: urllib.request.urlopen('https://127.0.0.1:{port}/containerLogs/default/p/talker', context=context)\n\
         except Exception as error: print(error)\nelse: raise SystemExit('let in')"
    );
    let output = Command::new("python3").args(["-c", &script]).output().expect("python3");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).to_lowercase().contains("certificate required"), "{}", text(&output.stdout));
}
