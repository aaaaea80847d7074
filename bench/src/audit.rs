//! Cost of the audit log for a warm claim and for a request through the router: servers with the log off, on, and strict.
//!
//! Each mode has its own server. They take turns in each round, so that other load on the machine affects all of them. Two
//! servers have the log off: their ratio shows how exact the others are.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::api::PostParams;
use serde_json::json;

use crate::claims::{NAMESPACE, api, make_pool, one, wait_for_pool};
use crate::server::Server;
use crate::stats::{Samples, millis};

const MODES: [&str; 4] = ["off", "off", "on", "strict"];
const ROUNDS: usize = 40;
/// Claims and requests of one mode in a round.
const CLAIMS: usize = 8;
const REQUESTS: usize = 500;
const POOL: usize = 4;
/// Sandbox that receives the requests.
const NAME: &str = "receiver";
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Measured operations. A request other than GET can have an effect, so a strict log holds it back.
const OPERATIONS: [&str; 3] = ["warm claim", "GET through the router", "POST through the router"];

/// A server with one mode, and what was measured on it.
struct Mode {
    server: Server,
    client: kube::Client,
    connection: TcpStream,
    /// Of each operation in each round.
    rounds: [Vec<Samples>; 3],
}

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut modes = Vec::new();
    for mode in MODES {
        modes.push(runtime.block_on(Mode::start(mode)).with_context(|| format!("--audit {mode}"))?);
    }
    for round in 0..ROUNDS {
        for turn in 0..modes.len() {
            let index = (round + turn) % modes.len();
            runtime.block_on(modes[index].round(round))?;
        }
    }
    println!(
        "\n### Audit log: {ROUNDS} rounds in turns; ratio to the first `--audit off` of the same round, median\n"
    );
    println!("| | `--audit` | p50 ms | p99 ms | ratio of p50 | n |\n|---|---|---|---|---|---|");
    for (operation, name) in OPERATIONS.iter().enumerate() {
        for (mode, measured) in MODES.iter().zip(&modes) {
            let mut all = Samples::default();
            measured.rounds[operation].iter().for_each(|samples| all.extend(samples.clone()));
            let ratio = ratio(&measured.rounds[operation], &modes[0].rounds[operation]);
            let (p50, p99) = (millis(all.p50()), millis(all.p99()));
            println!("| {name} | {mode} | {p50} | {p99} | {ratio:.3} | {} |", all.len());
        }
    }
    Ok(())
}

/// Returns the median of the ratios of the rounds.
pub(crate) fn ratio(mode: &[Samples], off: &[Samples]) -> f64 {
    let one = |(mode, off): (&Samples, &Samples)| {
        mode.p50().as_secs_f64() / off.p50().max(Duration::from_nanos(1)).as_secs_f64()
    };
    let mut ratios: Vec<f64> = mode.iter().zip(off).map(one).collect();
    ratios.sort_by(f64::total_cmp);
    // The mean of the two in the middle, as there is an even number of rounds.
    let middle = ratios.len() / 2;
    (ratios[middle - 1] + ratios[middle]) / 2.0
}

impl Mode {
    async fn start(mode: &str) -> anyhow::Result<Mode> {
        let router = ["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"];
        let server = Server::start_with(&[&["--audit", mode], &router[..]].concat())?;
        let printed = server.printed("router").context("hutch up printed no address of its router")?;
        let address = printed.strip_prefix("http://").context("an address")?.to_owned();
        let client = server.client().await?;
        make_pool(&client, POOL).await?;
        let sandbox = serde_json::from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/python-runtime"}]}}},
        }))?;
        api(&client, "Sandbox").create(&PostParams::default(), &sandbox).await?;
        let mut connection = TcpStream::connect(&address)?;
        connection.set_nodelay(true)?;
        let started = Instant::now();
        while request(&mut connection, "GET").is_err() {
            if started.elapsed() > WAIT_LIMIT {
                bail!("no answer of the Sandbox after {WAIT_LIMIT:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Mode { server, client, connection, rounds: Default::default() })
    }

    async fn round(&mut self, round: usize) -> anyhow::Result<()> {
        let mut claims = Samples::default();
        for number in 0..CLAIMS {
            wait_for_pool(&self.client, POOL).await?;
            claims.add(one(&self.client, &format!("claim-{round}-{number}"), false).await?.0);
        }
        wait_for_pool(&self.client, POOL).await?;
        let mut requests = |method| -> anyhow::Result<Samples> {
            (0..REQUESTS).map(|_| request(&mut self.connection, method)).collect()
        };
        let measured = [claims, requests("GET")?, requests("POST")?];
        for (rounds, samples) in self.rounds.iter_mut().zip(measured) {
            rounds.push(samples);
        }
        if self.server.child_named("hutch-front").is_none() {
            bail!("the front has ended");
        }
        Ok(())
    }
}

/// Sends a request, and returns the time to its answer.
fn request(connection: &mut TcpStream, method: &str) -> anyhow::Result<Duration> {
    let request = format!(
        "{method} / HTTP/1.1\r\nhost: bench\r\ncontent-length: 0\r\nx-sandbox-id: {NAME}\r\nx-sandbox-namespace: {NAMESPACE}\r\n\r\n"
    );
    let started = Instant::now();
    connection.write_all(request.as_bytes())?;
    let mut answer = [0; 4096];
    let length = connection.read(&mut answer)?;
    let took = started.elapsed();
    // The runtime has no POST for this path.
    let expected: &[u8] = if method == "GET" { b"HTTP/1.1 200" } else { b"HTTP/1.1 405" };
    if !answer[..length].starts_with(expected) {
        bail!("{}", String::from_utf8_lossy(&answer[..length]));
    }
    Ok(took)
}
