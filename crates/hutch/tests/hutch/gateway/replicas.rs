//! Two gateways behind one address, as behind a Service: each decides by itself, and one is enough.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{GATEWAY, Running, SECOND, UNPROBED, policy};

/// Address of the Service. It is loopback, and no other test uses it.
const SERVICE: &str = "127.78.1.1:0";

/// Distributes connections as kube-proxy does: to the next one that serves, from the address of the client.
pub(super) async fn balance(gateways: Vec<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind(SERVICE).await.expect("bind");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        for turn in 0.. {
            let Ok((mut client, from)) = listener.accept().await else { return };
            let mut turns = gateways.clone();
            turns.rotate_left(turn % gateways.len());
            tokio::spawn(async move {
                for gateway in turns {
                    if let Ok(mut server) = connect(from.ip(), gateway).await {
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                        return;
                    }
                }
            });
        }
    });
    address
}

async fn connect(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(to).await
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_a_gateway_decide_and_record_each_for_itself() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, openssl);
    let mut running = Running::start_with(|_| (), &[GATEWAY, SECOND]).await;
    running.sandbox("one");
    running.apply(&policy(running.server));
    let own = "--interface $POD_IP";
    // Connections of one client go to one gateway after the other.
    let all = async |running: &Running, status: &str| {
        let holds = async || (0..4).all(|_| running.request("one", "web.example", own) == status);
        running.cluster.until(&format!("all: {status}"), holds).await.unwrap();
    };
    all(&running, "200 000").await;
    for gateway in [GATEWAY, SECOND] {
        running.until_recorded(gateway, &["list"], &["default/one", "allowed", "web.example"]).await;
        assert_eq!(running.request("one", "other.example", own), "403 000");
        assert_eq!(running.request("one", "web.example", "--interface 127.0.0.1"), "407 000");
    }
    running.kubectl(&["delete", "clustersandboxpolicy", "web"]);
    all(&running, "403 000").await;
    running.apply(&policy(running.server));
    all(&running, "200 000").await;

    running.cluster.kill(GATEWAY).expect("killed");
    all(&running, "200 000").await;
    let patch = json!({"spec": {"egress": {"rules": []}}}).to_string();
    running.kubectl(&["patch", "clustersandboxpolicy", "web", "--type=merge", "-p", &patch]);
    all(&running, "403 000").await;
    for gateway in [GATEWAY, SECOND] {
        let verified = running.audit(gateway, &["verify"]);
        assert!(verified.status.success(), "{gateway}: {}", super::text(&verified.stdout));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_that_know_different_things_about_the_plugin_write_one_condition() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, openssl);
    // Pods that are processes have no network plugin. One gateway finds that out, and the other one does not try.
    let mut running = Running::start_with(|_| (), &[GATEWAY, UNPROBED]).await;
    running.sandbox("one");
    let path = "jsonpath={.status.conditions[?(@.type==\"policy.hutch.dev/PolicyEnforced\")].message}";
    let message = |running: &Running| running.kubectl(&["get", "pod", "one", "-o", path]);
    let (ignored, unknown) = ("does not enforce NetworkPolicy", "it is not known whether");
    let holds = async || message(&running).contains(ignored);
    running.cluster.until("the plugin is probed", holds).await.unwrap();

    // Changes on which both gateways decide again.
    let seen = running.cluster.folder().join("conditions");
    let file = std::fs::File::create(&seen).expect("created");
    let mut watch = Command::new("kubectl");
    watch.args(["get", "pod", "one", "--watch", "-o", &format!("{path}{{\"\\n\"}}"), "--kubeconfig"]);
    watch.arg(running.cluster.kubeconfig()).stdin(Stdio::null()).stdout(file);
    let mut watch = watch.spawn().expect("kubectl starts");
    let own = "--interface $POD_IP";
    for _ in 0..3 {
        running.apply(&policy(running.server));
        // Connections of one client go to one gateway after the other.
        let all = async |status: &str| {
            let holds = async || (0..2).all(|_| running.request("one", "web.example", own) == status);
            running.cluster.until(&format!("all: {status}"), holds).await.unwrap();
        };
        all("200 000").await;
        running.kubectl(&["delete", "clustersandboxpolicy", "web"]);
        all("403 000").await;
    }
    watch.kill().expect("killed");
    watch.wait().expect("it ends");
    let seen = std::fs::read_to_string(seen).expect("read");
    assert!(seen.contains(ignored) && !seen.contains(unknown), "{seen}");

    running.cluster.stop(GATEWAY).expect("stopped");
    let holds = async || message(&running).contains(unknown);
    running.cluster.until("the gateway that is left knows nothing", holds).await.unwrap();
}
