//! `x-kubernetes-validations`: rules in CEL.

use kube_cel::{CompiledSchema, compile_schema, validate_compiled};
use serde_json::{Map, Value};

use crate::failure::Cause;

const RULES: &str = "x-kubernetes-validations";

/// The rules of a schema, compiled; nothing for a schema without any.
pub(super) struct Rules(Option<Compiled>);

struct Compiled {
    schema: CompiledSchema,
    /// The fields of the object below which there are rules; `None` when there is one for the object itself.
    fields: Option<Vec<String>>,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.is_empty() { "Rules(none)" } else { "Rules" })
    }
}

impl Rules {
    pub(super) fn compile(schema: &Value) -> Self {
        // Only the branches that lead to a rule are compiled: a Pod template has thousands of nodes without one.
        Rules(branches_with_rules(schema).map(|schema| {
            let properties = schema.get("properties").and_then(Value::as_object);
            let fields = properties.map(|properties| properties.keys().cloned().collect());
            let fields = fields.filter(|_| schema.get(RULES).is_none());
            Compiled { schema: compile_schema(&schema), fields }
        }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn check(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        let Some(compiled) = &self.0 else { return Vec::new() };
        // What held before and has not changed still holds: a write of the status does not pay for the rules of
        // the spec.
        if let (Some(old), Some(fields)) = (old, &compiled.fields)
            && fields.iter().all(|field| old.get(field) == object.get(field))
        {
            return Vec::new();
        }
        let Err(errors) = validate_compiled(&compiled.schema, object, old) else { return Vec::new() };
        errors.into_vec().into_iter().map(|error| cause(object, &error.field_path, &error.message)).collect()
    }
}

fn cause(object: &Value, path: &str, message: &str) -> Cause {
    let pointer = format!("/{}", path.replace("].", "/").replace(['.', '['], "/").replace(']', ""));
    let at = if path.is_empty() { Some(object) } else { object.pointer(&pointer) };
    let shown = match at {
        Some(Value::Object(_)) | None => "\"object\"".to_owned(),
        Some(Value::Array(_)) => "\"array\"".to_owned(),
        Some(scalar) => scalar.to_string(),
    };
    Cause::new("FieldValueInvalid", path, format!("Invalid value: {shown}: {message}"))
}

/// The schema without branches that hold no rule; what lies below a rule is kept for its types.
fn branches_with_rules(schema: &Value) -> Option<Value> {
    let map = schema.as_object()?;
    if map.contains_key(RULES) {
        return Some(schema.clone());
    }
    let mut kept = Map::new();
    if let Some(Value::Object(properties)) = map.get("properties") {
        let properties: Map<String, Value> = properties
            .iter()
            .filter_map(|(name, child)| Some((name.clone(), branches_with_rules(child)?)))
            .collect();
        if !properties.is_empty() {
            kept.insert("properties".into(), properties.into());
        }
    }
    for name in ["items", "additionalProperties"] {
        if let Some(child) = map.get(name).and_then(branches_with_rules) {
            kept.insert(name.into(), child);
        }
    }
    if kept.is_empty() {
        return None;
    }
    if let Some(kind) = map.get("type") {
        kept.insert("type".into(), kind.clone());
    }
    Some(kept.into())
}
