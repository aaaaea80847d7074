//! Tasks of developers and CI: `cargo xtask test`, and each of its parts.
//!
//! It installs nothing (`scripts/install-test-tools` does); a test whose tool is missing is counted as skipped.

mod arrows;
mod language;
mod licenses;
mod links;
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
    /// Checks formatting, lints, arrows, house rules, language and licenses, then runs every test; ends with the count.
    Test,
    /// Compiles what `test` compiles, and no more. CI does so while it installs tools.
    Compile,
    /// Checks that crates depend only on lower layers, that modules do not depend on each other in a circle, and the licenses
    /// of dependencies.
    Arrows,
    /// Checks lengths and names of files, links, and the language of documentation, comments and messages.
    Tidy(language::Options),
    /// Tries known attacks on a sandbox of this machine, and every attack by every way into one; part of `test` too.
    Escape,
    /// Records the lives of the differential suite under the Go controller.
    RecordLives {
        /// Program of the Go controller [default: `upstream-controller` in the folder HUTCH_PEERS]
        controller: Option<PathBuf>,
        /// Records only lives whose name contains this text, or in a file of that name; separated by commas.
        #[arg(long)]
        only: Option<String>,
    },
    /// Simulates the controllers from random seeds.
    Sim(sim::Sim),
    /// Runs benchmarks and prints the tables of docs/benchmarks.md.
    Bench {
        /// Names of benchmarks [default: all]
        names: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Test => test::all(),
        Task::Compile => test::compile(),
        Task::Arrows => arrows::check(&root()).and_then(|()| licenses::check(&root())),
        Task::Tidy(options) => tidy::check(&root())
            .and_then(|()| links::check(&root()))
            .and_then(|()| language::check(&root(), &options)),
        Task::Escape => test::escape(),
        Task::RecordLives { controller, only } => test::record_lives(controller, only),
        Task::Sim(options) => sim::run(&options),
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

/// Returns the folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies one folder down").to_owned()
}
