//! Fields that are written without a value, or as a list instead of an object. YAML reads `scanner:` as null, which would
//! restrict nothing, as `http: []` does.

use serde_json::Value;

use crate::object::InvalidPolicy;

/// Fields that are objects, wherever they stand. Objects are read from lists too, by position.
const OBJECTS: [&str; 15] = [
    "appliesTo",
    "aws",
    "body",
    "budget",
    "egress",
    "matchLabels",
    "namespaceSelector",
    "parameters",
    "scanner",
    "secret",
    "selector",
    "serviceAccountToken",
    "source",
    "spec",
    "vault",
];

/// Lists of which an empty one reads as none, which restricts nothing.
const NARROWING: [&str; 11] = [
    "contentTypes",
    "headers",
    "http",
    "mcp",
    "methods",
    "paths",
    "ports",
    "query",
    "sandboxes",
    "templates",
    "tools",
];

/// Maximum conditions of a policy, and maximum bytes of all of them: reading 1 KiB can take 8 ms.
const CONDITIONS: usize = 256;
const CONDITION_BYTES: usize = 16 << 10;

/// Refuses null below `spec` of a policy as it is written, lists in place of objects, and empty lists that would restrict
/// nothing.
///
/// # Errors
/// The first such field.
pub fn check_given(policy: &Value) -> Result<(), InvalidPolicy> {
    if let Some(field) = misplaced_list(policy) {
        let reason = "is a list; it must be an object: fields with names".to_owned();
        return Err(InvalidPolicy { field, reason });
    }
    let Some(spec) = policy.get("spec") else { return Ok(()) };
    check_conditions(spec)?;
    if let Some(field) = find("spec".to_owned(), spec, &|_, value| value.is_null()) {
        let reason = "has no value: write `{}` or a value, or leave the field out".to_owned();
        return Err(InvalidPolicy { field, reason });
    }
    let Some(field) = find("spec".to_owned(), spec, &|path, value| is_empty(value) && narrows(path)) else {
        return Ok(());
    };
    let reason = match field.ends_with(".ports") {
        true => "is empty: write ports, or leave the field out for its default",
        false => "is empty, which would restrict nothing: write what is meant, or leave the field out",
    };
    Err(InvalidPolicy { field, reason: reason.to_owned() })
}

/// Refuses a policy of which the conditions would take long to read, before they are read.
///
/// # Errors
/// They are too many, or too long.
pub fn check_conditions(spec: &Value) -> Result<(), InvalidPolicy> {
    let (mut count, mut bytes) = (0, 0);
    let mut add = |condition: Option<&Value>| {
        let text = condition.and_then(Value::as_str);
        count += usize::from(text.is_some());
        bytes += text.map_or(0, str::len);
    };
    let rules = spec.pointer("/egress/rules").and_then(Value::as_array);
    for rule in rules.into_iter().flatten() {
        add(rule.get("when"));
        let entries = rule.get("mcp").and_then(Value::as_array);
        entries.into_iter().flatten().for_each(|entry| add(entry.get("args")));
    }
    if count <= CONDITIONS && bytes <= CONDITION_BYTES {
        return Ok(());
    }
    let reason = format!(
        "{count} conditions of {bytes} bytes, `when` and `args`; at most {CONDITIONS} of {CONDITION_BYTES} bytes in a policy"
    );
    Err(InvalidPolicy { field: "spec.egress.rules".to_owned(), reason })
}

/// Returns true for lists that restrict what they stand in, so that an empty one would restrict nothing.
fn narrows(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or_default();
    NARROWING.contains(&name) || (name == "hosts" && path.starts_with("spec.scanner.allow["))
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// Returns the path of the first list that stands in place of an object. Metadata has lists of its own.
fn misplaced_list(policy: &Value) -> Option<String> {
    let is_list = |path: &str, value: &Value| {
        let name = path.rsplit('.').next().unwrap_or_default();
        value.is_array() && (path.ends_with(']') || OBJECTS.contains(&name))
    };
    match policy {
        Value::Array(_) => Some("the policy".to_owned()),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| match name.as_str() {
            "spec" => find(name.clone(), value, &is_list),
            _ => value.is_array().then(|| name.clone()),
        }),
        _ => None,
    }
}

