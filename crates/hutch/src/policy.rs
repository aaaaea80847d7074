//! `hutch policy`: works on policies in files.

pub(crate) mod import;

use std::process::ExitCode;

use crate::cli::{PolicyArguments, PolicyCommand};

/// Runs the command. Exit status 1 if it is refused.
pub(crate) fn main(arguments: &PolicyArguments) -> ExitCode {
    let result = match &arguments.command {
        PolicyCommand::Import(arguments) => import::main(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch: {error:#}");
            ExitCode::FAILURE
        }
    }
}
