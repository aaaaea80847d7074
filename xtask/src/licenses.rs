//! Checks every dependency: its license, where it comes from, and that it is not banned.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use spdx::{Expression, ParseMode};

/// Licenses of dependencies: permissive ones only.
const ALLOWED: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "OpenSSL",
    "Unicode-3.0",
    "Zlib",
];
/// Crates that must not be used, and why.
const BANNED: [(&str, &str); 4] = [
    ("native-tls", "rustls with aws-lc-rs is the only TLS library"),
    ("openssl", "rustls with aws-lc-rs is the only TLS library"),
    ("ring", "rustls with aws-lc-rs is the only TLS library"),
    ("serde_yaml", "unmaintained; serde-saphyr is the only YAML library"),
];
/// Targets whose dependencies count.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Checks all dependencies; the error names every wrong one.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let mut wrong = BTreeSet::new();
    for target in TARGETS {
        // `cargo metadata` would also list what no feature uses.
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--workspace", "--edges=all", "--prefix=none", "--format={p}\t{l}"])
            .args(["--target", target])
            .current_dir(root)
            .output()
            .context("cargo tree")?;
        if !output.status.success() {
            bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        wrong.extend(String::from_utf8(output.stdout)?.lines().filter_map(|line| fault(line, root)));
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => bail!("dependencies:\n  {}", Vec::from_iter(wrong).join("\n  ")),
    }
}

/// Returns what is wrong with the dependency of a line: `name version (source)`, a tab and the license. Crates of crates.io
/// have no source.
fn fault(line: &str, root: &Path) -> Option<String> {
    let (package, license) = line.split_once('\t')?;
    let license = license.trim_end_matches("(*)").trim_end();
    let name = package.split(' ').next().unwrap_or_default();
    if package.contains(&format!("({}", root.display())) {
        return None;
    }
    if let Some((_, reason)) = BANNED.iter().find(|(banned, _)| *banned == name) {
        return Some(format!("{package} is banned: {reason}"));
    }
    // Macros are marked.
    if package.replace("(proc-macro)", "").contains('(') {
        return Some(format!("{package} is not from crates.io"));
    }
    // Older crates write `MIT/Apache-2.0`.
    let permitted = Expression::parse_mode(license, ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|license| ALLOWED.contains(&license.to_string().as_str()))
    });
    (!permitted).then(|| format!("{package} has the license {license:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_wrong(line: &str) -> bool {
        fault(line, Path::new("/repository")).is_some()
    }

    #[test]
    fn licenses_must_be_permissive() {
        for license in [
            "MIT",
            "MIT (*)",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(!is_wrong(&format!("a v1.0.0\t{license}")), "{license}");
        }
        for license in ["GPL-3.0", "MIT AND GPL-3.0", "", "of my own"] {
            assert!(is_wrong(&format!("a v1.0.0\t{license}")), "{license}");
        }
    }

    #[test]
    fn banned_crates_and_other_sources_are_found() {
        assert!(is_wrong("ring v0.17.0\tMIT"));
        assert!(is_wrong("a v1.0.0 (https://a.example/a#1234)\tMIT"));
        assert!(!is_wrong("a v1.0.0 (proc-macro)\tMIT"));
        assert!(!is_wrong("hutch v0.1.0 (/repository/crates/hutch)\t"));
    }
}
