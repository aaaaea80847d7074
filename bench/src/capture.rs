//! Measures what the capture of connections adds to the network namespace of a Pod: addresses, routes, rules and listeners.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use hutch_jail::{NetworkPlan, Warden};

use crate::server::Server;
use crate::stats::{Samples, millis};

const ROUNDS: usize = 300;
/// Between two namespaces, so that the warden has always one in stock.
const PAUSE: Duration = Duration::from_millis(5);

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let server = Server::start()?;
    let state = server.folder().join("warden");
    std::fs::create_dir(&state)?;
    let warden = Warden::start(&server.folder().join("data/bin/warden"), &state)
        .map_err(|error| anyhow!("{error}"))?;
    let addresses = || vec![IpAddr::from([10, 88, 0, 1])];
    let plans = [NetworkPlan::closed(addresses()), hutch_egress::plan(addresses())];
    let mut samples = [Samples::default(), Samples::default()];
    for _ in 0..ROUNDS {
        for (plan, samples) in plans.iter().zip(&mut samples) {
            std::thread::sleep(PAUSE);
            let began = Instant::now();
            let network = warden.network(plan).map_err(|error| anyhow!("{error}"))?;
            samples.add(began.elapsed());
            drop(network);
        }
    }
    println!("\n### The network namespace of a Pod, interleaved\n");
    println!("| | p50 ms | p99 ms | n |\n|---|---|---|---|");
    for (name, samples) in ["closed", "captured"].iter().zip(&samples) {
        println!("| {name} | {} | {} | {} |", millis(samples.p50()), millis(samples.p99()), samples.len());
    }
    let [closed, captured] = samples.each_ref().map(Samples::p50);
    println!("\nThe capture adds {} ms. The aim is 0.2 at most.", millis(captured.saturating_sub(closed)));
    Ok(())
}
