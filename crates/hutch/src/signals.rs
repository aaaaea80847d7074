//! Signals that end a program.

use anyhow::Context;
use hutch_serve::Shutdown;
use tokio::signal::unix::{SignalKind, signal};

/// Returns a shutdown that the first SIGTERM or SIGINT triggers. Needs a tokio runtime.
pub(crate) fn to_stop() -> anyhow::Result<Shutdown> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let stop = Shutdown::new();
    let triggered = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        triggered.trigger();
    });
    Ok(stop)
}
