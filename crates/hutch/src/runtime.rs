//! What every command that serves or calls an API starts with: logs, threads, TLS.

use std::io::IsTerminal;

use anyhow::{Context, bail};

/// Logs to standard error what `HUTCH_LOG` says, else what is given.
pub(crate) fn log(default: &str) {
    let wanted = tracing_subscriber::EnvFilter::try_from_env("HUTCH_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(wanted.unwrap_or_else(|_| default.into()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
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
