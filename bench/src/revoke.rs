//! Measures how soon connections end whose rule is taken away, with many sandboxes of one proxy.
//!
//! Each sandbox keeps a connection open. The policy that allows them is replaced, and the server sees each connection
//! break.

use std::io::Read;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::claims::api;
use crate::server::Server;
use crate::stats::{Samples, millis};

const SANDBOXES: usize = 100;
/// How often the policy is taken away.
const ROUNDS: usize = 10;
/// Maximum time until every sandbox is connected, or every connection has ended.
const WAIT_LIMIT: Duration = Duration::from_secs(300);
/// Port that the policy allows instead.
const OTHER_PORT: u16 = 1;
/// Target: p99 of the time from the request.
const AIM: Duration = Duration::from_millis(100);

/// Keeps a connection open, and opens another one when it ends.
const PROGRAM: &str = "
import socket, sys, time
while True:
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as sock:
            sock.settimeout(None)
            sock.sendall(b'x')
            sock.recv(1)
    except OSError: pass
    time.sleep(.5)
";

/// Change of a connection at the server.
enum Event {
    Open,
    Ended(Instant),
}

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let address = own_address()?;
    let (port, events) = serve(address)?;
    let (mut samples, mut last) = (Samples::default(), Samples::default());
    runtime.block_on(async {
        let server = Server::start()?;
        let client = server.client().await?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "policy.hutch.dev",
            "v1alpha1",
            "ClusterSandboxPolicy",
        ));
        let policies: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        policies.create(&PostParams::default(), &serde_json::from_value(policy(address, port))?).await?;
        for number in 0..SANDBOXES {
            let sandbox = serde_json::from_value(sandbox(number, address, port))?;
            api(&client, "Sandbox").create(&PostParams::default(), &sandbox).await?;
        }
        for _ in 0..ROUNDS {
            wait_for_connections(&events)?;
            let other = Patch::Merge(policy(address, OTHER_PORT));
            let began = Instant::now();
            policies.patch("bench", &PatchParams::default(), &other).await?;
            let ended = wait_for_ends(&events, began)?;
            last.add(ended.percentile(1.0));
            samples.extend(ended);
            let allowed = Patch::Merge(policy(address, port));
            policies.patch("bench", &PatchParams::default(), &allowed).await?;
        }
        anyhow::Ok(())
    })?;
    println!("\n### A rule is taken away: {SANDBOXES} sandboxes with a connection each, {ROUNDS} rounds\n");
    println!("| from the request to the end of | p50 ms | p99 ms | n |\n|---|---|---|---|");
    for (name, samples) in [("a connection", &samples), ("all connections", &last)] {
        println!("| {name} | {} | {} | {} |", millis(samples.p50()), millis(samples.p99()), samples.len());
    }
    println!("\nThe aim is {} ms at most at p99.", AIM.as_millis());
    Ok(())
}

/// Returns an address of this machine that is not loopback: inside, loopback is the sandbox's own.
fn own_address() -> anyhow::Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // Nothing is sent.
    socket.connect("192.0.2.1:9").context("the machine has only loopback")?;
    Ok(socket.local_addr()?.ip())
}

/// Starts the server. It reports each connection.
fn serve(address: IpAddr) -> anyhow::Result<(u16, Receiver<Event>)> {
    let listener = TcpListener::bind((address, 0))?;
    let port = listener.local_addr()?.port();
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let sender: Sender<Event> = sender.clone();
            std::thread::spawn(move || {
                let mut byte = [0];
                if stream.read_exact(&mut byte).is_ok() {
                    let _ = sender.send(Event::Open);
                    let _ = stream.read(&mut byte);
                    let _ = sender.send(Event::Ended(Instant::now()));
                }
            });
        }
    });
    Ok((port, events))
}

/// Waits until every sandbox has a connection.
fn wait_for_connections(events: &Receiver<Event>) -> anyhow::Result<()> {
    let mut open = 0_usize;
    while open < SANDBOXES {
        match events.recv_timeout(WAIT_LIMIT).context("not all sandboxes are connected")? {
            Event::Open => open += 1,
            Event::Ended(_) => open = open.saturating_sub(1),
        }
    }
    Ok(())
}

/// Waits until every connection has ended, and returns the times since the request.
fn wait_for_ends(events: &Receiver<Event>, began: Instant) -> anyhow::Result<Samples> {
    let mut ended = Samples::default();
    while ended.len() < SANDBOXES {
        match events.recv_timeout(WAIT_LIMIT).context("not all connections have ended")? {
            Event::Ended(time) => ended.add(time - began),
            Event::Open => bail!("a connection was opened before all had ended"),
        }
    }
    Ok(ended)
}

fn policy(address: IpAddr, port: u16) -> Value {
    let rule = json!({
        "name": "bench", "cidrs": [address], "ports": [port], "protocol": "TCP", "private": [address],
    });
    json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {"name": "bench"},
        "spec": {"appliesTo": {}, "egress": {"rules": [rule]}},
    })
}

fn sandbox(number: usize, address: IpAddr, port: u16) -> Value {
    let command = json!(["python3", "-c", PROGRAM, address, port.to_string()]);
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": format!("revoke-{number}")},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": "hutch/host", "command": command},
        ]}}},
    })
}
