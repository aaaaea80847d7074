//! What developers and CI run: `cargo xtask test`, and its parts by name.
//!
//! It installs nothing (`scripts/install-test-tools` does); what is missing is counted as skipped and named.

mod arrows;
mod sim;
mod tally;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The tasks of this repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Formatting, lints, arrows, house rules, licences, then every test; ends with the count.
    Test,
    /// Only the check that dependencies between crates go one way.
    Arrows,
    /// Only the house rules on files.
    Tidy,
    /// Known attacks on a sandbox of this machine, and every attack by every way into one; part of `test` too.
    Escape,
    /// Runs the lives of the differential suite under the Go controller and writes down how they go.
    RecordLives {
        /// The Go controller; without it `upstream-controller` in the folder that HUTCH_PEERS names.
        controller: Option<PathBuf>,
        /// Only lives whose name holds this text, or that are in a file of that name; several with commas between.
        #[arg(long)]
        only: Option<String>,
    },
    /// Simulations of the controllers, each made from a seed.
    Sim(sim::Sim),
    /// The benchmarks, side by side with what is installed: prints the table of docs/benchmarks.md.
    Bench {
        /// Which benchmarks; all when none is named.
        names: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Test => test::all(),
        Task::Arrows => arrows::check(&root()),
        Task::Tidy => tidy::check(&root()),
        Task::Escape => test::escape(),
        Task::RecordLives { controller, only } => test::record_lives(controller, only),
        Task::Sim(wanted) => sim::run(&wanted),
        Task::Bench { names } => test::bench(&names),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies one folder down").to_owned()
}
