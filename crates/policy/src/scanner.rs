//! Field `scanner` of a policy: rules by which traffic is scanned, and actions for findings.

use serde::{Deserialize, Serialize};

use crate::host::HostName;
use crate::pattern::HostPattern;

/// Maximum exceptions of a policy, and maximum hosts of each.
pub(crate) const EXCEPTIONS: usize = 64;

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
    /// Action for secrets and data in what containers print, before it is in their logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<ScanAction>,
    /// Action for secrets and data in what clients receive from commands, and from main processes to which they attach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ScanAction>,
    /// Action for secrets and data in what ports of a Sandbox answer to clients of the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downloads: Option<ScanAction>,
    /// Findings that do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Exception>,
}

/// Way by which output leaves a sandbox, without its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Door {
    /// Logs of containers.
    Logs,
    /// Output of commands.
    Exec,
    /// Answers to clients of the router.
    Downloads,
}

impl Door {
    /// All of them.
    pub const ALL: [Door; 3] = [Door::Logs, Door::Exec, Door::Downloads];

    /// Returns the name of its field.
    pub fn name(self) -> &'static str {
        match self {
            Door::Logs => "logs",
            Door::Exec => "exec",
            Door::Downloads => "downloads",
        }
    }
}

/// Finding that does not count for a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// Id of the rule; without it, every rule. Several can match one value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Hosts in traffic to which it does not count; without any, it counts nowhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostPattern>,
    /// The only value that does not count; without it, none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<ValueHash>,
}

/// Beginning of the SHA-256 of a value, as lines of the log have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ValueHash([u8; 8]);

/// Text that is not the hash of a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be `sha256:` and the 16 hexadecimal digits of a finding, or all 64")]
pub struct InvalidValueHash;

impl TryFrom<String> for ValueHash {
    type Error = InvalidValueHash;

    fn try_from(text: String) -> Result<ValueHash, InvalidValueHash> {
        let digits = text.strip_prefix("sha256:").ok_or(InvalidValueHash)?;
        let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !hexadecimal || ![16, 64].contains(&digits.len()) {
            return Err(InvalidValueHash);
        }
        let first = u64::from_str_radix(&digits[..16], 16).map_err(|_| InvalidValueHash)?;
        Ok(ValueHash(first.to_be_bytes()))
    }
}

impl From<ValueHash> for String {
    fn from(hash: ValueHash) -> String {
        format!("sha256:{:016x}", u64::from_be_bytes(hash.0))
    }
}

impl Exception {
    /// Returns true if it covers a finding of this rule with this beginning of the SHA-256 of its value, in traffic to this
    /// host; `None` is output, or traffic without a host.
    fn covers(&self, rule: &str, value: [u8; 8], host: Option<&HostName>) -> bool {
        let here = self.hosts.is_empty()
            || host.is_some_and(|host| self.hosts.iter().any(|pattern| pattern.matches(host)));
        self.rule.as_deref().is_none_or(|named| named == rule)
            && here
            && self.value.is_none_or(|hash| hash.0 == value)
    }
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
        ScannerRules {
            rules: all(),
            outbound: block(),
            inbound: log(),
            injection: block(),
            logs: None,
            exec: None,
            downloads: None,
            allow: Vec::new(),
        }
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
        if self.allow.len() > EXCEPTIONS {
            return Some((".allow".to_owned(), "has too many entries: at most 64"));
        }
        if let Some(index) = self.allow.iter().position(|one| one.hosts.len() > EXCEPTIONS) {
            return Some((format!(".allow[{index}].hosts"), "has too many entries: at most 64"));
        }
        if let Some(index) = self.allow.iter().position(|one| one.rule.is_none() && one.value.is_none()) {
            return Some((format!(".allow[{index}]"), "allows everything: it needs `rule` or `value`"));
        }
        let twice = |(index, set): (usize, &ScanRules)| self.rules[..index].contains(set).then_some(index);
        let index = self.rules.iter().enumerate().find_map(twice)?;
        Some((format!(".rules[{index}]"), "is there twice"))
    }

    /// Returns the action for what leaves by a door; `None` if it is not scanned.
    pub fn at(&self, door: Door) -> Option<ScanAction> {
        match door {
            Door::Logs => self.logs,
            Door::Exec => self.exec,
            Door::Downloads => self.downloads,
        }
    }

    /// Returns true if a finding does not count: one of this rule with this beginning of the SHA-256 of its value.
    pub fn allows(&self, rule: &str, value: [u8; 8], host: Option<&HostName>) -> bool {
        self.allow.iter().any(|one| one.covers(rule, value, host))
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
            r#"{"logs": "Drop"}"#,
            r#"{"allow": [{"rule": "a", "value": "12345678"}]}"#,
            r#"{"allow": [{"rule": "a", "value": "sha256:123"}]}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn exception_covers_its_rule_its_hosts_and_its_value() {
        let text = r#"{"logs": "Redact", "allow": [
            {"rule": "a"}, {"rule": "b", "hosts": ["*.example.com"]}, {"rule": "c", "value": "sha256:00000000000000ff"}
        ]}"#;
        let rules: ScannerRules = serde_json::from_str(text).unwrap();
        assert_eq!(
            serde_json::from_value::<ScannerRules>(serde_json::to_value(&rules).unwrap()).unwrap(),
            rules
        );
        let host: HostName = "x.example.com".parse().unwrap();
        let other: HostName = "x.example.org".parse().unwrap();
        let value = 0xff_u64.to_be_bytes();
        assert!(rules.allows("a", [1; 8], None) && rules.allows("a", [1; 8], Some(&other)));
        assert!(rules.allows("b", [1; 8], Some(&host)));
        assert!(!rules.allows("b", [1; 8], Some(&other)) && !rules.allows("b", [1; 8], None));
        assert!(rules.allows("c", value, None) && !rules.allows("c", [1; 8], None));
        assert!(!rules.allows("d", value, Some(&host)));
        assert_eq!(Door::ALL.map(|door| rules.at(door)), [Some(ScanAction::Redact), None, None]);
        let every: ScannerRules = serde_json::from_str(r#"{"allow": [{"hosts": ["a.example"]}]}"#).unwrap();
        assert_eq!(every.mistake().map(|(field, _)| field).as_deref(), Some(".allow[0]"));
    }
}
