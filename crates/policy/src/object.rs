//! Policy objects, as they stand in files and in the API server.

mod effect;
mod reach;
mod requests;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::address::{is_mapped, is_never_dialed, opens_nothing};
use crate::attach::{AppliesTo, SandboxTarget, Selector, Subject};
use crate::budget::Budget;
use crate::credential::{self, Credential};
use crate::decide::{Authority, Level, Mode, OnUnsupported};
use crate::destination::Decision;
use crate::egress::Egress;
use crate::files::FileRule;
use crate::http::PathPattern;
use crate::rule::{EgressRule, Tls};
use crate::scanner::{Door, ScannerRules};
pub use effect::{closed_ranges, useless_requests};
use requests::{check_conditions, check_effect, check_expressions, check_media_types, check_requests};

/// Maximum rules of a policy.
pub(crate) const RULES: usize = 256;
/// Maximum hosts of a rule, and maximum ranges in each of its lists.
pub(crate) const HOSTS: usize = 64;
/// Maximum entries about requests of a rule, and queries or headers of each.
pub(crate) const ENTRIES: usize = 16;

/// Maximum bytes of the spec of a new policy, as the JSON that is written.
pub const POLICY_BYTES: usize = 64 << 10;
/// Maximum bytes of a spec with all that was left out, as it is kept. What is written may become longer, but not as much.
const KEPT: usize = 2 * POLICY_BYTES;

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

/// Metadata. Only the name has a meaning here; the others are those of any object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    applies_to: Option<AppliesTo>,
    #[serde(default)]
    mode: Mode,
    #[serde(default, skip_serializing_if = "OnUnsupported::is_default")]
    on_unsupported: OnUnsupported,
    #[serde(default, deserialize_with = "crate::time::read", skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    egress: Option<Egress>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<FileRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scanner: Option<ScannerRules>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    credentials: Vec<Credential>,
}

/// Reason why a policy is invalid, with the path of its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidPolicy {
    /// Path of the field.
    pub field: String,
    /// Reason.
    pub reason: String,
}

impl PolicyObject {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Returns the authority by which the policy applies to a sandbox; `None` if it does not apply. `namespace` is that of
    /// the policy. Of several authorities the highest counts: a claim that names a policy which applies anyway changes
    /// nothing.
    pub fn authority_over(&self, subject: &Subject, namespace: Option<&str>) -> Option<Authority> {
        let matches = self.spec.applies_to.as_ref().is_some_and(|applies| applies.matches(subject));
        match self.kind {
            Kind::ClusterSandboxPolicy => matches.then_some(Authority::Cluster),
            Kind::SandboxPolicy if namespace != Some(subject.namespace.as_str()) => None,
            Kind::SandboxPolicy if matches => Some(Authority::Namespace),
            Kind::SandboxPolicy if subject.by_template.contains(self.name()) => Some(Authority::Template),
            Kind::SandboxPolicy if subject.by_claim.contains(self.name()) => Some(Authority::Claim),
            Kind::SandboxPolicy => None,
        }
    }

    /// Returns true if the policy has egress rules.
    pub fn has_egress(&self) -> bool {
        self.spec.egress.is_some()
    }

    /// Returns the time from which on the policy does not apply.
    pub fn expires(&self) -> Option<Timestamp> {
        self.spec.expires
    }

    /// Returns the egress rules, with those that no longer count.
    pub fn rules(&self) -> &[EgressRule] {
        self.spec.egress.as_ref().map_or(&[], |egress| egress.rules.as_slice())
    }

    /// Returns the sandboxes to which the policy applies, without those of annotations.
    pub fn applies_to(&self) -> Option<&AppliesTo> {
        self.spec.applies_to.as_ref()
    }

    /// Returns the names of the providers of its credentials.
    pub fn providers(&self) -> impl Iterator<Item = &str> {
        self.spec.credentials.iter().filter_map(|credential| credential.provider.as_deref())
    }

