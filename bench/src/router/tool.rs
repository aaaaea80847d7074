//! Runs the unchanged load tool of agent-sandbox against a router.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use super::program::Routed;
use crate::contender;

/// Result of the tool in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Returns the tool, if the folder `HUTCH_PEERS` has it.
pub(crate) fn find() -> Option<PathBuf> {
    contender::peer("upstream-router-load")
}

/// Sends requests to the router at that port of loopback.
pub(crate) async fn drive(
    tool: &Path,
    routed: &Routed,
    sandbox: u16,
    connections: usize,
    time: Duration,
) -> anyhow::Result<Found> {
    let mut command = Command::new(tool);
    command.arg(format!("--router-url=http://127.0.0.1:{}", routed.port));
    command.args(["--backend-host=127.0.0.1".to_owned(), format!("--backend-port={sandbox}")]);
    command.arg(format!("--concurrency={connections}"));
    command.args([format!("--duration={}ms", time.as_millis()), "--warmup=300ms".to_owned()]);
    // The sandbox that answers needs the threads of the runtime.
    let output =
        tokio::task::spawn_blocking(move || command.output()).await?.context("upstream-router-load")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("upstream-router-load ended with {}:\n{said}", output.status);
    }
    read(&said).with_context(|| format!("output of upstream-router-load:\n{said}"))
}

/// Accepts only successful responses.
fn read(said: &str) -> Option<Found> {
    let value = |name: &str| said.lines().find_map(|line| Some(line.trim().strip_prefix(name)?.trim()));
    let samples = value("recorded samples:")?.split_whitespace().next()?;
    (value("200:")? == samples && value("client errors:")? == "0").then_some(())?;
    let rate = value("throughput:")?.strip_suffix("req/s")?.trim().parse().ok()?;
    Some(Found { rate, p50: duration(value("p50:")?)?, p99: duration(value("p99:")?)? })
}

/// Parses a duration below a minute as Go prints it.
fn duration(text: &str) -> Option<Duration> {
    let units = [("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    Some(Duration::from_secs_f64(number.parse::<f64>().ok()? * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tool_says_is_read() {
        let said = "  client errors:    0\n  recorded samples: 45  (warmup-excluded)\n  throughput:       23 req/s\n\
            \x20 status codes:\n    200: 45\n  latency (recorded samples only):\n    p50:  591µs\n    p99:  3.907ms\n";
        let found = read(said).unwrap();
        assert_eq!((found.rate, found.p50, found.p99.as_micros()), (23.0, Duration::from_micros(591), 3907));
        assert_eq!(read(&said.replace("200: 45", "200: 44")), None, "one was refused");
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
    }
}
