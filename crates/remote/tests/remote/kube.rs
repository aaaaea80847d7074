//! The client library `kube` against this crate: WebSocket channels of version 4 and 5, and port-forward by channels.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess, TerminalSize};
use kube::{Api, Client, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server;

async fn pods() -> (Api<Pod>, server::Upgrades) {
    let (address, upgrades) = server::start_server().await;
    let config = Config::new(format!("http://{address}").parse().expect("a URL"));
    let client = Client::try_from(config).expect("a client");
    (Api::namespaced(client, "default"), upgrades)
}

async fn outcome(process: &mut AttachedProcess) -> (String, String) {
    let status = process.take_status().expect("a status").await.expect("an outcome");
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.into_iter().find_map(|cause| cause.message).unwrap_or_default();
    (status.status.unwrap_or_default(), code)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_input_and_both_outputs() {
    let (pods, upgrades) = pods().await;
    let parameters = AttachParams::default().stdin(true).stderr(true);
    let mut process = pods.exec("p", ["sh", "-c", "cat; echo no >&2; exit 5"], &parameters).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    stdin.write_all(b"in and out").await.unwrap();
    stdin.shutdown().await.unwrap();
    drop(stdin);
    let (mut stdout, mut stderr) = (process.stdout().unwrap(), process.stderr().unwrap());
    let (mut out, mut err) = (String::new(), String::new());
    let (a, b) = tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err));
    a.unwrap();
    b.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("in and out", "no\n"));
    assert_eq!(outcome(&mut process).await, ("Failure".into(), "5".into()));
    assert!(upgrades.lock().unwrap()[0].contains("channel.k8s.io"));
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_sizes_reach_the_process() {
    let (pods, _) = pods().await;
    let parameters = AttachParams::interactive_tty();
    let mut process = pods.exec("p", ["program"], &parameters).await.unwrap();
    let mut sizes = process.terminal_size().unwrap();
    sizes.try_send(TerminalSize { width: 132, height: 43 }).unwrap();
    let mut out = String::new();
    process.stdout().unwrap().read_to_string(&mut out).await.unwrap();
    assert_eq!(out, "132x43\r\n");
    assert_eq!(outcome(&mut process).await, ("Failure".into(), "7".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_container_is_404_before_the_switch() {
    let (pods, _) = pods().await;
    let parameters = AttachParams::default().container("missing");
    let error = pods.exec("p", ["true"], &parameters).await.err().expect("it fails");
    assert!(error.to_string().contains("404"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_by_channels() {
    let (pods, upgrades) = pods().await;
    let port = server::start_echo().await;
    let mut forwarder = pods.portforward("p", &[port, 1]).await.unwrap();
    let mut stream = forwarder.take_stream(port).unwrap();
    let sent: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    let mut back = vec![0; sent.len()];
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let (a, b) = tokio::join!(write.write_all(&sent), read.read_exact(&mut back));
    a.unwrap();
    b.unwrap();
    assert!(back == sent);
    let error = forwarder.take_error(1).unwrap().await.expect("an error text");
    assert!(error.contains("error forwarding port 1 to pod default/p"), "{error}");
    assert!(upgrades.lock().unwrap()[0].contains("v4.channel.k8s.io"));
}
