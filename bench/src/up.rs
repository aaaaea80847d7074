//! Measures `hutch up` from an empty folder to `ready`, and the size of the binary.

use crate::machine::binary;
use crate::server::Server;
use crate::stats::{Samples, millis};

const ROUNDS: usize = 10;

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut samples = Samples::default();
    let mut resident = 0;
    for _ in 0..ROUNDS {
        let server = Server::start()?;
        samples.add(server.ready_after);
        resident = server.resident_kib();
    }
    let size = std::fs::metadata(binary()?)?.len() as f64 / f64::from(1 << 20);
    println!("\n### `hutch up` with an empty data folder\n\n| | |\n|---|---|");
    println!(
        "| to `ready`, p50 / worst of {ROUNDS} | {} / {} ms |",
        millis(samples.p50()),
        millis(samples.percentile(1.0))
    );
    println!("| resident when ready | {} MiB |", resident / 1024);
    println!("| binary | {size:.1} MiB |");
    Ok(())
}