/// Returns the path of the first value of which this is true. Paths are those of messages.
fn find(path: String, value: &Value, wanted: &impl Fn(&str, &Value) -> bool) -> Option<String> {
    if wanted(&path, value) {
        return Some(path);
    }
    match value {
        Value::Object(fields) => {
            fields.iter().find_map(|(name, value)| find(format!("{path}.{name}"), value, wanted))
        }
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| find(format!("{path}[{index}]"), item, wanted))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `http: []` opened every request, although it reads as none.
    #[test]
    fn empty_list_of_requests_or_calls_is_refused() {
        for name in ["http", "mcp"] {
            let rules = json!([{"name": "a", "hosts": ["a.example"]}, {"name": "b", "any": true, name: []}]);
            let error = check_given(&json!({"spec": {"egress": {"rules": rules}}})).unwrap_err();
            assert_eq!(error.field, format!("spec.egress.rules[1].{name}"));
            let rules = json!([{"name": "a", "hosts": [], name: [{}]}]);
            assert_eq!(check_given(&json!({"spec": {"egress": {"rules": rules}}})), Ok(()));
        }
    }

    /// Reading the conditions of one policy took half a second, at each event.
    #[test]
    fn conditions_that_would_take_long_to_read_are_refused() {
        let policy = |count: usize, length: usize| {
            let condition = "x".repeat(length);
            let rule = json!({"name": "a", "any": true, "when": condition, "mcp": [{"args": condition}]});
            json!({"spec": {"egress": {"rules": vec![rule; count]}}})
        };
        assert_eq!(check_given(&policy(128, 64)), Ok(()));
        for (count, length) in [(129, 1), (9, 1000)] {
            let error = check_given(&policy(count, length)).unwrap_err();
            assert_eq!(error.field, "spec.egress.rules");
            assert!(error.reason.contains("at most 256 of 16384 bytes"), "{error}");
        }
    }

    /// Lists were read by position: `egress: [[...]]` was one.
    #[test]
    fn list_in_place_of_an_object_is_refused_by_its_path() {
        let rule = json!({"name": "a", "hosts": ["a.example"]});
        for (policy, field) in [
            (json!(["policy.hutch.dev/v1alpha1", "SandboxPolicy", {"name": "t"}, {}]), "the policy"),
            (json!({"metadata": ["t"], "spec": {}}), "metadata"),
            (json!({"spec": [{}]}), "spec"),
            (json!({"spec": {"egress": [[rule]]}}), "spec.egress"),
            (json!({"spec": {"egress": {"rules": [["a", ["a.example"], false]]}}}), "spec.egress.rules[0]"),
            (json!({"spec": {"egress": {"rules": [{"http": [[["GET"]]]}]}}}), "spec.egress.rules[0].http[0]"),
            (
                json!({"spec": {"egress": {"rules": [{"http": [{"body": []}]}]}}}),
                "spec.egress.rules[0].http[0].body",
            ),
        ] {
            let error = check_given(&policy).unwrap_err();
            assert_eq!(error.field, field, "{policy}");
            assert!(error.reason.starts_with("is a list"), "{error}");
        }
        let metadata = json!({"name": "t", "finalizers": ["a"]});
        assert_eq!(
            check_given(&json!({"metadata": metadata, "spec": {"egress": {"rules": [rule]}}})),
            Ok(())
        );
    }

    /// `appliesTo: {sandboxes: []}` applied to every Sandbox, and `tools: []` allowed every tool.
    #[test]
    fn empty_list_that_would_restrict_nothing_is_refused() {
        let rule = |rule: Value| json!({"egress": {"rules": [rule]}});
        for (spec, field) in [
            (json!({"appliesTo": {"sandboxes": []}}), "appliesTo.sandboxes"),
            (json!({"appliesTo": {"templates": []}}), "appliesTo.templates"),
            (json!({"scanner": {"allow": [{"hosts": []}]}}), "scanner.allow[0].hosts"),
            (rule(json!({"sandboxes": []})), "egress.rules[0].sandboxes"),
            (rule(json!({"http": [{"methods": []}]})), "egress.rules[0].http[0].methods"),
            (rule(json!({"http": [{}, {"paths": []}]})), "egress.rules[0].http[1].paths"),
            (rule(json!({"http": [{"query": []}]})), "egress.rules[0].http[0].query"),
            (rule(json!({"http": [{"headers": []}]})), "egress.rules[0].http[0].headers"),
            (
                rule(json!({"http": [{"body": {"contentTypes": []}}]})),
                "egress.rules[0].http[0].body.contentTypes",
            ),
            (rule(json!({"mcp": [{"tools": []}]})), "egress.rules[0].mcp[0].tools"),
            (rule(json!({"mcp": [{"methods": []}]})), "egress.rules[0].mcp[0].methods"),
            (json!({"credentials": [{"paths": []}]}), "credentials[0].paths"),
        ] {
            let error = check_given(&json!({"spec": spec})).unwrap_err();
            assert_eq!(error.field, format!("spec.{field}"));
        }
        let nothing = rule(json!({"credentials": [], "hosts": [], "cidrs": [], "private": []}));
        assert_eq!(check_given(&json!({"spec": nothing})), Ok(()));
    }

    #[test]
    fn empty_ports_are_refused() {
        let rules = json!([{"name": "a", "any": true, "ports": []}]);
        let error = check_given(&json!({"spec": {"egress": {"rules": rules}}})).unwrap_err();
        assert_eq!(error.field, "spec.egress.rules[0].ports");
        let error = check_given(&json!({"spec": {"hosts": ["a.example"], "ports": []}})).unwrap_err();
        assert_eq!(error.field, "spec.ports");
    }

    #[test]
    fn objects_are_those_of_the_schemas() {
        let mut found = std::collections::BTreeSet::new();
        for plural in ["sandboxpolicies", "clustersandboxpolicies", "credentialproviders"] {
            let path = format!("{}/crds/policy.hutch.dev_{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
            let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            objects(schema, "spec", &mut found);
        }
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), OBJECTS);
    }

    fn objects(schema: &Value, name: &str, found: &mut std::collections::BTreeSet<String>) {
        match schema["type"].as_str() {
            Some("object") => found.extend((!name.is_empty()).then(|| name.to_owned())),
            Some("array") => {
                assert_ne!(schema["items"]["type"], "array", "{name}");
                objects(&schema["items"], "", found);
            }
            _ => {}
        }
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            objects(child, name, found);
        }
    }

    /// `scanner:` alone turned the scanner off.
    #[test]
    fn field_without_a_value_is_refused_by_its_path() {
        let field = |spec: Value| check_given(&json!({"spec": spec})).err().map(|error| error.field);
        for name in ["scanner", "egress", "credentials", "files", "appliesTo", "expires"] {
            assert_eq!(field(json!({name: null})), Some(format!("spec.{name}")));
        }
        assert_eq!(field(json!({"egress": {"budget": null}})).as_deref(), Some("spec.egress.budget"));
        for name in ["http", "mcp", "when", "credentials"] {
            let rules = json!([{"name": "a", "hosts": ["a.example"]}, {"name": "b", name: null}]);
            let found = field(json!({"egress": {"rules": rules}}));
            assert_eq!(found, Some(format!("spec.egress.rules[1].{name}")));
        }
        assert_eq!(field(Value::Null).as_deref(), Some("spec"));
        assert_eq!(field(json!({"scanner": {}, "files": [], "mode": "Observe"})), None);
        assert_eq!(check_given(&json!({"kind": "Policy"})), Ok(()));
    }
}
