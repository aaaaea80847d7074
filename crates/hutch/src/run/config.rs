//! `--config`: a `sandbox_config`, which describes a sandbox in one JSON or YAML object, as flags.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use hutch_policy::{EgressRule, PortRange, Protocol};
use serde::Deserialize;

use super::egress::{in_one_line, read_file};
use crate::cli::{Isolation, RunArguments};
use crate::{allow, mount, quantity};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    isolation: Handler,
    #[serde(default)]
    network: Network,
    #[serde(default)]
    filesystem: Filesystem,
    #[serde(default)]
    resources: Resources,
    /// Known, so that the error can say more than that the field is unknown.
    credentials: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum Handler {
    #[default]
    Native,
    Gvisor,
    Kata,
    Firecracker,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Network {
    #[serde(default)]
    mode: NetworkMode,
    #[serde(default)]
    egress_allowlist: Vec<String>,
    #[serde(default, rename = "ingress")]
    _ingress: Ingress,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
enum NetworkMode {
    /// The hosts of the list, none without a list.
    #[default]
    Restricted,
    None,
    Open,
}

/// No jail has another one.
#[derive(Deserialize, Default)]
enum Ingress {
    #[default]
    #[serde(rename = "deny_all")]
    DenyAll,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Filesystem {
    workspace: Option<PathBuf>,
    #[serde(default)]
    mode: FileMode,
    #[serde(default)]
    host_mounts: Vec<String>,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "snake_case")]
enum FileMode {
    #[default]
    ReadWrite,
    ReadOnly,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Resources {
    cpu_limit: Option<Amount>,
    memory_limit: Option<Amount>,
    timeout_seconds: Option<u64>,
}

/// A quantity, with or without quotes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Amount {
    Number(f64),
    Text(String),
}

impl Amount {
    fn text(&self) -> String {
        match self {
            Amount::Number(number) => number.to_string(),
            Amount::Text(text) => text.clone(),
        }
    }
}

/// Puts what a file says into the flags, of which it allows none that say the same.
pub(super) fn apply(file: &Path, arguments: &mut RunArguments) -> anyhow::Result<()> {
    let config = read_file(file).and_then(|text| serde_saphyr::from_str(&text).map_err(in_one_line));
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
    if config.credentials.is_some() {
        bail!("credentials: not enforced by this version; remove the field to run without it");
    }
    arguments.allow = network(&config.network)?;
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

fn network(network: &Network) -> anyhow::Result<Vec<EgressRule>> {
    let list = &network.egress_allowlist;
    let only = "network.egress_allowlist: only with `mode: restricted`";
    ensure!(network.mode == NetworkMode::Restricted || list.is_empty(), only);
    if network.mode == NetworkMode::Open {
        let mut all = allow::rule("any.example").map_err(|error| anyhow!(error))?;
        (all.name, all.any, all.protocol) = ("network.mode: open".to_owned(), true, Protocol::Tcp);
        (all.hosts, all.ports) = (Vec::new(), vec![PortRange::ALL]);
        return Ok(vec![all]);
    }
    let rule = |(index, text): (usize, &String)| {
        let rule = if text.contains('*') { Err("only exact names".to_owned()) } else { allow::rule(text) };
        rule.map_err(|error| anyhow!("network.egress_allowlist[{index}]: {error}"))
    };
    list.iter().enumerate().map(rule).collect()
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
