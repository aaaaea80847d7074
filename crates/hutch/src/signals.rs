//! The signals that ask a program to end.

use anyhow::Context;
use hutch_serve::Shutdown;
use tokio::signal::unix::{SignalKind, signal};

/// Triggered by the first SIGTERM or SIGINT. Needs a tokio runtime.
pub(crate) fn to_stop() -> anyhow::Result<Shutdown> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let stop = Shutdown::new();
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        told.trigger();
    });
    Ok(stop)
}
