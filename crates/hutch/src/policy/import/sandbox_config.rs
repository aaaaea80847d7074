//! A `sandbox_config`: one JSON or YAML object that describes a sandbox.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;

use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure};
use hutch_policy::{EgressRule, PortRange, Protocol};
use serde::Deserialize;

use super::{Notes, in_one_line, object};
use crate::allow;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) isolation: Handler,
    #[serde(default)]
    pub(crate) network: Network,
    #[serde(default)]
    pub(crate) filesystem: Filesystem,
    #[serde(default)]
    pub(crate) resources: Resources,
    pub(crate) credentials: Option<Credentials>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    #[serde(default, rename = "mode")]
    _mode: CredentialMode,
    #[serde(default)]
    pub(crate) secret_scanning: bool,
}

/// No jail has credentials in another way: policies offer them.
#[derive(Deserialize, Clone, Copy, Default)]
enum CredentialMode {
    #[default]
    #[serde(rename = "just_in_time")]
    JustInTime,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Handler {
    #[default]
    Native,
    Gvisor,
    Kata,
    Firecracker,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Network {
    #[serde(default)]
    pub(crate) mode: NetworkMode,
    #[serde(default)]
    pub(crate) egress_allowlist: Vec<String>,
    #[serde(default, rename = "ingress")]
    _ingress: Ingress,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NetworkMode {
    /// The hosts of the list, none without a list.
    #[default]
    Restricted,
    None,
    Open,
}

/// No jail has another one.
#[derive(Deserialize, Default)]
pub(crate) enum Ingress {
    #[default]
    #[serde(rename = "deny_all")]
    DenyAll,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filesystem {
    pub(crate) workspace: Option<PathBuf>,
    #[serde(default)]
    pub(crate) mode: FileMode,
    #[serde(default)]
    pub(crate) host_mounts: Vec<String>,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileMode {
    #[default]
    ReadWrite,
    ReadOnly,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resources {
    pub(crate) cpu_limit: Option<Amount>,
    pub(crate) memory_limit: Option<Amount>,
    pub(crate) timeout_seconds: Option<u64>,
}

/// A quantity, with or without quotes.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a text")]
pub(crate) enum Amount {
    Number(f64),
    Text(String),
}

impl Amount {
    /// Returns the quantity as text.
    pub(crate) fn text(&self) -> String {
        match self {
            Amount::Number(number) => number.to_string(),
            Amount::Text(text) => text.clone(),
        }
    }
}

/// Returns an error with the path of its field, if the text has an object.
fn named(text: &str, error: serde_saphyr::Error) -> anyhow::Error {
    let document = serde_saphyr::from_str::<serde_json::Value>(text).ok();
    let named = document.and_then(|document| object::<Config>(document).err());
    named.unwrap_or_else(|| in_one_line(error))
}

impl Config {
    /// Reads a file of the format.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Config> {
        let config: Config = serde_saphyr::from_str(text).map_err(|error| named(text, error))?;
        // As Python prints a dict. Other fields refuse it by their type.
        let is_none = config.filesystem.workspace.as_deref() == Some(Path::new("None"));
        ensure!(!is_none, "filesystem.workspace: `None` is a text here: leave out a field without a value");
        Ok(config)
    }

    /// Returns the rules for its network: none if it is closed.
    pub(crate) fn egress(&self) -> anyhow::Result<Vec<EgressRule>> {
        let mut rules = self.opened()?;
        if self.scans() {
            // What cannot be read cannot be scanned either: these rules let TLS and HTTP pass, and nothing else.
            for rule in rules.iter_mut().filter(|rule| !rule.protocol.is_auto()) {
                (rule.protocol, rule.plaintext) = (Protocol::Auto, true);
            }
        }
        Ok(rules)
    }

    fn opened(&self) -> anyhow::Result<Vec<EgressRule>> {
        let list = &self.network.egress_allowlist;
        let only = "network.egress_allowlist: only with `mode: restricted`";
        ensure!(self.network.mode == NetworkMode::Restricted || list.is_empty(), only);
        if self.network.mode == NetworkMode::Open {
            let mut all = allow::rule("any.example").map_err(|error| anyhow!(error))?;
            (all.name, all.any, all.protocol) = ("network.mode: open".to_owned(), true, Protocol::Tcp);
            (all.hosts, all.ports) = (Vec::new(), vec![PortRange::ALL]);
            return Ok(vec![all]);
        }
        let rule = |(index, text): (usize, &String)| {
            let rule =
                if text.contains('*') { Err("only exact names".to_owned()) } else { allow::rule(text) };
            rule.map_err(|error| anyhow!("network.egress_allowlist[{index}]: {error}"))
        };
        list.iter().enumerate().map(rule).collect()
    }

    /// Notes the fields that are no part of a policy.
    pub(crate) fn note_rest(&self, notes: &mut Notes) {
        let Filesystem { workspace, host_mounts, mode } = &self.filesystem;
        let files = workspace.is_some() || !host_mounts.is_empty() || *mode != FileMode::ReadWrite;
        let Resources { cpu_limit, memory_limit, timeout_seconds } = &self.resources;
        let resources = cpu_limit.is_some() || memory_limit.is_some() || timeout_seconds.is_some();
        for (there, field) in [
            (self.isolation != Handler::Native, "isolation"),
            (files, "filesystem"),
            (resources, "resources"),
        ] {
            if there {
                notes.change(field, "no part of a policy; `hutch run --config` applies it");
            }
        }
        if self.credentials.is_some() {
            notes.change("credentials.mode", "no part of this policy; `hutch run --config` applies it");
        }
        if self.scans() {
            notes.change(
                "credentials.secret_scanning",
                "only traffic is scanned; `hutch run --config` scans its output too",
            );
        }
    }

    /// Returns true if traffic is scanned for secrets.
    pub(super) fn scans(&self) -> bool {
        self.credentials.is_some_and(|credentials| credentials.secret_scanning)
    }
}
