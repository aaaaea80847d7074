//! One rule of a Role or ClusterRole: what it allows, and what it covers of another rule.

use serde_json::{Map, Value};

use super::Action;

/// Everything: any verb, group, resource or path.
const ALL: &str = "*";

/// A rule, as `rules[]` of a Role or ClusterRole has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) resources: Vec<String>,
    pub(crate) names: Vec<String>,
    pub(crate) paths: Vec<String>,
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Rule {
    /// Reads one element of `rules`.
    pub(crate) fn read(value: &Value) -> Rule {
        Rule {
            verbs: texts(&value["verbs"]),
            groups: texts(&value["apiGroups"]),
            resources: texts(&value["resources"]),
            names: texts(&value["resourceNames"]),
            paths: texts(&value["nonResourceURLs"]),
        }
    }

    /// Reads `rules` of a Role or ClusterRole.
    pub(crate) fn all_of(role: &Value) -> Vec<Rule> {
        role["rules"].as_array().into_iter().flatten().map(Rule::read).collect()
    }

    /// The rule as an element of `rules`.
    pub(crate) fn to_value(&self) -> Value {
        let mut object = Map::new();
        object.insert("verbs".into(), self.verbs.clone().into());
        for (field, texts) in [
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.paths),
        ] {
            if !texts.is_empty() {
                object.insert(field.into(), texts.clone().into());
            }
        }
        object.into()
    }

    /// Returns true if the rule allows the action.
    pub(crate) fn allows(&self, action: &Action<'_>) -> bool {
        match *action {
            Action::Resource { verb, group, resource, subresource, name, .. } => {
                holds(&self.verbs, verb)
                    && holds(&self.groups, group)
                    && self.resources.iter().any(|own| matches_resource(own, resource, subresource))
                    && (self.names.is_empty() || self.names.iter().any(|own| own == name))
            }
            Action::Path { verb, path } => {
                holds(&self.verbs, verb) && self.paths.iter().any(|own| covers_path(own, path))
            }
        }
    }

    /// Splits the rule into rules of one verb, one resource and one name, or one verb and one path.
    fn split(&self) -> Vec<Rule> {
        let one = |text: &String| vec![text.clone()];
        let mut parts = Vec::new();
        for group in &self.groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part = Rule {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Rule::default()
                    };
                    if self.names.is_empty() {
                        parts.push(part);
                    } else {
                        parts.extend(self.names.iter().map(|name| Rule { names: one(name), ..part.clone() }));
                    }
                }
            }
        }
        for path in &self.paths {
            let with = |verb| Rule { verbs: one(verb), paths: one(path), ..Rule::default() };
            parts.extend(self.verbs.iter().map(with));
        }
        parts
    }

    /// Returns true if this rule allows all that a part from [`Rule::split`] allows.
    fn covers(&self, part: &Rule) -> bool {
        let all = |own: &[String], wanted: &[String]| wanted.iter().all(|text| own.contains(text));
        let any_or_all = |own: &[String], wanted: &[String]| has_all(own) || all(own, wanted);
        let resource = |wanted: &String| {
            let below = wanted.split_once('/').map(|(_, below)| format!("{ALL}/{below}"));
            self.resources.contains(wanted) || below.is_some_and(|below| self.resources.contains(&below))
        };
        let named = match (self.names.is_empty(), part.names.is_empty()) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => all(&self.names, &part.names),
        };
        any_or_all(&self.verbs, &part.verbs)
            && any_or_all(&self.groups, &part.groups)
            && (has_all(&self.resources) || part.resources.iter().all(resource))
            && named
            && part.paths.iter().all(|path| self.paths.iter().any(|own| covers_path(own, path)))
    }

    /// The rule in the form of an error message of Kubernetes.
    fn compact(&self) -> String {
        let fields = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.paths),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        let shown = fields.iter().filter(|(_, texts)| !texts.is_empty());
        let shown: Vec<String> = shown.map(|(name, texts)| format!("{name}:{}", quoted(texts))).collect();
        format!("{{{}}}", shown.join(", "))
    }
}

