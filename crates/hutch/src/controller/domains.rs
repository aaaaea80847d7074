//! Permitted domains of labels in a claim's `additionalPodMetadata`.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;

/// File of the ConfigMap with the list.
pub(super) const FILE: &str = "/etc/sandbox-config/allowed-label-domains";

/// Returns the domains of the file, separated by commas or lines; `None` without a file or without a domain.
///
/// # Errors
/// The file exists and cannot be read.
pub(super) fn read(file: &Path) -> anyhow::Result<Option<Vec<String>>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let domains: Vec<String> = text
        .split([',', '\n'])
        .map(|domain| domain.trim().to_ascii_lowercase())
        .filter(|domain| !domain.is_empty())
        .collect();
    Ok((!domains.is_empty()).then_some(domains))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_separated_by_commas_or_lines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("allowed-label-domains");
        assert_eq!(read(&file).unwrap(), None);
        for (text, domains) in [
            ("", None),
            (" ,\n", None),
            ("a.example", Some(vec!["a.example"])),
            ("A.example, b.example\nc.example,\n", Some(vec!["a.example", "b.example", "c.example"])),
        ] {
            std::fs::write(&file, text).unwrap();
            let expected = domains.map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>());
            assert_eq!(read(&file).unwrap(), expected, "{text:?}");
        }
        std::fs::write(&file, [0xff]).unwrap();
        assert!(format!("{:#}", read(&file).unwrap_err()).contains("allowed-label-domains"));
    }
}
