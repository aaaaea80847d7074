//! Measures a command in a quiet sandbox while another sandbox, or a client, uses all resources that it can.
//!
//! Quiet and noisy rounds alternate, so that both run under the same conditions; compare only the ratio.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{AttachParams, DeleteParams, Patch, PatchParams, PostParams, WatchParams};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::server::Server;
use crate::stats::{Samples, millis};

const NAMESPACE: &str = "default";
/// Rounds of each kind for each attacker.
const ROUNDS: usize = 5;
/// Commands in a round.
const COMMANDS: usize = 40;
/// Time from the start of an attack until it has its full effect.
const SETTLE: Duration = Duration::from_secs(2);
/// Longest wait for a Pod.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Target: maximum ratio of the p99 with noise to the p99 without.
const AIM: f64 = 5.0;

/// Number of open connections without a credential.
const CONNECTIONS: usize = 600;
/// Number of watches of one object that changes continuously.
const WATCHES: usize = 200;

/// Source of the noise.
enum Attacker {
    /// Pod that runs this script.
    Inside(&'static str),
    Connections,
    Watches,
}

const FORKS: &str = "
import os, signal, time
while True:
    try:
        if os.fork() == 0:
            while True: signal.pause()
    except OSError: time.sleep(0.01)
";
const MEMORY: &str = "
held = []
while True: held.append(b'x' * (1 << 20))
";
const DISK: &str = "
import os
file = open('/tmp/noise', 'wb', buffering=0)
while True:
    for count in range(256):
        file.write(b'x' * (1 << 20))
    os.fsync(file.fileno())
    file.seek(0)
";
const LOGS: &str = "
while True: print('x' * 1000)
";

const ATTACKERS: [(&str, Attacker); 6] = [
    ("forks", Attacker::Inside(FORKS)),
    ("memory", Attacker::Inside(MEMORY)),
    ("disk writes", Attacker::Inside(DISK)),
    ("logs", Attacker::Inside(LOGS)),
    ("connections", Attacker::Connections),
    ("watches", Attacker::Watches),
];

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::start()?;
        let client = server.client().await?;
        make_pod(&client, "quiet", json!(["sleep", "1000000"])).await?;
        println!("\n### Exec in a quiet sandbox beside a noisy one, rounds in turns\n");
        println!("| noise | quiet p50 ms | p99 ms | noisy p50 ms | p99 ms | n | noisy p99 of quiet |");
        println!("|---|---|---|---|---|---|---|");
        for (name, attacker) in &ATTACKERS {
            let (mut quiet, mut noisy) = (Samples::default(), Samples::default());
            for _ in 0..ROUNDS {
                quiet.extend(commands(&client).await?);
                let noise = Noise::start(&server, &client, attacker).await.context(*name)?;
                tokio::time::sleep(SETTLE).await;
                noisy.extend(commands(&client).await?);
                noise.end(&client).await?;
                // What the noise leaves to be taken down is not the quiet sandbox's measure.
                tokio::time::sleep(SETTLE).await;
            }
            let ratio = noisy.p99().as_secs_f64() / quiet.p99().as_secs_f64();
            println!(
                "| {name} | {} | {} | {} | {} | {} | {ratio:.1} |",
                millis(quiet.p50()),
                millis(quiet.p99()),
                millis(noisy.p50()),
                millis(noisy.p99()),
                noisy.len(),
            );
        }
        println!("\nThe aim is {AIM} at most.");
        Ok(())
    })
}

async fn commands(client: &kube::Client) -> anyhow::Result<Samples> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let params = AttachParams::default().stdin(false).stderr(false);
    let mut samples = Samples::default();
    for _ in 0..COMMANDS {
        let started = Instant::now();
        let mut process = pods.exec("quiet", ["echo", "through"], &params).await?;
        let mut printed = String::new();
        process.stdout().context("its output")?.read_to_string(&mut printed).await?;
        samples.add(started.elapsed());
        anyhow::ensure!(printed == "through\n", "the command printed {printed:?}");
    }
    Ok(samples)
}

/// An attack in progress.
struct Noise {
    pod: bool,
    connections: Vec<TcpStream>,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Noise {
    async fn start(server: &Server, client: &kube::Client, attacker: &Attacker) -> anyhow::Result<Noise> {
        let mut noise = Noise { pod: false, connections: Vec::new(), tasks: JoinSet::new() };
        match attacker {
            Attacker::Inside(script) => {
                make_pod(client, "noisy", json!(["python3", "-c", script])).await?;
                noise.pod = true;
            }
            Attacker::Connections => {
                let address = server.printed("API").context("the address of the API")?;
                let address = address.trim_start_matches("https://");
                for _ in 0..CONNECTIONS {
                    noise.connections.push(TcpStream::connect(address)?);
                }
            }
            Attacker::Watches => {
                let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
                for _ in 0..WATCHES {
                    let maps = maps.clone();
                    noise.tasks.spawn(async move {
                        let mut events = maps.watch(&WatchParams::default(), "0").await?.boxed();
                        while events.try_next().await?.is_some() {}
                        Ok(())
                    });
                }
                noise.tasks.spawn(async move {
                    for count in 0u64.. {
                        let change = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"count": count.to_string()}});
                        maps.patch("noise", &PatchParams::apply("bench").force(), &Patch::Apply(change)).await?;
                    }
                    Ok(())
                });
            }
        }
        Ok(noise)
    }

    async fn end(mut self, client: &kube::Client) -> anyhow::Result<()> {
        self.tasks.shutdown().await;
        self.connections.clear();
        if self.pod {
            let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
            pods.delete("noisy", &DeleteParams::default()).await?;
            wait(&pods, "noisy", |pod| pod.is_none()).await?;
        }
        Ok(())
    }
}

/// Creates a Pod and waits until it has started.
async fn make_pod(client: &kube::Client, name: &str, command: Value) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "hutch/host", "command": command,
            "resources": {"limits": {"cpu": "1", "memory": "512Mi"}}}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let started = |pod: Option<&Pod>| {
        let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.is_some_and(|all| all.iter().any(|one| one.container_id.is_some()))
    };
    wait(&pods, name, started).await
}

async fn wait(pods: &Api<Pod>, name: &str, holds: impl Fn(Option<&Pod>) -> bool) -> anyhow::Result<()> {
    let started = Instant::now();
    while !holds(pods.get_opt(name).await?.as_ref()) {
        if started.elapsed() > WAIT_LIMIT {
            bail!("pod {name} is not as it should be after {WAIT_LIMIT:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
