//! The document of OpenAPI v2 in Protobuf, by the messages of gnostic's `OpenAPIv2.proto` (Apache-2.0).

use serde_json::{Map, Value};

/// Type of a field of a message.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Texts,
    Bool,
    Integer,
    Double,
    /// Any value, as YAML, of which JSON is a part.
    Yaml,
    Yamls,
    Message(fn(&Value) -> Vec<u8>),
    Messages(fn(&Value) -> Vec<u8>),
}

/// A field: its name in JSON, its number and its type.
type Field = (&'static str, u64, Kind);

const DOCUMENT: &[Field] = &[
    ("swagger", 1, Kind::Text),
    ("info", 2, Kind::Message(|value| message(value, INFO))),
    ("paths", 8, Kind::Message(paths)),
    ("definitions", 9, Kind::Message(|value| named(value, 1, schema))),
];
const INFO: &[Field] = &[("title", 1, Kind::Text), ("version", 2, Kind::Text)];
const PATH_ITEM: &[Field] = &[
    ("get", 2, Kind::Message(operation)),
    ("put", 3, Kind::Message(operation)),
    ("post", 4, Kind::Message(operation)),
    ("delete", 5, Kind::Message(operation)),
    ("patch", 8, Kind::Message(operation)),
    ("parameters", 9, Kind::Messages(parameter)),
];
const OPERATION: &[Field] = &[
    ("tags", 1, Kind::Texts),
    ("description", 3, Kind::Text),
    ("operationId", 5, Kind::Text),
    ("produces", 6, Kind::Texts),
    ("consumes", 7, Kind::Texts),
    ("parameters", 8, Kind::Messages(parameter)),
    ("responses", 9, Kind::Message(|value| named(value, 1, response))),
];
const RESPONSE: &[Field] = &[("description", 1, Kind::Text), ("schema", 2, Kind::Message(alternative::<1>))];
const BODY: &[Field] = &[
    ("name", 2, Kind::Text),
    ("in", 3, Kind::Text),
    ("required", 4, Kind::Bool),
    ("schema", 5, Kind::Message(schema)),
];
const QUERY: &[Field] = &[
    ("in", 2, Kind::Text),
    ("name", 4, Kind::Text),
    ("type", 6, Kind::Text),
    ("uniqueItems", 20, Kind::Bool),
];
const PATH: &[Field] = &[
    ("required", 1, Kind::Bool),
    ("in", 2, Kind::Text),
    ("name", 4, Kind::Text),
    ("type", 5, Kind::Text),
    ("uniqueItems", 19, Kind::Bool),
];
const SCHEMA: &[Field] = &[
    ("$ref", 1, Kind::Text),
    ("format", 2, Kind::Text),
    ("title", 3, Kind::Text),
    ("description", 4, Kind::Text),
    ("multipleOf", 6, Kind::Double),
    ("maximum", 7, Kind::Double),
    ("exclusiveMaximum", 8, Kind::Bool),
    ("minimum", 9, Kind::Double),
    ("exclusiveMinimum", 10, Kind::Bool),
    ("maxLength", 11, Kind::Integer),
    ("minLength", 12, Kind::Integer),
    ("pattern", 13, Kind::Text),
    ("maxItems", 14, Kind::Integer),
    ("minItems", 15, Kind::Integer),
    ("uniqueItems", 16, Kind::Bool),
    ("maxProperties", 17, Kind::Integer),
    ("minProperties", 18, Kind::Integer),
    ("required", 19, Kind::Texts),
    ("enum", 20, Kind::Yamls),
    ("additionalProperties", 21, Kind::Message(additional)),
    ("type", 22, Kind::Message(type_item)),
    ("items", 23, Kind::Message(alternative::<1>)),
    ("properties", 25, Kind::Message(|value| named(value, 1, schema))),
];

/// Encodes a document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    message(document, DOCUMENT)
}

