//! Benchmarks that anyone can run: `cargo xtask bench [NAME...]`. Each prints a table of docs/benchmarks.md.
//!
//! Installed peers are measured in the same run; without them only Hutch is measured.

mod audit;
mod capture;
mod claims;
mod contender;
mod egress;
mod idle;
mod images;
mod least;
mod machine;
mod noise;
mod paged;
mod rate;
mod rbac;
mod revoke;
mod router;
mod sandboxd;
mod scan;
mod sdk;
mod server;
mod starts;
mod state;
mod stats;
mod stress;
mod up;
mod wake;
mod writes;

use std::process::ExitCode;

type Benchmark = (&'static str, fn() -> anyhow::Result<()>);

const BENCHMARKS: [Benchmark; 26] = [
    ("starts", starts::run),
    ("up", up::run),
    ("claims", claims::run),
    ("rate", rate::run),
    ("idle", idle::run),
    ("writes", writes::run),
    ("stress", stress::run),
    ("router", router::run),
    ("sockets", router::sockets),
    ("sandboxd", sandboxd::run),
    ("sdk", sdk::run),
    ("wake", wake::run),
    ("paged", paged::run),
    ("state", state::run),
    ("suspended", state::suspended),
    ("imported", state::imported),
    ("noise", noise::run),
    ("rbac", rbac::run),
    ("egress", egress::run),
    ("scanned", egress::scanned::run),
    ("capture", capture::run),
    ("connections", egress::connections::run),
    ("revoke", revoke::run),
    ("scan", scan::run),
    ("audit", audit::run),
    ("images", images::run),
];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.first().is_some_and(|first| first == least::ARGUMENT) {
        return ended(least::ARGUMENT, least::run(&wanted));
    }
    if wanted.first().is_some_and(|first| first == egress::ARGUMENT) {
        return ended(egress::ARGUMENT, egress::client(&wanted));
    }
    let known = || BENCHMARKS.map(|(name, _)| name).join(", ");
    if let Some(unknown) = wanted.iter().find(|w| !BENCHMARKS.iter().any(|(name, _)| name == w)) {
        eprintln!("no benchmark `{unknown}`; there are {}", known());
        return ExitCode::from(2);
    }
    println!("{}", machine::describe());
    for (name, benchmark) in BENCHMARKS {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        if ended(name, benchmark()) == ExitCode::FAILURE {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn ended(name: &str, outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
