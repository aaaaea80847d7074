//! Tables of custom kinds, by the printer columns of their CustomResourceDefinition.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::age;
use crate::json_path::JsonPath;
use crate::kinds::{Column, Kind};

/// The printer columns of a kind, their paths parsed.
pub(super) struct Columns<'a>(Vec<(&'a Column, Option<JsonPath>)>);

impl<'a> Columns<'a> {
    pub(super) fn of(kind: &'a Kind) -> Self {
        Columns(kind.columns.iter().map(|column| (column, JsonPath::parse(&column.json_path).ok())).collect())
    }

    pub(super) fn definitions(&self) -> Vec<Value> {
        let name = json!({"name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": "Name must be unique within a namespace."});
        let others = self.0.iter().map(|(column, _)| {
            let standard = || format!("Custom resource definition column (in JSONPath format): {}", column.json_path);
            let description =
                if column.description.is_empty() { standard() } else { column.description.clone() };
            json!({"name": column.name, "type": column.kind, "format": column.format, "description": description,
                "priority": column.priority})
        });
        std::iter::once(name).chain(others).collect()
    }

    pub(super) fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
        let others = self.0.iter().map(|(column, path)| {
            let found = path.as_ref().map(|path| path.find(object)).unwrap_or_default();
            cell(&column.kind, &found, now)
        });
        std::iter::once(name).chain(others).collect()
    }
}

/// The cell of the first value that a path found, as in Kubernetes; null (shown empty) if it is absent or has another type.
fn cell(kind: &str, found: &[&Value], now: Timestamp) -> Value {
    let Some(first) = found.first() else { return Value::Null };
    match (kind, *first) {
        ("string", value) => text(value).into(),
        ("integer", Value::Number(number)) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64().map_or(Value::Null, |f| (f as i64).into()),
        },
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => (*first).clone(),
        ("date", time @ Value::String(_)) => age(Some(time), now).into(),
        _ => Value::Null,
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