fn varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push((number as u8 & 0x7f) | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn bytes(to: &mut Vec<u8>, number: u64, content: &[u8]) {
    varint(to, number << 3 | 2);
    varint(to, content.len() as u64);
    to.extend_from_slice(content);
}

fn message(value: &Value, fields: &[Field]) -> Vec<u8> {
    let mut to = Vec::new();
    for (name, number, kind) in fields {
        if let Some(value) = value.get(*name) {
            put(&mut to, *number, *kind, value);
        }
    }
    to
}

fn put(to: &mut Vec<u8>, number: u64, kind: Kind, value: &Value) {
    let items = || value.as_array().into_iter().flatten();
    match kind {
        Kind::Text => bytes(to, number, value.as_str().unwrap_or_default().as_bytes()),
        Kind::Texts => items().for_each(|one| put(to, number, Kind::Text, one)),
        Kind::Bool => {
            varint(to, number << 3);
            to.push(u8::from(value == true));
        }
        Kind::Integer => {
            varint(to, number << 3);
            varint(to, value.as_u64().unwrap_or(0));
        }
        Kind::Double => {
            varint(to, number << 3 | 1);
            to.extend_from_slice(&value.as_f64().unwrap_or(0.0).to_le_bytes());
        }
        Kind::Yaml => {
            let mut any = Vec::new();
            bytes(&mut any, 2, value.to_string().as_bytes());
            bytes(to, number, &any);
        }
        Kind::Yamls => items().for_each(|one| put(to, number, Kind::Yaml, one)),
        Kind::Message(encode) => bytes(to, number, &encode(value)),
        Kind::Messages(encode) => items().for_each(|one| bytes(to, number, &encode(one))),
    }
}

/// A map as a list of named values.
fn named(map: &Value, number: u64, encode: fn(&Value) -> Vec<u8>) -> Vec<u8> {
    let mut to = Vec::new();
    for (name, value) in map.as_object().into_iter().flatten() {
        let mut entry = Vec::new();
        bytes(&mut entry, 1, name.as_bytes());
        bytes(&mut entry, 2, &encode(value));
        bytes(&mut to, number, &entry);
    }
    to
}

/// Appends the fields that begin with `x-`.
fn extensions(to: &mut Vec<u8>, number: u64, fields: Option<&Map<String, Value>>) {
    for (name, value) in fields.into_iter().flatten().filter(|(name, _)| name.starts_with("x-")) {
        let mut entry = Vec::new();
        bytes(&mut entry, 1, name.as_bytes());
        put(&mut entry, 2, Kind::Yaml, value);
        bytes(to, number, &entry);
    }
}

/// A schema as one of several things.
fn alternative<const NUMBER: u64>(value: &Value) -> Vec<u8> {
    let mut to = Vec::new();
    bytes(&mut to, NUMBER, &schema(value));
    to
}

fn schema(value: &Value) -> Vec<u8> {
    let mut to = message(value, SCHEMA);
    extensions(&mut to, 31, value.as_object());
    to
}

fn additional(value: &Value) -> Vec<u8> {
    match value {
        Value::Bool(any) => vec![2 << 3, u8::from(*any)],
        schema => alternative::<1>(schema),
    }
}

fn type_item(value: &Value) -> Vec<u8> {
    let mut to = Vec::new();
    put(&mut to, 1, Kind::Text, value);
    to
}

fn paths(value: &Value) -> Vec<u8> {
    named(value, 2, |item| message(item, PATH_ITEM))
}

fn operation(value: &Value) -> Vec<u8> {
    let mut to = message(value, OPERATION);
    extensions(&mut to, 13, value.as_object());
    to
}

fn response(value: &Value) -> Vec<u8> {
    let mut to = Vec::new();
    bytes(&mut to, 1, &message(value, RESPONSE));
    to
}

/// A parameter, which is a body, or in the query or the path.
fn parameter(value: &Value) -> Vec<u8> {
    let (mut parameter, mut to) = (Vec::new(), Vec::new());
    match value["in"].as_str() {
        Some("body") => bytes(&mut parameter, 1, &message(value, BODY)),
        place => {
            let mut plain = Vec::new();
            let (number, fields) = if place == Some("path") { (4, PATH) } else { (3, QUERY) };
            bytes(&mut plain, number, &message(value, fields));
            bytes(&mut parameter, 2, &plain);
        }
    }
    bytes(&mut to, 1, &parameter);
    to
}
