//! The machine and its installed programs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

/// Returns a copy of `HUTCH_BIN`, by default of the release binary that `cargo xtask bench` has just built.
///
/// An installation copies the binary too. The pages of a file that a linker has just written are scattered in the page
/// cache, and starting it takes a tenth longer.
pub(crate) fn binary() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("HUTCH_BIN") {
        return Ok(named.into());
    }
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("hutch");
    if !beside.is_file() {
        bail!("{} is not there: build it with `cargo build --release -p hutch`", beside.display());
    }
    let installed = own.with_file_name("hutch.installed");
    let written = |file: &Path| file.metadata().and_then(|file| file.modified()).ok();
    if written(&installed) < written(&beside) {
        // Under another name first: a program that runs cannot be written over.
        let fresh = own.with_file_name("hutch.fresh");
        std::fs::copy(&beside, &fresh)?;
        std::fs::rename(fresh, &installed)?;
    }
    Ok(installed)
}

/// Returns the program of `HUTCH_BEFORE`: another version of Hutch, which is measured in the same run.
pub(crate) fn before() -> Option<PathBuf> {
    std::env::var_os("HUTCH_BEFORE").map(PathBuf::from)
}

/// Describes the machine in one line.
pub(crate) fn describe() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .unwrap_or("")
        .trim_start_matches(['\t', ' ', ':']);
    let memory =
        read("/proc/meminfo").split_whitespace().nth(1).and_then(|k| k.parse::<u64>().ok()).unwrap_or(0)
            >> 20;
    format!("{cpus} CPUs ({model}), {memory} GiB, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

/// Raises the limit of open files of this process and its children to the maximum.
pub(crate) fn raise_descriptors() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}

/// Returns `MemAvailable` in KiB.
pub(crate) fn available_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Returns the busy time of all processors together since the machine started.
pub(crate) fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let fields: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
    // The fourth and fifth are idle and waiting for disks; guests are counted among the first two.
    let ticks: u64 =
        fields.iter().take(8).enumerate().filter(|(n, _)| ![3, 4].contains(n)).map(|(_, t)| t).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// Returns the number in an environment variable, or the default.
pub(crate) fn number(variable: &str, usual: f64) -> anyhow::Result<f64> {
    let Some(text) = std::env::var_os(variable) else { return Ok(usual) };
    let number =
        text.to_string_lossy().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.with_context(|| format!("{variable}={} is not a number above 0", text.to_string_lossy()))
}