    /// Checks the policy.
    ///
    /// # Errors
    /// The first field that is invalid or has no effect.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        if !is_name(&self.metadata.name) {
            let reason =
                "must be lower-case letters, digits, `-` and `.`, and begin and end with a letter or digit";
            return Err(invalid("metadata.name".to_owned(), reason));
        }
        if let Some(applies) = &self.spec.applies_to {
            check_applies_to(applies, self.kind)?;
        }
        self.check_files()?;
        if self.spec.on_unsupported == OnUnsupported::Report && self.fields_of_server().is_empty() {
            let reason = "`Report` has an effect only with `files`, and with `logs`, `exec` or `downloads` of `scanner`";
            return Err(invalid("spec.onUnsupported".to_owned(), reason));
        }
        if let Some((field, why)) = self.spec.scanner.as_ref().and_then(ScannerRules::mistake) {
            return Err(invalid(format!("spec.scanner{field}"), why));
        }
        self.check_credentials()?;
        let Some(egress) = &self.spec.egress else { return Ok(()) };
        if let Some((field, why)) = egress.budget.as_ref().and_then(Budget::mistake) {
            return Err(invalid(format!("spec.egress.budget{field}"), why));
        }
        check_rules(&egress.rules, self.kind)
    }

    /// Returns true if the policy applies only to the sandboxes of which an annotation names it.
    pub fn needs_annotation(&self) -> bool {
        self.kind == Kind::SandboxPolicy && self.spec.applies_to.is_none()
    }

    /// Checks a policy that is new or changed: also for what has no effect, such as ranges that open nothing and conditions on
    /// fields that do not exist, which a stored one may have. Its other rules, files and scanner count on.
    ///
    /// # Errors
    /// As [`PolicyObject::check`].
    pub fn check_new(&self) -> Result<(), InvalidPolicy> {
        self.check()?;
        if let Some(index) = self.spec.files.iter().position(|rule| rule.path.is_pattern()) {
            let reason = "is the path of one file or folder: `*` and `?` stand for nothing else there";
            return Err(invalid(format!("spec.files[{index}].path"), reason));
        }
        if self.rules().is_empty() && self.spec.egress.as_ref().is_some_and(|egress| egress.budget.is_some())
        {
            let reason = "has no effect without `rules`, since nothing is allowed";
            return Err(invalid("spec.egress.budget".to_owned(), reason));
        }
        for (index, credential) in self.spec.credentials.iter().enumerate() {
            if let Some(place) = credential.binding.paths.iter().position(PathPattern::has_query) {
                return Err(invalid(
                    format!("spec.credentials[{index}].paths[{place}]"),
                    PathPattern::WITH_QUERY,
                ));
            }
        }
        for (index, rule) in self.rules().iter().enumerate() {
            let opens = rule.decision == Decision::Allow;
            let cidrs = rule.cidrs.iter();
            let cidrs = cidrs.map(|range| is_never_dialed(range).filter(|_| opens || is_mapped(range)));
            let private = rule.private.iter().map(opens_nothing);
            let closed = cidrs.zip(&rule.cidrs).enumerate().map(|(place, found)| ("cidrs", place, found));
            let private = private.zip(&rule.private).enumerate();
            let closed = closed.chain(private.map(|(place, found)| ("private", place, found)));
            for (list, place, (why, range)) in closed {
                let Some(why) = why else { continue };
                let field = format!("spec.egress.rules[{index}].{list}[{place}]");
                let effect = if opens { "opens" } else { "denies" };
                return Err(invalid(field, format!("{range} {effect} nothing: {why}")));
            }
            let field = |name: &str| format!("spec.egress.rules[{index}]{name}");
            check_effect(rule, &field)?;
            check_media_types(rule, &field)?;
            check_conditions(rule, &field)?;
        }
        Ok(())
    }

    /// Returns the rules for files.
    pub fn files(&self) -> &[FileRule] {
        &self.spec.files
    }

    /// Returns true if the policy applies also where its [`PolicyObject::fields_of_server`] are not enforced. One that only
    /// observes closes nothing.
    pub fn reports_unsupported(&self) -> bool {
        self.spec.on_unsupported == OnUnsupported::Report || self.spec.mode == Mode::Observe
    }

    /// Returns the given fields that the gateway of a cluster does not enforce. `hutch up` enforces all of them.
    pub fn fields_of_server(&self) -> Vec<String> {
        let files = (!self.spec.files.is_empty()).then(|| "spec.files".to_owned());
        let doors = self.scanned_doors().map(|door| format!("spec.scanner.{}", door.name()));
        files.into_iter().chain(doors).collect()
    }

    /// Returns the doors of output at which `hutch up` scans.
    pub fn scanned_doors(&self) -> impl Iterator<Item = Door> {
        let scanner = self.scanner();
        Door::ALL.into_iter().filter(move |door| scanner.is_some_and(|scanner| scanner.at(*door).is_some()))
    }

    /// Returns the scanner.
    pub fn scanner(&self) -> Option<&ScannerRules> {
        self.spec.scanner.as_ref()
    }

    fn check_credentials(&self) -> Result<(), InvalidPolicy> {
        let Spec { credentials, mode, .. } = &self.spec;
        let (administers, observes) = (self.kind == Kind::ClusterSandboxPolicy, *mode == Mode::Observe);
        credential::check_all(credentials, administers, observes).map_err(|(field, why)| invalid(field, why))
    }

    fn check_files(&self) -> Result<(), InvalidPolicy> {
        let files = &self.spec.files;
        if files.len() > HOSTS {
            return Err(invalid("spec.files".to_owned(), format!("at most {HOSTS} entries")));
        }
        if self.spec.mode == Mode::Observe && !files.is_empty() {
            return Err(invalid("spec.files".to_owned(), "has no effect with `mode: Observe`"));
        }
        let mut paths = BTreeSet::new();
        match files.iter().position(|rule| !paths.insert(&rule.path)) {
            Some(index) => Err(invalid(format!("spec.files[{index}].path"), "is there twice")),
            None => Ok(()),
        }
    }

    /// Refuses what a server cannot enforce, and what takes too much of its memory.
    ///
    /// # Errors
    /// The first such field.
    pub fn check_for_server(&self) -> Result<(), InvalidPolicy> {
        let bytes = serde_json::to_vec(&self.spec).map_or(usize::MAX, |spec| spec.len());
        if bytes > KEPT {
            return Err(invalid("spec".to_owned(), format!("{bytes} bytes; at most {KEPT}")));
        }
        credential::check_for_server(&self.spec.credentials).map_err(|(field, why)| invalid(field, why))?;
        for (index, rule) in self.spec.files.iter().enumerate() {
            if let Some(reserved) = rule.path.reserved() {
                let reason = format!("nothing is closed at or below {reserved}: each container has its own");
                return Err(invalid(format!("spec.files[{index}].path"), reason));
            }
        }
        Ok(())
    }

    /// Returns the level that the policy is, for this authority.
    ///
    /// # Errors
    /// As [`PolicyObject::check_new`].
    pub fn into_level(self, authority: Authority) -> Result<Level, InvalidPolicy> {
        self.check_new()?;
        let Spec { mode, egress, scanner, credentials, .. } = self.spec;
        Ok(Level { authority, name: self.metadata.name, mode, egress, scanner, credentials })
    }

    /// Returns the level that the policy is at a time, for this authority: without the rules that no longer count, and without
    /// credentials for others than it selects, although an annotation names it. For a policy that was checked.
    pub(crate) fn level_at(&self, authority: Authority, now: Timestamp) -> Level {
        let mut egress = self.spec.egress.clone();
        if let Some(egress) = &mut egress {
            egress.rules.retain(|rule| rule.expires.is_none_or(|expires| now < expires));
        }
        let (name, mode, scanner) = (self.metadata.name.clone(), self.spec.mode, self.spec.scanner.clone());
        let named = matches!(authority, Authority::Claim | Authority::Template);
        let credentials = match named && self.spec.applies_to.is_some() {
            true => Vec::new(),
            false => self.spec.credentials.clone(),
        };
        Level { authority, name, mode, egress, scanner, credentials }
    }

    /// Refuses fields that have an effect only on a server, for a command that reads a file.
    ///
    /// # Errors
    /// The first such field.
    pub fn check_for_command(&self) -> Result<(), InvalidPolicy> {
        if self.spec.expires.is_some() {
            return Err(invalid("spec.expires".to_owned(), "has an effect only on a server"));
        }
        if let Some(door) = self.scanned_doors().next().filter(|_| !self.reports_unsupported()) {
            let reason = "has an effect only in `hutch up`; the proxy scans traffic";
            return Err(invalid(format!("spec.scanner.{}", door.name()), reason));
        }
        credential::check_for_command(&self.spec.credentials).map_err(|(field, why)| invalid(field, why))?;
        for (index, rule) in self.rules().iter().enumerate() {
            let field = |name: &str| format!("spec.egress.rules[{index}].{name}");
            if rule.expires.is_some() {
                return Err(invalid(field("expires"), "has an effect only on a server"));
            }
            if !rule.sandboxes.is_empty() {
                return Err(invalid(field("sandboxes"), "a command has no other sandboxes"));
            }
        }
        Ok(())
    }
}

