//! Field `scanner` of a policy: rules by which traffic is scanned, and actions for findings.

use serde::{Deserialize, Serialize};

/// Set of rules of the scanner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ScanRules {
    /// Secrets: keys, tokens, passwords.
    #[serde(rename = "builtin/secrets")]
    Secrets,
    /// Personal data.
    #[serde(rename = "builtin/pii")]
    Pii,
    /// Numbers of cards and accounts, keys of wallets.
    #[serde(rename = "builtin/financial")]
    Financial,
    /// Instructions for a model.
    #[serde(rename = "builtin/injection")]
    Injection,
    /// Dangerous commands of a shell.
    #[serde(rename = "builtin/shell")]
    Shell,
    /// Attacks on servers.
    #[serde(rename = "builtin/waf")]
    Waf,
}

impl ScanRules {
    /// All sets.
    pub const ALL: [ScanRules; 6] = [
        ScanRules::Secrets,
        ScanRules::Pii,
        ScanRules::Financial,
        ScanRules::Injection,
        ScanRules::Shell,
        ScanRules::Waf,
    ];
}

/// Action for a finding. The greater one is stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ScanAction {
    /// It passes, and is recorded.
    Log,
    /// It is replaced. Where that is not possible, the message is blocked.
    Redact,
    /// The message is refused.
    Block,
}

/// Field `scanner` of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScannerRules {
    /// Sets of rules.
    #[serde(default = "all")]
    pub rules: Vec<ScanRules>,
    /// Action for what leaves.
    #[serde(default = "block")]
    pub outbound: ScanAction,
    /// Action for secrets and data in what enters.
    #[serde(default = "log")]
    pub inbound: ScanAction,
    /// Action for instructions, hidden text and changed definitions in what enters.
    #[serde(default = "block")]
    pub injection: ScanAction,
}

fn all() -> Vec<ScanRules> {
    ScanRules::ALL.to_vec()
}

fn block() -> ScanAction {
    ScanAction::Block
}

fn log() -> ScanAction {
    ScanAction::Log
}

impl Default for ScannerRules {
    fn default() -> ScannerRules {
        ScannerRules { rules: all(), outbound: block(), inbound: log(), injection: block() }
    }
}

impl ScannerRules {
    /// Returns the part of the field that is wrong, and why.
    pub(crate) fn mistake(&self) -> Option<(String, &'static str)> {
        if self.injection == ScanAction::Redact {
            return Some((".injection".to_owned(), "must be `Log` or `Block`: an instruction has no bounds"));
        }
        if self.rules.is_empty() {
            return Some((".rules".to_owned(), "is empty; without the field, all sets count"));
        }
        let twice = |(index, set): (usize, &ScanRules)| self.rules[..index].contains(set).then_some(index);
        let index = self.rules.iter().enumerate().find_map(twice)?;
        Some((format!(".rules[{index}]"), "is there twice"))
    }

    /// Returns true if a set counts.
    pub fn has(&self, set: ScanRules) -> bool {
        self.rules.contains(&set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_defaults_and_bounds() {
        let read = |text: &str| serde_json::from_str::<ScannerRules>(text);
        assert_eq!(read("{}").unwrap(), ScannerRules::default());
        let wrong = |text: &str| read(text).unwrap().mistake().map(|(field, _)| field);
        assert_eq!(wrong(r#"{"rules": ["builtin/pii"], "outbound": "Redact"}"#), None);
        assert_eq!(wrong(r#"{"injection": "Redact"}"#).as_deref(), Some(".injection"));
        assert_eq!(wrong(r#"{"rules": []}"#).as_deref(), Some(".rules"));
        assert_eq!(wrong(r#"{"rules": ["builtin/pii", "builtin/pii"]}"#).as_deref(), Some(".rules[1]"));
        for text in [
            r#"{"outbound": "Ask"}"#,
            r#"{"rules": ["builtin/other"]}"#,
            r#"{"files": "Block"}"#,
            r#"{"logs": "Redact"}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
