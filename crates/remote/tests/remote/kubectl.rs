//! Unmodified kubectl against this crate, over each of its protocols.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::server;

const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Larger than all buffers and windows of the connection.
const LONG: usize = 9 * 1024 * 1024;

struct Kubectl {
    server: SocketAddr,
    upgrades: server::Upgrades,
    home: tempfile::TempDir,
    websockets: bool,
}

impl Kubectl {
    async fn new(websockets: bool) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let (server, upgrades) = server::start_server().await;
        Self { server, upgrades, home, websockets }
    }

    /// Fails unless all streams so far came over the expected protocol.
    fn assert_protocol(&self, websocket: &str) {
        let expected = if self.websockets { websocket } else { "SPDY/3.1" };
        let upgrades = self.upgrades.lock().expect("no panic");
        assert!(!upgrades.is_empty() && upgrades.iter().all(|upgrade| upgrade == expected), "{upgrades:?}");
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let websockets = if self.websockets { "true" } else { "false" };
        let mut command = Command::new("kubectl");
        command.arg(format!("--server=http://{}", self.server)).args(arguments);
        command.env("HOME", self.home.path()).env("KUBECONFIG", "/dev/null");
        command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets);
        command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_vec();
        let feed = tokio::spawn(async move {
            // A command that does not read its input breaks the pipe, which is not under test.
            let _ = stdin.write_all(&input).await;
        });
        let output = tokio::time::timeout(WAIT_LIMIT, child.wait_with_output()).await;
        feed.abort();
        output.expect("kubectl ends in time").expect("kubectl runs")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes without a period that could hide a lost or repeated piece.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

