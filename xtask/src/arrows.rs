//! Checks dependencies between crates: top -> services -> client -> mechanisms -> contracts -> vocabulary, and no service
//! depends on another. dev-dependencies are not checked.

mod circles;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;

/// Layer of a crate. A crate may depend only on crates of a lower layer; top crates may depend on any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    Vocabulary,
    Contract,
    Mechanism,
    Client,
    Service,
    Top,
}

const LAYERS: [(&str, Layer); 32] = [
    ("hutch-api", Layer::Vocabulary),
    ("hutch-activity", Layer::Vocabulary),
    ("hutch-archive", Layer::Vocabulary),
    ("hutch-policy", Layer::Vocabulary),
    ("hutch-scan", Layer::Vocabulary),
    ("hutch-kubelet", Layer::Contract),
    ("hutch-store", Layer::Mechanism),
    ("hutch-attach", Layer::Mechanism),
    ("hutch-audit", Layer::Mechanism),
    ("hutch-jail", Layer::Mechanism),
    ("hutch-image", Layer::Mechanism),
    ("hutch-registry", Layer::Mechanism),
    ("hutch-serve", Layer::Mechanism),
    ("hutch-snapshot", Layer::Mechanism),
    ("hutch-election", Layer::Mechanism),
    ("hutch-remote", Layer::Mechanism),
    ("hutch-reconcile", Layer::Mechanism),
    ("hutch-screen", Layer::Mechanism),
    ("hutch-privsep", Layer::Mechanism),
    ("hutch-client", Layer::Client),
    ("hutch-apiserver", Layer::Service),
    ("hutch-controller", Layer::Service),
    ("hutch-upkeep", Layer::Service),
    ("hutch-egress", Layer::Service),
    ("hutch-node", Layer::Service),
    ("hutch-router", Layer::Service),
    ("hutch-sandboxd", Layer::Service),
    ("hutch-webhook", Layer::Service),
    ("hutch", Layer::Top),
    ("hutch-testkit", Layer::Top),
    ("hutch-bench", Layer::Top),
    ("xtask", Layer::Top),
];

/// Dependencies within one layer: a crate, and the one that it may depend on.
const WITHIN_A_LAYER: [(&str, &str); 1] = [("hutch-snapshot", "hutch-image")];

/// Libraries that do I/O; crates of the vocabulary must not depend on them.
const IO_LIBRARIES: [&str; 4] = ["tokio", "hyper", "axum", "reqwest"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

/// Checks all dependencies; the error names every wrong one.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--locked"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("output of cargo metadata")?;
    let wrong = wrong_arrows(&metadata);
    if !wrong.is_empty() {
        bail!("wrong arrows between crates:\n  {}", wrong.join("\n  "));
    }
    circles::check(root)
}

fn wrong_arrows(metadata: &Metadata) -> Vec<String> {
    let layers: BTreeMap<&str, Layer> = LAYERS.into_iter().collect();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let Some(from) = layers.get(package.name.as_str()) else {
            wrong.push(format!("{} has no layer in xtask/src/arrows.rs", package.name));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.kind.as_deref() != Some("dev")) {
            if dependency.path.is_none() {
                if *from == Layer::Vocabulary && IO_LIBRARIES.contains(&dependency.name.as_str()) {
                    wrong.push(format!("{} (vocabulary: no I/O) -> {}", package.name, dependency.name));
                }
                continue;
            }
            let to = layers.get(dependency.name.as_str()).copied().unwrap_or(Layer::Top);
            let is_listed = WITHIN_A_LAYER.contains(&(&package.name, &dependency.name));
            if to >= *from && *from != Layer::Top && !is_listed {
                wrong.push(format!("{} ({from:?}) -> {} ({to:?})", package.name, dependency.name));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, on: &str, kind: Option<&str>) -> Metadata {
        let dependency =
            Dependency { name: on.into(), kind: kind.map(str::to_owned), path: Some("/somewhere".into()) };
        Metadata { packages: vec![Package { name: name.into(), dependencies: vec![dependency] }] }
    }

    #[test]
    fn service_may_depend_on_a_service_only_in_tests() {
        assert_eq!(wrong_arrows(&package("hutch-node", "hutch-router", None)).len(), 1);
        assert_eq!(wrong_arrows(&package("hutch-node", "hutch-router", Some("dev"))).len(), 0);
        assert_eq!(wrong_arrows(&package("hutch-node", "hutch-jail", None)).len(), 0);
        assert_eq!(wrong_arrows(&package("hutch-store", "hutch-serve", None)).len(), 1);
        assert_eq!(wrong_arrows(&package("hutch-snapshot", "hutch-image", None)).len(), 0);
        assert_eq!(wrong_arrows(&package("hutch-image", "hutch-snapshot", None)).len(), 1);
        assert_eq!(wrong_arrows(&package("hutch", "hutch-node", None)).len(), 0);
    }

    #[test]
    fn crate_without_a_layer_is_an_error() {
        assert_eq!(wrong_arrows(&package("hutch-new", "hutch-api", None)).len(), 1);
    }
}
