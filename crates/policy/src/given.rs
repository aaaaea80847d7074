//! Fields that are written without a value. YAML reads `scanner:` as null, which would restrict nothing, as `http: []` does.

use serde_json::Value;

use crate::object::InvalidPolicy;

/// Refuses null below `spec` of a policy as it is written, and empty lists that would allow every request or call.
///
/// # Errors
/// The first such field.
pub fn check_given(policy: &Value) -> Result<(), InvalidPolicy> {
    let Some(spec) = policy.get("spec") else { return Ok(()) };
    if let Some(field) = null("spec".to_owned(), spec) {
        let reason = "has no value: write `{}` or a value, or leave the field out".to_owned();
        return Err(InvalidPolicy { field, reason });
    }
    let rules = spec.pointer("/egress/rules").and_then(Value::as_array).into_iter().flatten();
    let mut lists = rules.enumerate().flat_map(|(index, rule)| {
        ["http", "mcp"].map(|name| (format!("spec.egress.rules[{index}].{name}"), rule.get(name)))
    });
    let empty = |(_, list): &(String, Option<&Value>)| *list == Some(&Value::Array(Vec::new()));
    match lists.find(empty) {
        Some((field, _)) => {
            let reason =
                "is empty, which would allow everything: write what is allowed, or leave the field out";
            Err(InvalidPolicy { field, reason: reason.to_owned() })
        }
        None => Ok(()),
    }
}

/// Returns the path of the first null.
fn null(path: String, value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(path),
        Value::Object(fields) => {
            fields.iter().find_map(|(name, value)| null(format!("{path}.{name}"), value))
        }
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| null(format!("{path}[{index}]"), item))
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
