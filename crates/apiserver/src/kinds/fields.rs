//! Fields that a schema does not know, and values of another type than it says.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use hutch_api::quantity;
use serde_json::Value;

use super::shape::{Field, Shape};
use crate::field_path::{FieldPath, MAX_FINDINGS};

/// A value of another JSON type than the schema says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: must be of type {wanted}, got {found}")]
pub(crate) struct Mistyped {
    /// Path such as `spec.replicas`.
    pub path: String,
    /// JSON type that the schema names.
    pub wanted: String,
    /// JSON type that the value has.
    pub found: &'static str,
}

/// Returns the values of an object whose type is not that of its kind's shape, at most 100. Nulls fit everywhere, as in
/// Kubernetes.
pub(crate) fn check(object: &Value, shape: Shape<'_>) -> Vec<Mistyped> {
    let mut mistyped = Vec::new();
    walk(object, shape, FieldPath::ROOT, &mut mistyped);
    mistyped
}

/// Removes the fields that the shape does not know; returns the paths of the first 100. A null in a list or a map of a
/// built-in kind becomes the empty value of its type, as in Kubernetes.
pub(crate) fn prune(object: &mut Value, shape: Shape<'_>) -> Vec<String> {
    let mut removed = Vec::new();
    prune_at(object, shape, FieldPath::ROOT, &mut removed);
    removed
}

fn walk(value: &Value, shape: Shape<'_>, path: FieldPath<'_>, found: &mut Vec<Mistyped>) {
    if found.len() == MAX_FINDINGS {
        return;
    }
    if let Some(mistyped) = mistype(value, shape, path) {
        found.push(mistyped);
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, child) in map {
                if let Field::Known(shape) = shape.field(name) {
                    walk(child, shape, path.field(name), found);
                }
            }
        }
        Value::Array(items) => {
            let shape = shape.items();
            for (index, item) in items.iter().enumerate() {
                walk(item, shape, path.item(index), found);
            }
        }
        _ => {}
    }
}

fn prune_at(value: &mut Value, shape: Shape<'_>, path: FieldPath<'_>, removed: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.retain(|name, child| match shape.field(name) {
            Field::Known(of_child) => {
                if !shape.is_struct_field(name) {
                    fill(child, of_child);
                }
                prune_at(child, of_child, path.field(name), removed);
                true
            }
            Field::Open => true,
            Field::Unknown => {
                if removed.len() < MAX_FINDINGS {
                    removed.push(path.field(name).into());
                }
                false
            }
        }),
        Value::Array(items) => {
            let shape = shape.items();
            for (index, item) in items.iter_mut().enumerate() {
                fill(item, shape);
                prune_at(item, shape, path.item(index), removed);
            }
        }
        _ => {}
    }
}

/// Gives a null of a built-in kind the empty value of its type.
fn fill(value: &mut Value, shape: Shape<'_>) {
    if !value.is_null() || !shape.is_builtin() {
        return;
    }
    *value = match shape.kind() {
        _ if shape.is_quantity() => "0".into(),
        _ if shape.scalar_of_any_type() => 0.into(),
        Some("string") => "".into(),
        Some("integer" | "number") => 0.into(),
        Some("boolean") => false.into(),
        Some("array") => Value::Array(Vec::new()),
        Some("object") => Value::Object(serde_json::Map::new()),
        _ => return,
    };
}

/// The JSON type of a value.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn mistype(value: &Value, shape: Shape<'_>, path: FieldPath<'_>) -> Option<Mistyped> {
    let found = type_name(value);
    let wrong = |wanted: &str| Some(Mistyped { path: path.into(), wanted: wanted.into(), found });
    let no_integer = |wanted: &str| {
        let found = if found == "integer" { "a larger one" } else { found };
        Some(Mistyped { path: path.into(), wanted: wanted.into(), found })
    };
    if value.is_null() {
        return None;
    }
    if shape.scalar_of_any_type() {
        let scalar = matches!(value, Value::String(_) | Value::Number(_));
        if !scalar {
            return wrong("string");
        }
        let port = shape.format() == Some("int-or-string");
        return match value.as_str() {
            None if port => integer(value, Some("int32")).and_then(no_integer),
            Some(text) if shape.is_quantity() && !quantity::is_valid(text.trim()) => {
                wrong("quantity, such as 250m or 1Gi")
            }
            _ => None,
        };
    }
    match (shape.kind()?, found) {
        ("number", "integer") => None,
        ("integer", "integer" | "number") => integer(value, shape.format()).and_then(no_integer),
        ("string", "string") if shape.format() == Some("date-time") => {
            let time = value.as_str().is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok());
            if time { None } else { wrong("date-time, such as 2006-01-02T15:04:05Z") }
        }
        ("string", "string") if shape.format() == Some("byte") => {
            if value.as_str().is_some_and(is_base64) {
                None
            } else {
                wrong("bytes in base64")
            }
        }
        (wanted, found) if wanted == found => None,
        (wanted, _) => wrong(wanted),
    }
}

/// Base64 as Go reads it: with padding, whatever the last bits are.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Returns true if a text is base64. Line breaks are ignored.
fn is_base64(text: &str) -> bool {
    if !text.contains(['\r', '\n']) {
        return BASE64.decode(text).is_ok();
    }
    BASE64.decode(text.replace(['\r', '\n'], "")).is_ok()
}

/// Returns the type that an integer out of range should have.
fn integer(number: &Value, format: Option<&str>) -> Option<&'static str> {
    match (number.as_i64(), format) {
        (Some(whole), Some("int32")) if i32::try_from(whole).is_err() => Some("integer of 32 bits"),
        (Some(_), _) => None,
        (None, Some("int32")) => Some("integer of 32 bits"),
        (None, _) => Some("integer of 64 bits"),
    }
}
