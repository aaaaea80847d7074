//! Policy objects, as they stand in files.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::decide::{Authority, Level, Mode};
use crate::destination::Decision;
use crate::egress::{Egress, EgressRule};

/// Maximum rules of a policy.
const RULES: usize = 256;
/// Maximum hosts of a rule, and maximum ranges in each of its lists.
const HOSTS: usize = 64;

/// Kind of a policy object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Policy of administrators.
    ClusterSandboxPolicy,
    /// Policy of a namespace.
    SandboxPolicy,
}

/// Version of a policy object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Version {
    #[serde(rename = "policy.hutch.dev/v1alpha1")]
    V1alpha1,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyObject {
    api_version: Version,
    /// Kind.
    pub kind: Kind,
    metadata: Metadata,
    spec: Spec,
}

/// Metadata. Only the name has a meaning in a file; the others are those of any object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(default)]
    mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    egress: Option<Egress>,
}

/// Reason why a policy is invalid, with the path of its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidPolicy {
    field: String,
    reason: String,
}

impl PolicyObject {
    /// Returns the level that the policy is, for this authority.
    ///
    /// # Errors
    /// The first field that is invalid or has no effect.
    pub fn into_level(self, authority: Authority) -> Result<Level, InvalidPolicy> {
        if !is_name(&self.metadata.name) {
            let reason =
                "must be lower-case letters, digits, `-` and `.`, and begin and end with a letter or digit";
            return Err(invalid("metadata.name".to_owned(), reason));
        }
        if let Some(egress) = &self.spec.egress {
            check_rules(&egress.rules)?;
        }
        let Spec { mode, egress } = self.spec;
        Ok(Level { authority, name: self.metadata.name, mode, egress })
    }
}

/// Returns true for a name of a Kubernetes object: a DNS subdomain.
fn is_name(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 253
        && name.starts_with(alphanumeric)
        && name.ends_with(alphanumeric)
        && name.chars().all(|c| alphanumeric(c) || c == '-' || c == '.')
}

fn invalid(field: String, reason: impl Into<String>) -> InvalidPolicy {
    InvalidPolicy { field, reason: reason.into() }
}

fn check_rules(rules: &[EgressRule]) -> Result<(), InvalidPolicy> {
    if rules.len() > RULES {
        return Err(invalid("spec.egress.rules".to_owned(), format!("at most {RULES} rules")));
    }
    let mut names = BTreeSet::new();
    for (index, rule) in rules.iter().enumerate() {
        let field = |name: &str| format!("spec.egress.rules[{index}]{name}");
        if rule.name.is_empty() || !names.insert(&rule.name) {
            return Err(invalid(field(".name"), "every rule needs a name of its own"));
        }
        check_rule(rule, field)?;
    }
    Ok(())
}

/// Refuses what would have no effect.
fn check_rule(rule: &EgressRule, field: impl Fn(&str) -> String) -> Result<(), InvalidPolicy> {
    let lists = [
        (".hosts", rule.hosts.len()),
        (".cidrs", rule.cidrs.len()),
        (".ports", rule.ports.len()),
        (".private", rule.private.len()),
    ];
    if let Some((name, _)) = lists.iter().find(|(_, length)| *length > HOSTS) {
        return Err(invalid(field(name), format!("at most {HOSTS} entries")));
    }
    match (rule.any, rule.hosts.is_empty(), rule.cidrs.is_empty()) {
        (false, true, true) => {
            return Err(invalid(field(""), "matches nothing: it needs `hosts`, `cidrs` or `any: true`"));
        }
        (true, false, _) => return Err(invalid(field(".hosts"), "`any: true` covers every host already")),
        _ => {}
    }
    let denies = rule.decision == Decision::Deny;
    if denies && !rule.private.is_empty() {
        return Err(invalid(field(".private"), "has no effect in a rule that denies"));
    }
    if denies && !rule.protocol.is_auto() {
        return Err(invalid(field(".protocol"), "has no effect in a rule that denies"));
    }
    if rule.plaintext && !rule.protocol.is_auto() {
        return Err(invalid(field(".plaintext"), "has no effect with `protocol: TCP`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(spec: &str) -> Result<Level, String> {
        let text = format!(
            r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy",
                "metadata": {{"name": "p", "namespace": "n", "labels": {{}}}}, "spec": {spec}}}"#
        );
        let object: PolicyObject = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        object.into_level(Authority::Namespace).map_err(|error| error.to_string())
    }

    fn rule(fields: &str) -> String {
        format!(r#"{{"egress": {{"rules": [{{"name": "a", {fields}}}]}}}}"#)
    }

    #[test]
    fn policy_is_a_level() {
        let found = level(&rule(r#""hosts": ["a.example"], "ports": [80, "8000-8080"], "plaintext": true"#));
        let found = found.unwrap();
        assert_eq!((found.name.as_str(), found.mode), ("p", Mode::Enforce));
        assert_eq!(found.egress.unwrap().rules.len(), 1);
        let observes = level(r#"{"mode": "Observe"}"#).unwrap();
        assert_eq!((observes.mode, observes.egress), (Mode::Observe, None));
    }

    #[test]
    fn name_is_that_of_an_object() {
        for name in ["a", "a-b.c1"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "--allow", "a-", "A", "a b", "a\n", &"a".repeat(254)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn field_that_is_unknown_or_has_no_effect_is_refused_by_name() {
        let many = format!("[{}]", vec![r#""a.example""#; HOSTS + 1].join(","));
        let rules = vec![r#"{"name": "a", "any": true}"#; RULES + 1].join(",");
        for (spec, expected) in [
            (r#"{"scanner": {}}"#.to_owned(), "unknown field `scanner`"),
            (r#"{"mode": "Learn"}"#.to_owned(), "unknown variant `Learn`"),
            (rule(r#""credentials": []"#), "unknown field `credentials`"),
            (rule(r#""ports": [1]"#), "spec.egress.rules[0]: matches nothing"),
            (rule(r#""any": true, "hosts": ["a.example"]"#), "spec.egress.rules[0].hosts: "),
            (rule(&format!(r#""hosts": {many}"#)), "spec.egress.rules[0].hosts: at most 64"),
            (
                rule(r#""any": true, "decision": "Deny", "private": ["10.0.0.0/8"]"#),
                "rules[0].private: has no",
            ),
            (rule(r#""any": true, "decision": "Deny", "protocol": "TCP""#), "rules[0].protocol: has no"),
            (rule(r#""any": true, "plaintext": true, "protocol": "TCP""#), "rules[0].plaintext: has no"),
            (format!(r#"{{"egress": {{"rules": [{rules}]}}}}"#), "spec.egress.rules: at most 256"),
            (
                r#"{"egress": {"rules": [{"name": "a", "any": true}, {"name": "a", "any": true}]}}"#
                    .to_owned(),
                "spec.egress.rules[1].name: ",
            ),
            (r#"{"egress": {"rules": [{"name": "", "any": true}]}}"#.to_owned(), "rules[0].name: "),
        ] {
            let error = level(&spec).unwrap_err();
            assert!(error.contains(expected), "{spec}: {error}");
        }
    }
}
