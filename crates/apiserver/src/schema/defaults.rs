//! Defaults of a structural schema.

use serde_json::{Map, Value};

use super::flag;

/// Applies defaults at and below a value. `root` is an object of the kind itself, whose type and metadata are not the
/// schema's business.
pub(super) fn apply(schema: &Value, value: &mut Value, root: bool) {
    match value {
        Value::Object(map) => of_object(schema, map, root),
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items
                    .iter_mut()
                    .for_each(|item| apply(schema, item, flag(schema, "x-kubernetes-embedded-resource")));
            }
        }
        _ => {}
    }
}

fn of_object(schema: &Value, map: &mut Map<String, Value>, root: bool) {
    let own = |name: &str| root && matches!(name, "apiVersion" | "kind" | "metadata");
    if let Some(Value::Object(properties)) = schema.get("properties") {
        for (name, property) in properties {
            if own(name) {
                continue;
            }
            let present = map.get(name);
            let dropped = present.is_some_and(Value::is_null) && !flag(property, "nullable");
            match (present, property.get("default")) {
                (None, Some(default)) => {
                    map.insert(name.clone(), default.clone());
                }
                (Some(_), Some(default)) if dropped => {
                    map.insert(name.clone(), default.clone());
                }
                (Some(_), None) if dropped => {
                    map.remove(name);
                }
                _ => {}
            }
            if let Some(child) = map.get_mut(name) {
                apply(property, child, flag(property, "x-kubernetes-embedded-resource"));
            }
        }
    }
    if let Some(additional @ Value::Object(_)) = schema.get("additionalProperties") {
        map.values_mut().for_each(|child| apply(additional, child, false));
    }
}
