//! The rules by which a webhook or a policy selects requests.

use serde_json::Value;

use crate::selector::LabelSelector;

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// As in rules and reviews.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// Group, version and plural of what a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) plural: &'a str,
    /// Empty for the objects themselves.
    pub(crate) subresource: &'a str,
    /// True if the objects are in namespaces.
    pub(crate) namespaced: bool,
}

/// One rule.
#[derive(Debug, Default)]
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: String,
    /// Names of objects; an empty list allows any.
    names: Vec<String>,
}

impl Rule {
    pub(crate) fn read(rule: &Value) -> Rule {
        let texts = |field: &str| {
            let texts = rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        Rule {
            operations: texts("operations"),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: texts("resources"),
            scope: rule["scope"].as_str().unwrap_or("*").to_owned(),
            names: texts("resourceNames"),
        }
    }

    /// Returns true if a request matches.
    pub(crate) fn matches(&self, operation: Operation, subject: Subject<'_>, name: &str) -> bool {
        let has = |list: &[String], text: &str| list.iter().any(|item| item == "*" || item == text);
        let in_scope = match self.scope.as_str() {
            "Namespaced" => subject.namespaced,
            "Cluster" => !subject.namespaced,
            _ => true,
        };
        in_scope
            && has(&self.operations, operation.name())
            && has(&self.groups, subject.group)
            && has(&self.versions, subject.version)
            && self.resources.iter().any(|resource| is_resource(resource, subject))
            && (self.names.is_empty() || self.names.iter().any(|own| own == name))
    }
}

/// `pods`, `pods/log`, `pods/*`, `*/scale`, `*` or `*/*`.
fn is_resource(pattern: &str, subject: Subject<'_>) -> bool {
    let (plural, subresource) = pattern.split_once('/').unwrap_or((pattern, ""));
    let is = |pattern: &str, text: &str| pattern == "*" || pattern == text;
    is(plural, subject.plural) && is(subresource, subject.subresource)
}

/// Reads a selector that was checked when its object was stored. One that cannot be read selects everything, so that nothing
/// is left unchecked.
pub(crate) fn selector(selector: &Value) -> LabelSelector {
    LabelSelector::from_object(selector).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_match_as_in_kubernetes() {
        let pods = Subject { group: "", version: "v1", plural: "pods", subresource: "", namespaced: true };
        let log = Subject { subresource: "exec", ..pods };
        let nodes = Subject { plural: "nodes", namespaced: false, ..pods };
        let scale = Subject { group: "apps", plural: "deployments", subresource: "scale", ..pods };
        let matches = |resources: Value, subject: Subject<'_>| {
            let rule = Rule::read(
                &json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["v1"], "resources": resources}),
            );
            rule.matches(Operation::Connect, subject, "x")
        };
        for (resources, expected) in [
            (json!(["pods"]), [true, false, false, false]),
            (json!(["pods/*"]), [true, true, false, false]),
            (json!(["pods/exec"]), [false, true, false, false]),
            (json!(["*"]), [true, false, true, false]),
            (json!(["*/*"]), [true, true, true, true]),
            (json!(["*/scale", "nodes"]), [false, false, true, true]),
            (json!([]), [false, false, false, false]),
        ] {
            assert_eq!(
                [pods, log, nodes, scale].map(|subject| matches(resources.clone(), subject)),
                expected
            );
        }
        let mut rule = json!({"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["*"], "scope": "Cluster"});
        let is = |rule: &Value, operation, subject| Rule::read(rule).matches(operation, subject, "x");
        assert!(is(&rule, Operation::Update, nodes) && !is(&rule, Operation::Delete, nodes));
        assert!(!is(&rule, Operation::Create, pods));
        rule["scope"] = "Namespaced".into();
        assert!(is(&rule, Operation::Create, pods) && !is(&rule, Operation::Create, nodes));
        assert!(!is(&rule, Operation::Create, Subject { group: "apps", ..pods }));
        assert!(!is(&rule, Operation::Create, Subject { version: "v2", ..pods }));
        rule["resourceNames"] = json!(["y"]);
        assert!(!is(&rule, Operation::Create, pods));
    }
}
