//! Fields that are written without a value. YAML reads `scanner:` as null, which would restrict nothing.

use serde_json::Value;

use crate::object::InvalidPolicy;

/// Refuses null below `spec` of a policy as it is written.
///
/// # Errors
/// The first field that is null.
pub fn check_given(policy: &Value) -> Result<(), InvalidPolicy> {
    let Some(field) = policy.get("spec").and_then(|spec| null("spec".to_owned(), spec)) else {
        return Ok(());
    };
    let reason = "has no value: write `{}` or a value, or leave the field out".to_owned();
    Err(InvalidPolicy { field, reason })
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
