//! `hutch up`: two processes. The *root* process ([`root`]) runs the node and its jails. The *front* ([`front`]) parses what
//! clients send: it runs the API server with its store, the controllers and the router, without privileges.
//!
//! They know each other only through the API and the contract of [`hutch_kubelet::Kubelet`], each over a socket pair. These
//! two modules are the only ones that know all services.

pub(crate) mod front;
mod messages;
mod root;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

pub(crate) use self::root::start;
use crate::cli::UpArguments;
use crate::signals;

/// Name of the one Node.
const NODE: &str = "hutch";
/// Maximum time in which services stop; then the process ends without them.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Runs it until SIGTERM or SIGINT.
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

/// Logs to standard error what `HUTCH_LOG` says, else what is given.
pub(crate) fn log(default: &str) {
    let wanted = tracing_subscriber::EnvFilter::try_from_env("HUTCH_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(wanted.unwrap_or_else(|_| default.into()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

fn up(arguments: &UpArguments) -> anyhow::Result<()> {
    check_root("up")?;
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

/// Jails with id ranges, idmapped volumes and cgroups need root; the API server alone would be of no use.
pub(crate) fn check_root(command: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root, to give each sandbox its own ids and limits: sudo hutch {command}");
    }
    Ok(())
}

/// The runtime of all services, which may have as many descriptors as the system allows.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    hutch_serve::raise_descriptor_limit();
    choose_tls();
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")
}

/// To be called before TLS is used anywhere.
pub(crate) fn choose_tls() {
    // Two TLS providers could be compiled in; everything here uses this one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
