//! Prints the figures of the scanner without the other benchmarks: `cargo run --release -p hutch-scan --example figures`.

#[path = "../../../bench/src/scan.rs"]
mod scan;

fn main() -> anyhow::Result<()> {
    scan::run()
}
