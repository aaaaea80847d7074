//! `hutch suspend`, `hutch resume`.

use std::process::ExitCode;

use hutch_api::OperatingMode;
use hutch_client::Wait;
use kube::ResourceExt;

use super::progress::Progress;
use super::{connect, finish, with_hint};
use crate::cli::ModeArguments;

/// Suspends a Sandbox and prints its state.
pub(crate) fn suspend(arguments: &ModeArguments) -> ExitCode {
    finish("suspend", 1, change(arguments, OperatingMode::Suspended))
}

/// Resumes a Sandbox and prints its state.
pub(crate) fn resume(arguments: &ModeArguments) -> ExitCode {
    finish("resume", 1, change(arguments, OperatingMode::Running))
}

async fn change(arguments: &ModeArguments, desired: OperatingMode) -> anyhow::Result<u8> {
    let sandboxes = connect(&arguments.place).await?;
    let mut progress = Progress::new();
    let mut wait = Wait::new(arguments.wait, &mut progress);
    let name = &arguments.sandbox.name;
    let (sandbox, requested, reached) = match desired {
        OperatingMode::Suspended => {
            (sandboxes.suspend(name, &mut wait).await, "is suspending", "is suspended")
        }
        OperatingMode::Running => (sandboxes.resume(name, &mut wait).await, "is resuming", "is ready"),
    };
    let state = if arguments.wait.is_zero() { requested } else { reached };
    println!("sandbox {} {state}", sandbox.map_err(with_hint)?.name_any());
    Ok(0)
}