/// Texts as Go's `%q` writes a slice of them.
pub(crate) fn quoted(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

fn has_all(own: &[String]) -> bool {
    own.iter().any(|text| text == ALL)
}

/// Returns true if a list names this text or everything.
fn holds(own: &[String], wanted: &str) -> bool {
    own.iter().any(|text| text == ALL || text == wanted)
}

/// A resource of a rule is `pods`, `pods/log`, `*/log` or `*`.
fn matches_resource(own: &str, resource: &str, subresource: &str) -> bool {
    if own == ALL {
        return true;
    }
    match own.split_once('/') {
        None => subresource.is_empty() && own == resource,
        Some((parent, below)) => {
            !subresource.is_empty() && below == subresource && (parent == ALL || parent == resource)
        }
    }
}

/// A path of a rule is a path, or the start of paths with a star at its end.
fn covers_path(own: &str, path: &str) -> bool {
    own == path || own.ends_with('*') && path.starts_with(own.trim_end_matches('*'))
}

/// The parts of the wanted rules that the owned rules do not cover.
pub(crate) fn uncovered(owned: &[&Rule], wanted: &[Rule]) -> Vec<Rule> {
    let parts = wanted.iter().flat_map(Rule::split);
    parts.filter(|part| !owned.iter().any(|own| own.covers(part))).collect()
}

/// Missing parts as an error message lists them: verbs of the same resource in one line, lines sorted, each once.
pub(crate) fn summary(missing: &[Rule]) -> String {
    let mut compacted: Vec<Rule> = Vec::new();
    for part in missing {
        let same = compacted.iter_mut().find(|other| {
            part.paths.is_empty()
                && (&other.groups, &other.resources, &other.names)
                    == (&part.groups, &part.resources, &part.names)
        });
        match same {
            Some(other) => other.verbs.extend_from_slice(&part.verbs),
            None => compacted.push(part.clone()),
        }
    }
    let mut lines: Vec<String> = compacted.iter().map(Rule::compact).collect();
    lines.sort();
    lines.dedup();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        Rule::read(
            &json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names}),
        )
    }

    fn action<'a>(verb: &'a str, resource: &'a str, subresource: &'a str, name: &'a str) -> Action<'a> {
        Action::Resource { verb, group: "", resource, subresource, namespace: "default", name }
    }

    #[test]
    fn rule_allows_what_its_fields_name() {
        let plain = rule(&["get"], &[""], &["pods"], &[]);
        for (own, asked, allowed) in [
            (&plain, action("get", "pods", "", "x"), true),
            (&plain, action("list", "pods", "", ""), false),
            (&plain, action("get", "pods", "log", "x"), false),
            (&plain, action("get", "services", "", "x"), false),
            (&rule(&["*"], &["*"], &["*"], &[]), action("get", "pods", "log", "x"), true),
            (&rule(&["get"], &[""], &["pods/log"], &[]), action("get", "pods", "log", "x"), true),
            (&rule(&["get"], &[""], &["pods/log"], &[]), action("get", "pods", "", "x"), false),
            (&rule(&["get"], &[""], &["*/log"], &[]), action("get", "pods", "log", "x"), true),
            (&rule(&["get"], &[""], &["*/log"], &[]), action("get", "pods", "exec", "x"), false),
            (&rule(&["get"], &["apps"], &["pods"], &[]), action("get", "pods", "", "x"), false),
            (&rule(&["get"], &[""], &["pods"], &["y"]), action("get", "pods", "", "x"), false),
            (&rule(&["get"], &[""], &["pods"], &["x"]), action("get", "pods", "", "x"), true),
            (&rule(&["list"], &[""], &["pods"], &["x"]), action("list", "pods", "", ""), false),
        ] {
            assert_eq!(own.allows(&asked), allowed, "{own:?} {asked:?}");
        }
    }

    #[test]
    fn path_with_a_star_allows_what_starts_with_it() {
        let own = Rule::read(&json!({"verbs": ["get"], "nonResourceURLs": ["/api/*", "/version"]}));
        for (path, allowed) in
            [("/api/v1", true), ("/api/", true), ("/api", false), ("/version", true), ("/version/", false)]
        {
            assert_eq!(own.allows(&Action::Path { verb: "get", path }), allowed, "{path}");
            assert!(!own.allows(&Action::Path { verb: "post", path }), "{path}");
        }
        let any = Rule::read(&json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
        assert!(any.allows(&Action::Path { verb: "post", path: "/metrics" }));
    }

    #[test]
    fn missing_parts_are_listed_by_resource() {
        let owned = rule(&["get"], &[""], &["pods", "*/status"], &[]);
        let wanted = [
            rule(&["get", "list", "watch"], &[""], &["pods", "pods/status", "secrets"], &[]),
            rule(&["get"], &[""], &["configmaps"], &["a", "b"]),
            Rule::read(&json!({"verbs": ["get", "post"], "nonResourceURLs": ["/metrics"]})),
        ];
        let missing = uncovered(&[&owned], &wanted);
        assert_eq!(
            summary(&missing).lines().collect::<Vec<_>>(),
            [
                r#"{APIGroups:[""], Resources:["configmaps"], ResourceNames:["a"], Verbs:["get"]}"#,
                r#"{APIGroups:[""], Resources:["configmaps"], ResourceNames:["b"], Verbs:["get"]}"#,
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#,
                r#"{APIGroups:[""], Resources:["pods/status"], Verbs:["list" "watch"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list" "watch"]}"#,
                r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#,
                r#"{NonResourceURLs:["/metrics"], Verbs:["post"]}"#,
            ]
        );
    }

    #[test]
    fn rule_with_names_does_not_cover_one_without() {
        let named = rule(&["get"], &[""], &["pods"], &["a"]);
        assert_eq!(uncovered(&[&named], &[rule(&["get"], &[""], &["pods"], &[])]).len(), 1);
        assert_eq!(uncovered(&[&named], &[rule(&["get"], &[""], &["pods"], &["a"])]).len(), 0);
        let all = rule(&["*"], &["*"], &["*"], &[]);
        assert_eq!(uncovered(&[&all], &[rule(&["get"], &[""], &["pods"], &["a"])]).len(), 0);
        assert_eq!(uncovered(&[&rule(&["get"], &[""], &["pods"], &[])], &[all]).len(), 1);
    }
}
