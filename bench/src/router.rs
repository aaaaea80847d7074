//! The router beside the Go router: the same load, the same sandbox, one after the other in one run.

mod api;
mod load;
mod program;
mod sandbox;
mod sockets;

use std::time::Duration;

use anyhow::Context;

use crate::machine;
use crate::stats::millis;
use load::{Outcome, Shape};
use program::Routed;

/// How long each measurement takes. `HUTCH_BENCH_SECONDS` sets another.
const SECONDS: u64 = 5;
/// Before it, so that connections exist and memory has grown.
const WARM_UP: Duration = Duration::from_millis(500);
const CONNECTIONS: [usize; 3] = [1, 10, 50];
const BODY: usize = 1 << 20;

/// Prints the tables.
pub(crate) fn run() -> anyhow::Result<()> {
    let seconds = std::env::var("HUTCH_BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS));
    // The load and the sandbox take little beside the routers, and the same for each of them.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let sandbox = sandbox::start().await.context("the sandbox")?;
        let api = api::start().await.context("the API")?;
        println!("\n### Router: {} s each, load, router and sandbox on the same CPUs\n", time.as_secs());
        let peer = program::peer();
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
            let mut baseline = None;
            if let Some(peer) = &peer {
                let routed = Routed::peer(peer, sandbox)?;
                let outcome = measure(&routed, &shape, time).await?;
                print(&shape, "Go router", &outcome, None);
                baseline = Some(outcome);
            }
            let routed = Routed::hutch(&api, sandbox, false)?;
            let outcome = measure(&routed, &shape, time).await?;
            print(&shape, "hutch", &outcome, baseline.as_ref());
            if matches!(shape, Shape::Small { .. }) {
                let routed = Routed::hutch(&api, sandbox, true)?;
                let outcome = measure(&routed, &shape, time).await?;
                print(&shape, "hutch, scoped tokens", &outcome, baseline.as_ref());
            }
        }
        Ok(())
    })
}

/// Prints the table of WebSockets that say nothing.
pub(crate) fn sockets() -> anyhow::Result<()> {
    machine::raise_descriptors()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let sandbox = sandbox::start().await.context("the sandbox")?;
        let api = api::start().await.context("the API")?;
        println!("\n### {} idle WebSockets through the router: resident MiB\n", sockets::SOCKETS);
        println!("| | before | open | after an echo on each | KiB each |\n|---|---|---|---|---|");
        if let Some(peer) = program::peer() {
            sockets::measure("Go router", &Routed::peer(&peer, sandbox)?).await?;
        }
        sockets::measure("hutch", &Routed::hutch(&api, sandbox, false)?).await
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

async fn measure(routed: &Routed, shape: &Shape, time: Duration) -> anyhow::Result<Outcome> {
    load::drive(routed.port, &routed.headers, shape, WARM_UP).await?;
    let before = routed.cpu()?;
    let times = load::drive(routed.port, &routed.headers, shape, time).await?;
    let cpu = routed.cpu()?.saturating_sub(before);
    Ok(Outcome { times, time, cpu, resident_kib: routed.resident_kib() })
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
