//! `hutch policy` and `hutch allow`: policies of a server and of files, by the decisions of the node and the proxy.

pub(crate) mod allow;
mod attached;
mod explain;
pub(crate) mod import;
mod judge;
mod peer;
mod test;

use std::process::ExitCode;

use crate::cli::{PolicyArguments, PolicyCommand};

/// Runs the command.
pub(crate) fn main(arguments: &PolicyArguments) -> ExitCode {
    match &arguments.command {
        PolicyCommand::Explain(arguments) => explain::main(arguments),
        PolicyCommand::Test(arguments) => test::main(arguments),
        PolicyCommand::Import(arguments) => match import::main(arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("hutch: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}
