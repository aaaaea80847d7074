//! Access to the fields of JSON objects.

use hutch_api::quantity::Quantity;
use serde_json::{Map, Value};

/// Sets an absent (or null) field.
pub(crate) fn default(object: &mut Value, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none_or(Value::is_null)
        && let Some(map) = object.as_object_mut()
    {
        map.insert(field.into(), value.into());
    }
}

/// A field that is an object, made if missing.
pub(crate) fn map<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = &mut object[field];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("was made an object above")
}

/// The items of a list field; none if it is missing.
pub(crate) fn items<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Returns a text or a number as the client wrote it.
pub(crate) fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Parses a quantity, which is a text or a number; spaces around it do not count, as in Kubernetes. `None` means invalid.
pub(crate) fn quantity(value: &Value) -> Option<Quantity> {
    let is_scalar = matches!(value, Value::String(_) | Value::Number(_));
    is_scalar.then(|| Quantity::parse(written(value).trim())).flatten()
}

/// Returns true for a value other than none, and other than an empty object, list or text.
pub(crate) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}