async fn exec_works(websockets: bool) {
    let kubectl = Kubectl::new(websockets).await;
    let out = kubectl.run(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], b"").await;
    assert_eq!(text(&out.stdout), "out\n");
    assert!(text(&out.stderr).contains("err\n"), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("command terminated with exit code 3"), "{}", text(&out.stderr));
    assert_eq!(out.status.code(), Some(3));

    let input = noise(LONG);
    let out = kubectl.run(&["exec", "-i", "p", "--", "cat"], &input).await;
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(out.stdout == input, "{} of {} bytes came back", out.stdout.len(), input.len());

    let out = kubectl.run(&["exec", "p", "--", "sh", "-c", "kill -9 $$"], b"").await;
    assert_eq!(out.status.code(), Some(137));

    let out = kubectl.run(&["exec", "p", "--", "/no/such/program"], b"").await;
    assert!(text(&out.stderr).contains("error executing command in container"), "{}", text(&out.stderr));

    // The input is not read: the command ends all the same, and so does kubectl.
    let out = kubectl.run(&["exec", "-i", "p", "--", "echo", "done"], &input).await;
    assert_eq!(text(&out.stdout), "done\n", "{}", text(&out.stderr));
    kubectl.assert_protocol("websocket v5.channel.k8s.io");
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_over_websocket() {
    hutch_testkit::require!(kubectl);
    exec_works(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_over_spdy() {
    hutch_testkit::require!(kubectl);
    exec_works(false).await;
}

async fn a_left_session_ends(websockets: bool) {
    let kubectl = Kubectl::new(websockets).await;
    let folder = tempfile::tempdir().expect("a folder");
    let pid = folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", pid.display());
    let mut child =
        kubectl.command(&["exec", "p", "--", "sh", "-c", &script]).spawn().expect("kubectl starts");
    let pid = until(|| std::fs::read_to_string(&pid).ok().filter(|pid| pid.ends_with('\n'))).await;
    let process = format!("/proc/{}", pid.trim());
    assert!(std::fs::exists(&process).unwrap());
    child.kill().await.expect("kubectl is killed");
    until(|| (!std::fs::exists(&process).unwrap()).then_some(())).await;
}

async fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = found() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, wait).await.expect("it happens in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_ends_with_its_client() {
    hutch_testkit::require!(kubectl);
    a_left_session_ends(true).await;
    a_left_session_ends(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_error_texts() {
    hutch_testkit::require!(kubectl);
    for websockets in [true, false] {
        let kubectl = Kubectl::new(websockets).await;
        let out = kubectl.run(&["exec", "p", "-c", "missing", "--", "true"], b"").await;
        assert!(!out.status.success());
        let error = text(&out.stderr);
        assert!(
            error.contains("container missing is not") || error.contains("container not found"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_attach() {
    hutch_testkit::require!(kubectl);
    for websockets in [true, false] {
        let kubectl = Kubectl::new(websockets).await;
        let out = kubectl.run(&["logs", "p", "--tail=2"], b"").await;
        assert_eq!(text(&out.stdout), "line 0\nline 1\n", "{}", text(&out.stderr));
        let out = kubectl.run(&["attach", "-i", "p"], b"to the main process\n").await;
        assert!(
            text(&out.stdout).contains("to the main process\n"),
            "{}{}",
            text(&out.stdout),
            text(&out.stderr)
        );
    }
}

/// Running `kubectl port-forward` and the local ports that it printed.
async fn port_forward(kubectl: &Kubectl, ports: &[u16]) -> (Child, Vec<u16>) {
    let mappings: Vec<String> = ports.iter().map(|port| format!(":{port}")).collect();
    let mut arguments = vec!["port-forward", "--address=127.0.0.1", "pod/p"];
    arguments.extend(mappings.iter().map(String::as_str));
    let mut child = kubectl.command(&arguments).spawn().expect("kubectl starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut local = Vec::new();
    while local.len() < ports.len() {
        let line =
            tokio::time::timeout(WAIT_LIMIT, lines.next_line()).await.expect("kubectl listens in time");
        let line = line.expect("kubectl prints").expect("kubectl is alive");
        let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
        local.push(port.expect("a port").parse().expect("a port"));
    }
    // kubectl continues to print, and must not stop at a closed pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, local)
}

async fn echo(port: u16, bytes: Vec<u8>) {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("kubectl listens");
    let (mut read, mut write) = stream.into_split();
    let sent = bytes.clone();
    let send = tokio::spawn(async move {
        write.write_all(&sent).await?;
        write.shutdown().await
    });
    let mut back = Vec::new();
    let got = tokio::time::timeout(WAIT_LIMIT, read.read_to_end(&mut back)).await;
    got.unwrap_or_else(|_| panic!("only {} of {} bytes in time", back.len(), bytes.len())).expect("bytes");
    send.await.expect("sends").expect("sends");
    assert!(back.len() == bytes.len() + 3, "{} of {} bytes came back", back.len(), bytes.len());
    assert!(back.starts_with(&bytes) && back.ends_with(b"end"));
}

async fn port_forward_works(websockets: bool) {
    let kubectl = Kubectl::new(websockets).await;
    let (first, second) = (server::start_echo().await, server::start_echo().await);
    let (_child, local) = port_forward(&kubectl, &[first, second]).await;
    echo(local[0], b"hello".to_vec()).await;
    let many = (0..40).map(|n| echo(local[n % 2], noise(1000 * n)));
    futures::future::join_all(many).await;
    futures::future::join_all((0..3).map(|n| echo(local[n % 2], noise(LONG)))).await;
    // More connections than the limit of open streams.
    for _ in 0..300 {
        echo(local[0], b"again".to_vec()).await;
    }
    kubectl.assert_protocol("websocket SPDY/3.1+portforward.k8s.io");
}

#[tokio::test(flavor = "multi_thread")]
async fn port_forward_in_a_websocket() {
    hutch_testkit::require!(kubectl);
    port_forward_works(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn port_forward_over_spdy() {
    hutch_testkit::require!(kubectl);
    port_forward_works(false).await;
}

/// Regression: a client that disconnected during a response ended kubectl, and with it the connections of all
/// clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_disconnect_ends_only_its_own_connection() {
    hutch_testkit::require!(kubectl);
    for websockets in [true, false] {
        let kubectl = Kubectl::new(websockets).await;
        let (_child, local) = port_forward(&kubectl, &[server::start_echo().await]).await;
        for _ in 0..10 {
            let mut early = TcpStream::connect(("127.0.0.1", local[0])).await.expect("kubectl listens");
            let (mut read, mut write) = early.split();
            let (bytes, mut some) = (noise(LONG), [0; 1000]);
            let endless = async { while write.write_all(&bytes).await.is_ok() {} };
            tokio::select! {
                () = endless => panic!("kubectl takes no more"),
                got = read.read_exact(&mut some) => assert_eq!(got.expect("an answer"), some.len()),
            }
            drop(early);
            echo(local[0], b"still there".to_vec()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_ends_with_its_pod() {
    hutch_testkit::require!(kubectl);
    for websockets in [true, false] {
        let kubectl = Kubectl::new(websockets).await;
        let (mut child, local) = port_forward(&kubectl, &[server::LAST_PORT]).await;
        let _stream = TcpStream::connect(("127.0.0.1", local[0])).await.expect("kubectl listens");
        let status =
            tokio::time::timeout(WAIT_LIMIT, child.wait()).await.expect("kubectl leaves").expect("wait");
        assert!(!status.success(), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_without_listener_is_an_error_text() {
    hutch_testkit::require!(kubectl);
    for websockets in [true, false] {
        let kubectl = Kubectl::new(websockets).await;
        // Port 1 needs privileges to listen, and has no listener.
        let (child, local) = port_forward(&kubectl, &[1]).await;
        let mut stream = TcpStream::connect(("127.0.0.1", local[0])).await.expect("kubectl listens");
        let _ = stream.write_all(b"x").await;
        let mut nothing = Vec::new();
        let _ = stream.read_to_end(&mut nothing).await;
        assert!(nothing.is_empty());
        let out = tokio::time::timeout(WAIT_LIMIT, child.wait_with_output()).await.expect("kubectl gives up");
        let error = text(&out.expect("kubectl runs").stderr);
        assert!(error.contains("error forwarding port 1 to pod default/p, uid u-1"), "{error}");
    }
}
