//! Measures the router and the Go router with the same load and the same sandbox, in alternating rounds.

mod api;
mod load;
mod program;
mod sandbox;
mod sockets;
mod tool;

use std::time::Duration;

use anyhow::Context;

use crate::machine;
use crate::stats::{Samples, millis};
use load::{Outcome, Shape};
use program::Routed;

/// Default duration of each load on each router; `HUTCH_BENCH_SECONDS` overrides it.
const SECONDS: u64 = 10;
/// Number of rounds, so that a slow minute of the machine affects both routers.
const TURNS: u32 = 5;
/// Warm-up before each round, so that connections exist and memory has grown.
const WARM_UP: Duration = Duration::from_millis(300);
const CONNECTIONS: [usize; 3] = [1, 10, 50];
const BODY: usize = 1 << 20;
const GO: &str = "Go router";

/// Measures and prints the tables.
pub(crate) fn run() -> anyhow::Result<()> {
    let seconds = std::env::var("HUTCH_BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS));
    // The load and the sandbox take little beside the routers, and the same for each of them.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let sandbox = sandbox::start().await.context("the sandbox")?;
        let api = api::start().await.context("the API")?;
        println!("\n### Router: {} s each in alternating rounds, load, router and sandbox on the same CPUs\n", time.as_secs());
        let (peer, hutch) = (program::peer(), machine::binary()?);
        if peer.is_none() {
            println!("HUTCH_PEERS names no folder with `upstream-router`: measured alone.\n");
        }
        println!("| | program | requests/s | p50 ms | p99 ms | CPU us each | resident MiB |\n|---|---|---|---|---|---|---|");
        direct(sandbox, time).await?;
        let shapes = CONNECTIONS.map(|connections| Shape::Small { connections }).into_iter().chain([
            Shape::Body { connections: 10, bytes: BODY },
            Shape::WebSocket { connections: 10 },
        ]);
        for shape in shapes {
            let mut routers = Vec::new();
            if let Some(peer) = &peer {
                routers.push((GO, Routed::peer(peer, sandbox)?));
            }
            if let Some(before) = machine::before() {
                routers.push(("hutch before", Routed::hutch(&before, &api, sandbox, false)?));
            }
            routers.push(("hutch", Routed::hutch(&hutch, &api, sandbox, false)?));
            if matches!(shape, Shape::Small { .. }) {
                routers.push(("hutch, scoped tokens", Routed::hutch(&hutch, &api, sandbox, true)?));
            }
            let mut outcomes: Vec<Outcome> = routers.iter().map(|_| Outcome::default()).collect();
            for _ in 0..TURNS {
                for ((_, routed), outcome) in routers.iter().zip(&mut outcomes) {
                    measure(routed, &shape, time / TURNS, outcome).await?;
                }
            }
            let baseline = peer.is_some().then(|| &outcomes[0]);
            for ((name, _), outcome) in routers.iter().zip(&outcomes) {
                print(&shape, name, outcome, baseline.filter(|_| *name != GO));
            }
        }
        with_their_tool(&api, sandbox, time).await
    })
}

/// Prints the results of agent-sandbox's load tool: the middle round of each program.
async fn with_their_tool(api: &api::Api, sandbox: u16, time: Duration) -> anyhow::Result<()> {
    let (Some(peer), Some(tool)) = (program::peer(), tool::find()) else { return Ok(()) };
    println!(
        "\nThe same with `upstream-router-load`, the load generator of the Go project; the middle of {TURNS} rounds:\n"
    );
    println!("| | program | requests/s | p50 ms | p99 ms |\n|---|---|---|---|---|");
    for connections in CONNECTIONS {
        let routers = [
            (GO, Routed::peer(&peer, sandbox)?),
            ("hutch", Routed::hutch(&machine::binary()?, api, sandbox, false)?),
        ];
        let mut found = routers.each_ref().map(|_| Vec::new());
        for _ in 0..TURNS {
            for ((_, routed), found) in routers.iter().zip(&mut found) {
                found.push(tool::drive(&tool, routed, sandbox, connections, time / TURNS).await?);
            }
        }
        for ((name, _), own) in routers.iter().zip(&found) {
            let cell = |value: fn(&tool::Found) -> Duration| {
                let middle = |of: &[tool::Found]| of.iter().map(value).collect::<Samples>().p50();
                let (own, go) = (middle(own), middle(&found[0]));
                format!("{} ({:.2})", millis(own), own.as_secs_f64() / go.as_secs_f64())
            };
            let (p50, p99) = (cell(|it| it.p50), cell(|it| it.p99));
            let mut rates: Vec<f64> = own.iter().map(|it| it.rate).collect();
            rates.sort_by(f64::total_cmp);
            let rate = rates[rates.len() / 2];
            println!("| {} | {name} | {rate:.0} | {p50} | {p99} |", Shape::Small { connections });
        }
    }
    Ok(())
}

/// Prints the table of idle WebSockets.
pub(crate) fn sockets() -> anyhow::Result<()> {
    machine::raise_descriptors()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let sandbox = sandbox::start().await.context("the sandbox")?;
        let api = api::start().await.context("the API")?;
        println!("\n### {} idle WebSockets through the router: resident MiB\n", sockets::SOCKETS);
        println!("| | before | open | after an echo on each | KiB each |\n|---|---|---|---|---|");
        if let Some(peer) = program::peer() {
            sockets::measure(GO, &Routed::peer(&peer, sandbox)?).await?;
        }
        sockets::measure("hutch", &Routed::hutch(&machine::binary()?, &api, sandbox, false)?).await
    })
}

async fn direct(sandbox: u16, time: Duration) -> anyhow::Result<()> {
    for connections in CONNECTIONS {
        let shape = Shape::Small { connections };
        let times = load::drive(sandbox, "", &shape, time).await?;
        println!(
            "| {shape} | none | {:.0} | {} | {} | | |",
            times.len() as f64 / time.as_secs_f64(),
            millis(times.p50()),
            millis(times.p99())
        );
    }
    Ok(())
}

/// Runs one round.
async fn measure(
    routed: &Routed,
    shape: &Shape,
    time: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    load::drive(routed.port, &routed.headers, shape, WARM_UP).await?;
    let before = routed.cpu()?;
    outcome.times.extend(load::drive(routed.port, &routed.headers, shape, time).await?);
    outcome.cpu += routed.cpu()?.saturating_sub(before);
    outcome.time += time;
    outcome.resident_kib = outcome.resident_kib.max(routed.resident_kib());
    Ok(())
}

fn print(shape: &Shape, program: &str, outcome: &Outcome, baseline: Option<&Outcome>) {
    let against = |own: f64, other: fn(&Outcome) -> f64| match baseline {
        Some(baseline) if other(baseline) > 0.0 => format!(" ({:.2})", own / other(baseline)),
        _ => String::new(),
    };
    let seconds = |time: Duration| time.as_secs_f64();
    println!(
        "| {shape} | {program} | {:.0} | {}{} | {}{} | {:.1}{} | {:.1} |",
        outcome.times.len() as f64 / seconds(outcome.time),
        millis(outcome.times.p50()),
        against(seconds(outcome.times.p50()), |o| o.times.p50().as_secs_f64()),
        millis(outcome.times.p99()),
        against(seconds(outcome.times.p99()), |o| o.times.p99().as_secs_f64()),
        outcome.cpu_micros(),
        against(outcome.cpu_micros(), Outcome::cpu_micros),
        outcome.resident_kib as f64 / 1024.0,
    );
}
