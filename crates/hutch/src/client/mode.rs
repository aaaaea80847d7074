//! `hutch suspend`, `hutch resume`.

use std::process::ExitCode;

use hutch_api::OperatingMode;
use hutch_client::Wait;
use kube::ResourceExt;

use super::progress::Progress;
use super::{connect, finish, with_hint};
use crate::cli::{ResumeArguments, SuspendArguments};

/// Suspends a Sandbox and prints its state.
pub(crate) fn suspend(arguments: &SuspendArguments) -> ExitCode {
    finish("suspend", 1, change(&arguments.change, OperatingMode::Suspended, arguments.memory))
}

/// Resumes a Sandbox and prints its state.
pub(crate) fn resume(arguments: &ResumeArguments) -> ExitCode {
    finish("resume", 1, change(arguments, OperatingMode::Running, false))
}

async fn change(arguments: &ResumeArguments, desired: OperatingMode, memory: bool) -> anyhow::Result<u8> {
    let sandboxes = connect(&arguments.place).await?;
    let mut progress = Progress::new();
    let mut wait = Wait::new(arguments.wait, &mut progress);
    let name = &arguments.sandbox.name;
    let (sandbox, requested, reached) = match desired {
        OperatingMode::Suspended if memory => {
            (sandboxes.suspend_with_memory(name, &mut wait).await, "is suspending", "is suspended")
        }
        OperatingMode::Suspended => {
            (sandboxes.suspend(name, &mut wait).await, "is suspending", "is suspended")
        }
        OperatingMode::Running => (sandboxes.resume(name, &mut wait).await, "is resuming", "is ready"),
    };
    let state = if arguments.wait.is_zero() { requested } else { reached };
    println!("sandbox {} {state}", sandbox.map_err(with_hint)?.name_any());
    Ok(0)
}
