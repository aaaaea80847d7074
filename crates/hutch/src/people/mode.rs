//! `hutch suspend`, `hutch resume`.

use std::process::ExitCode;

use hutch_api::{OperatingMode, Sandbox, condition};
use kube::ResourceExt;

use super::finish;
use super::sandbox::{Cluster, current, mode, ready};
use super::wait::{Patience, Step};
use crate::cli::ModeArguments;

/// Ends the Pod; prints what is so at last.
pub(crate) fn suspend(arguments: &ModeArguments) -> ExitCode {
    finish("suspend", 1, change(arguments, OperatingMode::Suspended))
}

/// Starts the Pod; prints what is so at last.
pub(crate) fn resume(arguments: &ModeArguments) -> ExitCode {
    finish("resume", 1, change(arguments, OperatingMode::Running))
}

async fn change(arguments: &ModeArguments, wanted: OperatingMode) -> anyhow::Result<u8> {
    let cluster = Cluster::connect(&arguments.place).await?;
    let mut patience = Patience::new(arguments.wait);
    let sandbox = cluster.find(&arguments.sandbox.named, &mut patience).await?;
    let name = sandbox.name_any();
    if mode(&sandbox) != wanted {
        cluster.set_mode(&name, wanted).await?;
    }
    let (wish, asked) = match wanted {
        OperatingMode::Suspended => ("suspended", "is asked to suspend"),
        OperatingMode::Running => ("ready", "is asked to resume"),
    };
    if arguments.wait.is_zero() {
        println!("sandbox {name} {asked}");
        return Ok(0);
    }
    let judge = |sandbox: &Sandbox| match wanted {
        OperatingMode::Suspended => suspended(sandbox),
        OperatingMode::Running => ready(sandbox),
    };
    patience.until(&cluster.sandboxes, ("sandbox", &name, wish), judge).await?;
    println!("sandbox {name} is {wish}");
    Ok(0)
}

fn suspended(sandbox: &Sandbox) -> Step<Sandbox> {
    if mode(sandbox) != OperatingMode::Suspended {
        return Step::Never("somebody has resumed it meanwhile".to_owned());
    }
    let Some(suspended) = current(sandbox, condition::SUSPENDED) else {
        return Step::Wait("the controller has not looked at it yet".to_owned());
    };
    match suspended.reason.as_str() {
        _ if suspended.status == condition::TRUE => Step::Done(sandbox.clone()),
        condition::reason::POD_NOT_OWNED => {
            Step::Never(format!("{}; delete that Pod, or rename the Sandbox", suspended.message))
        }
        _ => Step::Wait(suspended.message.clone()),
    }
}
