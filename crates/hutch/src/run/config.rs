//! `--config`: a `sandbox_config`, which describes a sandbox in one JSON or YAML object, as flags.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};

use hutch_scan::{At, Direction, Kind, Location, Scanner, Severity, State};

use crate::cli::{Isolation, RunArguments};
use crate::policy::import::read_file;
use crate::policy::import::sandbox_config::{Config, FileMode, Filesystem, Handler, Resources};
use crate::{mount, quantity};

/// Puts what a file says into the flags, of which it allows none that say the same.
pub(super) fn apply(file: &Path, arguments: &mut RunArguments) -> anyhow::Result<()> {
    let config = read_file(file).and_then(|text| Config::parse(&text));
    config.and_then(|config| set(config, arguments)).with_context(|| format!("--config {}", file.display()))
}

fn set(config: Config, arguments: &mut RunArguments) -> anyhow::Result<()> {
    arguments.isolation = match config.isolation {
        Handler::Native => Isolation::Hutch,
        Handler::Gvisor => Isolation::Gvisor,
        Handler::Kata | Handler::Firecracker => {
            bail!("isolation: only `native` and `gvisor` run on one machine")
        }
    };
    if let Some(credentials) = &config.credentials {
        arguments.scans = credentials.secret_scanning;
        refuse_secrets(&arguments.env)?;
    }
    arguments.allow = config.egress()?;
    let Filesystem { workspace, mode, host_mounts } = config.filesystem;
    let read_only = mode == FileMode::ReadOnly;
    ensure!(workspace.is_some() || !read_only, "filesystem.mode: `read_only` needs `workspace`");
    (arguments.workspace, arguments.read_only) = (workspace, read_only);
    for (index, text) in host_mounts.iter().enumerate() {
        let parsed = mount::parse(text);
        arguments.mount.push(parsed.map_err(|error| anyhow!("filesystem.host_mounts[{index}]: {error}"))?);
    }
    resources(&config.resources, arguments)
}

/// Refuses variables with real secrets: credentials come just in time, as placeholders of policies.
fn refuse_secrets(env: &[(String, String)]) -> anyhow::Result<()> {
    if env.is_empty() {
        return Ok(());
    }
    let scanner = Scanner::builtin();
    for (name, value) in env {
        let text = format!("{name}={value}");
        let mut state = State::new(Direction::Outbound);
        let found = scanner.scan_whole(&mut state, &Location::new(At::Body), text.as_bytes());
        let secret = found.iter().find(|one| one.kind == Kind::Secret && one.severity >= Severity::Medium);
        if let Some(secret) = secret {
            bail!(
                "credentials.mode: --env {name} has a secret ({}); give it by `credentials` of a --policy",
                secret.rule
            );
        }
    }
    Ok(())
}

fn resources(resources: &Resources, arguments: &mut RunArguments) -> anyhow::Result<()> {
    let wrong = |field: &str, error: String| anyhow!("resources.{field}: {error}");
    if let Some(amount) = &resources.cpu_limit {
        let text = amount.text();
        // Thousandths of a CPU, as in Kubernetes.
        let text = match text.strip_suffix('m').and_then(|text| text.parse::<u32>().ok()) {
            Some(millis) => (f64::from(millis) / 1000.0).to_string(),
            None => text,
        };
        arguments.cpus = Some(quantity::cpus(&text).map_err(|error| wrong("cpu_limit", error))?);
    }
    if let Some(amount) = &resources.memory_limit {
        let memory = quantity::memory(&amount.text());
        arguments.memory = Some(memory.map_err(|error| wrong("memory_limit", error))?);
    }
    if let Some(seconds) = resources.timeout_seconds {
        ensure!(seconds > 0, "resources.timeout_seconds: must be above zero");
        arguments.timeout = Some(Duration::from_secs(seconds));
    }
    Ok(())
}
