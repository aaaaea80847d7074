//! `hutch up`: four processes. The *root* process ([`root`]) runs the node and its jails. The *front* ([`front`]) parses what
//! clients send: it runs the API server with its store, the controllers and the router, without privileges. The proxy
//! ([`egress`]) and the broker ([`broker`]) serve sandboxes. Others pull images ([`pulls`]) and speak with Vault ([`vault`]),
//! or connect to webhooks ([`callouts`]), if they are configured.
//!
//! They communicate only through the API and the contract of [`hutch_kubelet::Kubelet`], each over a socket pair. Only these
//! two modules use all services.

pub(crate) mod addresses;
mod audit;
mod broker;
mod callouts;
mod egress;
pub(crate) mod front;
mod image_gc;
mod issuer;
mod messages;
mod pulls;
mod recent;
mod root;
mod screens;
mod sources;
mod vault;

use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;

pub(crate) use self::root::start;
use crate::cli::UpArguments;
use crate::runtime::{check_root, log, runtime};
use crate::signals;

/// Name of the one Node.
const NODE: &str = "hutch";
/// Maximum time for services to stop; then the process ends anyway.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Locks a value that stays whole when its holder panics.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the server until SIGTERM or SIGINT.
pub(crate) fn main(arguments: UpArguments) -> ExitCode {
    log("warn,hutch=info");
    match up(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch up: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn up(arguments: &UpArguments) -> anyhow::Result<()> {
    check_root("up")?;
    // Before anything is opened: the front and the warden get only what they are given.
    hutch_jail::close_inherited_on_exec().context("cannot mark the descriptors of the caller")?;
    hutch_serve::forbid_core_files();
    let runtime = runtime()?;
    runtime.block_on(async {
        let told = signals::to_stop()?;
        let mut server = start(arguments).await?;
        for (name, value) in server.lines() {
            println!("{name:<12}{value}");
        }
        println!("ready");
        crate::lean::stay();
        let outcome = tokio::select! {
            () = told.wait() => Ok(()),
            failed = server.failed() => Err(failed),
        };
        server.stop().await;
        outcome
    })
}
