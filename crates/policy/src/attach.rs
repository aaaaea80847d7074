//! To which sandboxes a policy applies.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

type Labels = BTreeMap<String, String>;

/// Sandboxes to which a policy applies: those that match every field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppliesTo {
    /// Labels of the namespace. For a cluster policy only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
    /// Labels of the Sandbox; for a Pod without a Sandbox, its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Names of templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<String>,
    /// Names of Sandboxes. For a policy of a namespace only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandboxes: Vec<String>,
}

/// Selects labels as Kubernetes does. Without a requirement it selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// Labels with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: Labels,
    /// Further requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// Requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Key of the label.
    pub key: String,
    /// How the label is compared.
    pub operator: Operator,
    /// Values, for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl Selector {
    /// Returns true if the labels meet every requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        let meets = |requirement: &Requirement| {
            let found = labels.get(&requirement.key);
            let listed = found.is_some_and(|value| requirement.values.contains(value));
            match requirement.operator {
                Operator::In => listed,
                Operator::NotIn => !listed,
                Operator::Exists => found.is_some(),
                Operator::DoesNotExist => found.is_none(),
            }
        };
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(meets)
    }

    /// Returns the first requirement that has no meaning, by its place, and what would be right.
    pub(crate) fn mistake(&self) -> Option<(String, &'static str)> {
        let wrong = |requirement: &Requirement| match requirement.operator {
            Operator::In | Operator::NotIn if requirement.values.is_empty() => {
                Some("`In` and `NotIn` need values")
            }
            Operator::Exists | Operator::DoesNotExist if !requirement.values.is_empty() => {
                Some("`Exists` and `DoesNotExist` have no values")
            }
            _ => None,
        };
        self.match_expressions.iter().enumerate().find_map(|(index, requirement)| {
            wrong(requirement).map(|why| (format!(".matchExpressions[{index}].values"), why))
        })
    }
}

/// Facts about a sandbox by which policies are attached to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// Namespace.
    pub namespace: String,
    /// Labels of the namespace.
    pub namespace_labels: Labels,
    /// Name of the Sandbox, if there is one.
    pub sandbox: Option<String>,
    /// Labels of the Sandbox; of a Pod without a Sandbox, its own.
    pub labels: Labels,
    /// Name of the template, if there is one.
    pub template: Option<String>,
    /// Policies that the template's annotation names.
    pub by_template: BTreeSet<String>,
    /// Policies that the annotation of the Sandbox, or of its claim, names.
    pub by_claim: BTreeSet<String>,
}

/// Returns the names in the value of the annotation `policy.hutch.dev/policies`, which are joined by commas.
pub fn policy_names(value: &str) -> BTreeSet<String> {
    value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

impl AppliesTo {
    /// Returns true if the sandbox matches every field.
    pub fn matches(&self, subject: &Subject) -> bool {
        let listed = |names: &[String], name: &Option<String>| {
            names.is_empty() || name.as_ref().is_some_and(|name| names.contains(name))
        };
        let selects = |selector: &Option<Selector>, labels: &Labels| {
            selector.as_ref().is_none_or(|selector| selector.matches(labels))
        };
        selects(&self.namespace_selector, &subject.namespace_labels)
            && selects(&self.selector, &subject.labels)
            && listed(&self.templates, &subject.template)
            && listed(&self.sandboxes, &subject.sandbox)
    }
}

/// Sandboxes in a rule: those that match every field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxTarget {
    /// Name of the Sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of the Sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Labels of its namespace. Without it, the namespace is that of the sandbox that connects. For a cluster policy only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
}

impl SandboxTarget {
    /// Returns true if a sandbox matches every field, for one of the namespace `from`.
    pub(crate) fn matches(&self, from: &str, to: &Subject) -> bool {
        let namespace = match &self.namespace_selector {
            None => to.namespace == from,
            Some(selector) => selector.matches(&to.namespace_labels),
        };
        namespace
            && self.name.as_ref().is_none_or(|name| to.sandbox.as_ref() == Some(name))
            && self.selector.as_ref().is_none_or(|selector| selector.matches(&to.labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn selector_follows_kubernetes() {
        let selects = |operator: &str, key: &str, values: &str| {
            let text = format!(
                r#"{{"matchExpressions": [{{"key": "{key}", "operator": "{operator}", "values": {values}}}]}}"#
            );
            let selector: Selector = serde_json::from_str(&text).unwrap();
            selector.matches(&labels(&[("a", "1")]))
        };
        assert!(selects("In", "a", r#"["1", "2"]"#) && !selects("In", "a", r#"["2"]"#));
        assert!(!selects("In", "b", r#"["1"]"#));
        assert!(selects("NotIn", "a", r#"["2"]"#) && !selects("NotIn", "a", r#"["1"]"#));
        assert!(selects("NotIn", "b", r#"["1"]"#));
        assert!(selects("Exists", "a", "[]") && !selects("Exists", "b", "[]"));
        assert!(!selects("DoesNotExist", "a", "[]") && selects("DoesNotExist", "b", "[]"));
    }
}