fn check_applies_to(applies: &AppliesTo, kind: Kind) -> Result<(), InvalidPolicy> {
    let field = |name: &str| format!("spec.appliesTo.{name}");
    if kind == Kind::SandboxPolicy && applies.namespace_selector.is_some() {
        return Err(invalid(field("namespaceSelector"), "a SandboxPolicy applies to its own namespace"));
    }
    if kind == Kind::ClusterSandboxPolicy && !applies.sandboxes.is_empty() {
        return Err(invalid(field("sandboxes"), "a name means one Sandbox only within a namespace"));
    }
    for (name, list) in [("templates", &applies.templates), ("sandboxes", &applies.sandboxes)] {
        if list.len() > HOSTS {
            return Err(invalid(field(name), format!("at most {HOSTS} entries")));
        }
    }
    let selectors = [("namespaceSelector", &applies.namespace_selector), ("selector", &applies.selector)];
    for (name, selector) in selectors {
        if let Some((place, why)) = selector.as_ref().and_then(Selector::mistake) {
            return Err(invalid(field(&format!("{name}{place}")), why));
        }
    }
    Ok(())
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

fn check_rules(rules: &[EgressRule], kind: Kind) -> Result<(), InvalidPolicy> {
    if rules.len() > RULES {
        return Err(invalid("spec.egress.rules".to_owned(), format!("at most {RULES} rules")));
    }
    let mut names = BTreeSet::new();
    for (index, rule) in rules.iter().enumerate() {
        let field = |name: &str| format!("spec.egress.rules[{index}]{name}");
        if rule.name.is_empty() || !names.insert(&rule.name) {
            return Err(invalid(field(".name"), "every rule needs a name of its own"));
        }
        match rule.sandboxes.is_empty() {
            true => check_rule(rule, field)?,
            false => check_rule_for_sandboxes(rule, kind, field)?,
        }
    }
    check_expressions(rules)
}

/// Checks a rule about other Sandboxes, which is about nothing else.
fn check_rule_for_sandboxes(
    rule: &EgressRule,
    kind: Kind,
    field: impl Fn(&str) -> String,
) -> Result<(), InvalidPolicy> {
    let others = [
        (".hosts", !rule.hosts.is_empty()),
        (".any", rule.any),
        (".cidrs", !rule.cidrs.is_empty()),
        (".private", !rule.private.is_empty()),
        (".protocol", !rule.protocol.is_auto()),
        (".plaintext", rule.plaintext),
        (".tls", rule.tls != Tls::Auto),
        (".http", !rule.http.is_empty()),
        (".mcp", !rule.mcp.is_empty()),
        (".when", rule.when.is_some()),
        (".credentials", rule.credentials.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, set)| *set) {
        return Err(invalid(field(name), "has no effect in a rule about `sandboxes`; write another rule"));
    }
    if rule.ports.is_empty() {
        return Err(invalid(field(".ports"), "a rule about `sandboxes` needs the ports that it opens"));
    }
    for (name, length) in [(".sandboxes", rule.sandboxes.len()), (".ports", rule.ports.len())] {
        if length > HOSTS {
            return Err(invalid(field(name), format!("at most {HOSTS} entries")));
        }
    }
    for (index, target) in rule.sandboxes.iter().enumerate() {
        check_target(target, kind, |name| field(&format!(".sandboxes[{index}]{name}")))?;
    }
    Ok(())
}

fn check_target(
    target: &SandboxTarget,
    kind: Kind,
    field: impl Fn(&str) -> String,
) -> Result<(), InvalidPolicy> {
    if target.name.is_none() && target.selector.is_none() {
        return Err(invalid(field(""), "needs `name` or `selector`; `selector: {}` is every Sandbox"));
    }
    if kind == Kind::SandboxPolicy && target.namespace_selector.is_some() {
        let reason = "only a ClusterSandboxPolicy opens Sandboxes of other namespaces";
        return Err(invalid(field(".namespaceSelector"), reason));
    }
    if target.name.as_ref().is_some_and(|name| !is_name(name)) {
        return Err(invalid(field(".name"), "is not the name of a Sandbox"));
    }
    let selectors = [(".namespaceSelector", &target.namespace_selector), (".selector", &target.selector)];
    for (name, selector) in selectors {
        if let Some((place, why)) = selector.as_ref().and_then(Selector::mistake) {
            return Err(invalid(field(&format!("{name}{place}")), why));
        }
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
            return Err(invalid(
                field(""),
                "matches nothing: it needs `hosts`, `cidrs`, `any: true` or `sandboxes`",
            ));
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
    check_requests(rule, &field)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::attach::policy_names;

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
    fn server_refuses_files_of_the_kernel_and_of_its_runtime() {
        for (path, reserved) in [
            ("/workspace/.env", None),
            ("/process", None),
            ("/proc", Some("/proc")),
            ("/proc/self/environ", Some("/proc")),
            ("/dev/shm/x", Some("/dev")),
            ("/.hutch/sandboxd", Some("/.hutch")),
        ] {
            let object =
                policy("SandboxPolicy", &format!(r#"{{"files": [{{"path": "{path}", "access": "None"}}]}}"#));
            let found = object.check_for_server().map_err(|error| error.to_string());
            match reserved {
                None => assert_eq!(found, Ok(())),
                Some(reserved) => {
                    let error = found.unwrap_err();
                    assert!(error.starts_with("spec.files[0].path: ") && error.contains(reserved), "{error}");
                }
            }
        }
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

    fn policy(kind: &str, spec: &str) -> PolicyObject {
        let text = format!(
            r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "{kind}", "metadata": {{"name": "p"}}, "spec": {spec}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn subject() -> Subject {
        Subject {
            namespace: "team".into(),
            namespace_labels: [("env".to_owned(), "prod".to_owned())].into(),
            sandbox: Some("a".into()),
            labels: [("app".to_owned(), "agent".to_owned())].into(),
            template: Some("python".into()),
            ..Subject::default()
        }
    }

    #[test]
    fn rule_about_requests_that_another_one_allows_anyway_is_named() {
        let reads = |more: &str| format!(r#"{{"name": "reads", "hosts": ["*.a.example"], {more}}}"#);
        let http = r#""http": [{"methods": ["GET"]}]"#;
        for (rules, expected) in [
            (reads(http), None),
            (
                format!(r#"{}, {{"name": "all", "any": true}}"#, reads(http)),
                Some(r#"rule "all" allows all requests to *.a.example:443"#),
            ),
            (
                format!(r#"{}, {{"name": "pass", "any": true, "tls": "Passthrough"}}"#, reads(http)),
                Some(r#"rule "pass" allows"#),
            ),
            (format!(r#"{}, {{"name": "other", "any": true, "ports": [80]}}"#, reads(http)), None),
            (
                format!(r#"{}, {{"name": "all", "any": true}}"#, reads(r#""http": [{"decision": "Deny"}]"#)),
                None,
            ),
        ] {
            let spec = format!(r#"{{"egress": {{"rules": [{rules}]}}}}"#);
            let found = policy("SandboxPolicy", &spec).without_effect();
            let found: Vec<_> = found.iter().filter(|found| found.field.ends_with(".http")).collect();
            assert_eq!(found.len(), usize::from(expected.is_some()), "{rules}: {found:?}");
            assert!(expected.is_none_or(|part| found[0].reason.contains(part)), "{rules}: {found:?}");
        }
    }

    #[test]
    fn valid_field_without_effect_on_a_server_is_named() {
        let rules = r#""egress": {"rules": [{"name": "a", "any": true, "private": ["10.0.0.0/8", "127.0.0.1", "::1"]}]}"#;
        let found = |kind: &str, spec: &str| -> Vec<String> {
            policy(kind, spec).without_effect().iter().map(ToString::to_string).collect()
        };
        let of_namespace = found("SandboxPolicy", &format!(r#"{{"appliesTo": {{}}, {rules}}}"#));
        assert_eq!(of_namespace.len(), 2, "{of_namespace:?}");
        assert!(of_namespace[0].starts_with("spec.egress.rules[0].private[1]: 127.0.0.1/32 opens nothing"));
        assert_eq!(found("ClusterSandboxPolicy", &format!(r#"{{"appliesTo": {{}}, {rules}}}"#)), [""; 0]);
        let nobody = found("ClusterSandboxPolicy", &format!("{{{rules}}}"));
        assert!(nobody.len() == 1 && nobody[0].starts_with("spec.appliesTo: "), "{nobody:?}");
        for (rule, expected) in [
            (r#""cidrs": ["10.0.0.0/8", "8.8.8.8"]"#, &["spec.egress.rules[0].cidrs[0]: 10.0.0.0/8"][..]),
            (r#""cidrs": ["127.0.0.1", "192.168.1.0/24"]"#, &["cidrs[0]: 127.0.0.1/32", "cidrs[1]: 192.168"]),
            (
                r#""cidrs": ["10.1.0.0/16"], "private": ["10.1.2.0/24"]"#,
                &["cidrs[0]: 10.1.0.0/16 opens nothing"],
            ),
            (r#""cidrs": ["10.1.2.0/24", "fd00::1"], "private": ["10.1.0.0/16", "fc00::/7"]"#, &[]),
            (r#""cidrs": ["0.0.0.0/0", "64:ff9b::/96"]"#, &[]),
            (r#""cidrs": ["10.0.0.0/8"], "decision": "Deny""#, &[]),
        ] {
            let spec = format!(r#"{{"appliesTo": {{}}, "egress": {{"rules": [{{"name": "a", {rule}}}]}}}}"#);
            let found = found("ClusterSandboxPolicy", &spec);
            let all = expected.iter().zip(&found).all(|(expected, found)| found.contains(expected));
            assert!(all && found.len() == expected.len(), "{rule}: {found:?}");
        }
        assert!(policy("SandboxPolicy", "{}").needs_annotation());
        assert!(!policy("SandboxPolicy", r#"{"appliesTo": {}}"#).needs_annotation());
        assert!(!policy("ClusterSandboxPolicy", "{}").needs_annotation());
    }

    #[test]
    fn time_that_has_passed_and_credential_of_no_policy_are_named() {
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        let rules = r#"[
            {"name": "a", "any": true, "expires": "2026-05-31T00:00:00Z", "credentials": ["own", "other"]},
            {"name": "b", "any": true, "expires": "2026-06-02T00:00:00Z"}
        ]"#;
        let own = r#"[{"name": "own", "provider": "p", "hosts": ["a.example"], "env": "OWN"}]"#;
        let spec = |expires: &str| {
            format!(r#"{{"expires": "{expires}", "egress": {{"rules": {rules}}}, "credentials": {own}}}"#)
        };
        let ended = |expires: &str| -> Vec<String> {
            let policy = policy("SandboxPolicy", &spec(expires));
            policy.ended(now).iter().map(ToString::to_string).collect()
        };
        let rule = "spec.egress.rules[0].expires: 2026-05-31T00:00:00Z has passed: the rule does not count";
        assert_eq!(ended("2026-06-01T00:00:01Z"), [rule]);
        let whole = "spec.expires: 2026-06-01T00:00:00Z has passed: the policy applies to no sandbox";
        assert_eq!(ended("2026-06-01T00:00:00Z"), [whole, rule]);
        let policy = policy("SandboxPolicy", &spec("2026-06-01T00:00:00Z"));
        let others: Vec<_> = policy.other_credentials().collect();
        assert_eq!(others, [("spec.egress.rules[0].credentials[1]".to_owned(), "other")]);
    }

    #[test]
    fn policy_applies_to_what_matches_every_field() {
        for (spec, applies) in [
            ("{}", false),
            (r#"{"appliesTo": {}}"#, true),
            (r#"{"appliesTo": {"selector": {}}}"#, true),
            (r#"{"appliesTo": {"selector": {"matchLabels": {"app": "agent"}}}}"#, true),
            (r#"{"appliesTo": {"selector": {"matchLabels": {"app": "other"}}}}"#, false),
            (r#"{"appliesTo": {"templates": ["node", "python"]}}"#, true),
            (r#"{"appliesTo": {"templates": ["node"]}}"#, false),
            (r#"{"appliesTo": {"templates": ["python"], "selector": {"matchLabels": {"app": "x"}}}}"#, false),
        ] {
            let of = |kind: &str, namespace| policy(kind, spec).authority_over(&subject(), namespace);
            assert_eq!(of("SandboxPolicy", Some("team")), applies.then_some(Authority::Namespace), "{spec}");
            assert_eq!(of("SandboxPolicy", Some("other")), None, "{spec}");
            assert_eq!(of("ClusterSandboxPolicy", None), applies.then_some(Authority::Cluster), "{spec}");
        }
        let named = policy("SandboxPolicy", r#"{"appliesTo": {"sandboxes": ["a"]}}"#);
        assert_eq!(named.authority_over(&subject(), Some("team")), Some(Authority::Namespace));
        let other = Subject { sandbox: None, ..subject() };
        assert_eq!(named.authority_over(&other, Some("team")), None);
        let production = r#"{"appliesTo": {"namespaceSelector": {"matchLabels": {"env": "prod"}}}}"#;
        let production = policy("ClusterSandboxPolicy", production);
        assert_eq!(production.authority_over(&subject(), None), Some(Authority::Cluster));
        let elsewhere = Subject { namespace_labels: BTreeMap::new(), ..subject() };
        assert_eq!(production.authority_over(&elsewhere, None), None);
    }

    /// A template could name a policy for others, and its Sandboxes got the credentials.
    #[test]
    fn credentials_are_for_those_that_the_policy_selects() {
        let credential =
            r#""credentials": [{"name": "c", "provider": "p", "hosts": ["a.example"], "env": "C"}]"#;
        let count = |spec: &str, authority| {
            let policy = policy("SandboxPolicy", &format!("{{{spec}{credential}}}"));
            policy.level_at(authority, Timestamp::UNIX_EPOCH).credentials.len()
        };
        for authority in [Authority::Template, Authority::Claim] {
            assert_eq!(count("", authority), 1, "{authority:?}: it is for those that name it");
            assert_eq!(count(r#""appliesTo": {"sandboxes": ["x"]}, "#, authority), 0, "{authority:?}");
        }
        assert_eq!(count(r#""appliesTo": {"sandboxes": ["x"]}, "#, Authority::Namespace), 1);
    }

    #[test]
    fn policy_that_is_named_has_the_authority_of_who_names_it() {
        let named = policy("SandboxPolicy", "{}");
        let names = |value: &str| policy_names(value);
        assert_eq!(names(" a, p ,,b"), ["a", "b", "p"].map(str::to_owned).into());
        let by_claim = Subject { by_claim: names("p"), ..subject() };
        assert_eq!(named.authority_over(&by_claim, Some("team")), Some(Authority::Claim));
        let both = Subject { by_template: names("p"), ..by_claim.clone() };
        assert_eq!(named.authority_over(&both, Some("team")), Some(Authority::Template));
        assert_eq!(named.authority_over(&both, Some("other")), None);
        // Names are those of policies of the namespace.
        assert_eq!(policy("ClusterSandboxPolicy", "{}").authority_over(&both, None), None);
    }
}
