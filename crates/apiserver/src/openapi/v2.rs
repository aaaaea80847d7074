//! OpenAPI v2, as kubectl before 1.27 reads it to check objects before it sends them: the documents of v3 in one, in the
//! older form.
//!
//! Schemas lose what v2 cannot express, as in Kubernetes: alternatives, defaults, and the fields of values that may be null
//! or have unknown fields.

use serde_json::{Map, Value, json};

use super::{REFERENCE, add_definition, add_kind, paths};
use crate::kinds::Kind;

/// Start of a reference to a definition.
const DEFINITIONS: &str = "#/definitions/";
/// Fields of a schema that are the same in both versions.
const SAME: &[&str] = &[
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "title",
    "type",
    "uniqueItems",
];
/// Fields that describe what is inside a value, which is not checked when it may be anything else.
const INNER: &[&str] = &["type", "format", "required", "enum", "pattern", "minLength", "maxLength"];

/// The whole document.
pub(super) fn document<'a>(kinds: impl IntoIterator<Item = &'a Kind>, server_version: &str) -> Value {
    let (mut items, mut schemas) = (Map::new(), std::collections::BTreeMap::new());
    add_definition(super::DELETE_OPTIONS, &mut schemas);
    for kind in kinds {
        paths::add(kind, &mut items);
        add_kind(kind, &mut schemas);
    }
    let definitions: Map<_, _> = schemas.into_iter().map(|(name, one)| (name, schema(&one))).collect();
    let items: Map<_, _> = items.into_iter().map(|(path, item)| (path, path_item(&item))).collect();
    json!({
        "swagger": "2.0",
        "info": { "title": "Kubernetes", "version": server_version },
        "paths": items,
        "definitions": definitions,
    })
}

pub(super) fn schema(from: &Value) -> Value {
    let single = from["allOf"].as_array().filter(|all| all.len() == 1).map(|all| &all[0]["$ref"]);
    let reference = from.get("$ref").or(single).and_then(Value::as_str);
    if let Some(name) = reference.and_then(|reference| reference.strip_prefix(REFERENCE)) {
        let mut to = json!({ "$ref": format!("{DEFINITIONS}{name}") });
        if let Some(description) = from.get("description") {
            to["description"] = description.clone();
        }
        return to;
    }
    let Some(fields) = from.as_object() else { return json!({}) };
    let is_set = |name: &str| from[name] == true;
    let is_open = is_set("nullable")
        || is_set("x-kubernetes-preserve-unknown-fields")
        || is_set("x-kubernetes-int-or-string")
        || (from["type"] == "array" && !from["items"].is_object());
    let mut to = Map::new();
    for (name, value) in fields {
        let is_inner = INNER.contains(&name.as_str());
        if name.starts_with("x-kubernetes-") || (SAME.contains(&name.as_str()) && !(is_open && is_inner)) {
            to.insert(name.clone(), value.clone());
        }
    }
    if is_open {
        return Value::Object(to);
    }
    if !to.contains_key("type") && has_text_alternative(from) {
        to.insert("type".into(), "string".into());
    }
    if let Some(properties) = from["properties"].as_object() {
        let properties: Map<_, _> =
            properties.iter().map(|(name, one)| (name.clone(), schema(one))).collect();
        to.insert("properties".into(), properties.into());
    }
    if from["items"].is_object() {
        to.insert("items".into(), schema(&from["items"]));
    }
    match &from["additionalProperties"] {
        Value::Bool(any) => drop(to.insert("additionalProperties".into(), (*any).into())),
        Value::Object(_) => {
            drop(to.insert("additionalProperties".into(), schema(&from["additionalProperties"])))
        }
        _ => {}
    }
    Value::Object(to)
}

/// Returns true for quantities and for numbers or texts, which v2 shows as text.
fn has_text_alternative(schema: &Value) -> bool {
    schema["oneOf"].as_array().into_iter().flatten().any(|one| one["type"] == "string")
}

fn path_item(from: &Value) -> Value {
    let mut to = Map::new();
    for (name, value) in from.as_object().into_iter().flatten() {
        let value = if name == "parameters" { parameters(value) } else { operation(value) };
        to.insert(name.clone(), value);
    }
    Value::Object(to)
}

fn parameters(from: &Value) -> Value {
    let parameter = |from: &Value| {
        let mut to = from.clone();
        if let Some(fields) = to.as_object_mut()
            && let Some(Value::Object(schema)) = fields.remove("schema")
        {
            fields.extend(schema);
        }
        to
    };
    from.as_array().into_iter().flatten().map(parameter).collect()
}

fn operation(from: &Value) -> Value {
    let mut to = from.as_object().cloned().unwrap_or_default();
    let mut list = parameters(&from["parameters"]).as_array().cloned().unwrap_or_default();
    if let Some(content) = from["requestBody"]["content"].as_object() {
        let media: Vec<&String> = content.keys().collect();
        to.insert("consumes".into(), json!(media));
        let body = content.values().next().map_or_else(|| json!({}), |one| schema(&one["schema"]));
        let required =
            from["x-kubernetes-action"] != "delete" && from["x-kubernetes-action"] != "deletecollection";
        list.push(json!({ "name": "body", "in": "body", "required": required, "schema": body }));
    }
    to.remove("requestBody");
    to.insert("parameters".into(), list.into());
    to.insert("produces".into(), json!(["application/json", "application/yaml"]));
    let mut responses = Map::new();
    for (code, response) in from["responses"].as_object().into_iter().flatten() {
        let mut answer = json!({ "description": response["description"] });
        let content = response["content"].as_object().and_then(|content| content.values().next());
        if let Some(content) = content {
            answer["schema"] = schema(&content["schema"]);
        }
        responses.insert(code.clone(), answer);
    }
    to.insert("responses".into(), responses.into());
    Value::Object(to)
}
