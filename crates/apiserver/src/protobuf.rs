//! Bodies in Kubernetes' Protobuf envelope, read as the JSON object that they stand for.
//!
//! kubectl and client-go send built-in kinds this way and do not fall back to JSON when it is refused. The messages are
//! data (`protobuf/messages.txt`). Nothing is ever written in Protobuf: every such client reads JSON answers, also one
//! that accepts only Protobuf.

mod messages;
mod wire;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::field_path::FieldPath;
use messages::{Field, Message, Type};
use wire::{Fields, Wire};

/// The media type of the envelope.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The first bytes of every envelope.
const MAGIC: &[u8] = b"k8s\0";
/// Deepest nesting of messages: schemas of CustomResourceDefinitions are the deepest, at about twenty.
const MAX_DEPTH: usize = 100;

/// Error in a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// It does not begin with the four bytes of the envelope.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Envelope,
    /// A kind whose messages are not known: answer with 415 and this text.
    #[error(
        "the body of media type \"application/vnd.kubernetes.protobuf\" holds a {kind} of {api_version:?}, which is accepted as JSON only"
    )]
    Kind {
        /// As the envelope says.
        api_version: String,
        /// As the envelope says.
        kind: String,
    },
    /// Compressed or encoded bodies do not exist in practice.
    #[error("unsupported content encoding {0:?} in a protobuf envelope")]
    Encoding(String),
    /// The bytes are not a message of that kind.
    #[error("unable to decode the protobuf body: {path}: {reason}")]
    Message {
        /// Path of the field at fault, as in JSON.
        path: String,
        /// Cause.
        reason: &'static str,
    },
}

/// Reads an envelope: the object with its `apiVersion` and `kind`.
pub(crate) fn decode(body: &[u8]) -> Result<Value, DecodeError> {
    let body = body.strip_prefix(MAGIC).ok_or(DecodeError::Envelope)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Fields(body) {
        match field.map_err(|reason| at(FieldPath::ROOT, reason))? {
            (1, Wire::Bytes(meta)) => {
                for field in Fields(meta) {
                    match field.map_err(|reason| at(FieldPath::ROOT, reason))? {
                        (1, Wire::Bytes(text)) => {
                            api_version = utf8(text, FieldPath::ROOT.field("apiVersion"))?
                        }
                        (2, Wire::Bytes(text)) => kind = utf8(text, FieldPath::ROOT.field("kind"))?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3, Wire::Bytes(encoding)) if !encoding.is_empty() => {
                return Err(DecodeError::Encoding(String::from_utf8_lossy(encoding).into_owned()));
            }
            _ => {}
        }
    }
    let Some(root) = messages::root(&api_version, &kind) else {
        return Err(DecodeError::Kind { api_version, kind });
    };
    let mut object = message(raw, root, FieldPath::ROOT, 0)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Value::Object(object))
}

fn at(path: FieldPath<'_>, reason: &'static str) -> DecodeError {
    DecodeError::Message { path: path.into(), reason }
}

fn utf8(bytes: &[u8], path: FieldPath<'_>) -> Result<String, DecodeError> {
    std::str::from_utf8(bytes).map(Into::into).map_err(|_| at(path, "text is not UTF-8"))
}

fn message(
    bytes: &[u8],
    shape: &Message,
    path: FieldPath<'_>,
    depth: usize,
) -> Result<Map<String, Value>, DecodeError> {
    if depth > MAX_DEPTH {
        return Err(at(path, "messages are nested too deeply"));
    }
    let mut object = Map::new();
    for field in Fields(bytes) {
        let (number, wire) = field.map_err(|reason| at(path, reason))?;
        // A field of a later version of Kubernetes: left out, as every Protobuf reader does.
        let Some(field) = shape.field(number) else { continue };
        put(&mut object, field, wire, path.field(field.name), depth)?;
    }
    Ok(object)
}

fn put(
    object: &mut Map<String, Value>,
    field: &Field,
    wire: Wire<'_>,
    path: FieldPath<'_>,
    depth: usize,
) -> Result<(), DecodeError> {
    if field.name.is_empty() {
        // Its fields stand in the parent: `volumeSource` in a Volume.
        if let Value::Object(inner) = value(&field.kind, wire, path, depth)? {
            object.extend(inner);
        }
    } else if field.is_map {
        let Wire::Bytes(entry) = wire else { return Err(at(path, "a map entry is not a message")) };
        let (key, value) = map_entry(entry, &field.kind, path, depth)?;
        if let Value::Object(map) = object.entry(field.name).or_insert_with(|| json!({})) {
            map.insert(key, value);
        }
    } else if field.is_list {
        let value = value(&field.kind, wire, path, depth)?;
        if let Value::Array(list) = object.entry(field.name).or_insert_with(|| json!([])) {
            list.push(value);
        }
    } else {
        let value = value(&field.kind, wire, path, depth)?;
        // Go writes fields that are no pointers even if they are zero, and JSON leaves those out.
        let zero = match &value {
            Value::Null => true,
            Value::Bool(flag) => !flag,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
        };
        if !(value.is_null() || zero && field.leave_out_zero) {
            object.insert(field.name.into(), value);
        }
    }
    Ok(())
}

fn map_entry(
    entry: &[u8],
    kind: &Type,
    path: FieldPath<'_>,
    depth: usize,
) -> Result<(String, Value), DecodeError> {
    let (mut key, mut found) = (String::new(), None);
    for field in Fields(entry) {
        match field.map_err(|reason| at(path, reason))? {
            (1, Wire::Bytes(text)) => key = utf8(text, path)?,
            (2, wire) => found = Some(value(kind, wire, path.key(&key), depth)?),
            _ => {}
        }
    }
    let empty = || value(kind, Wire::Bytes(&[]), path, depth);
    Ok((key, found.map_or_else(empty, Ok)?))
}

fn value(kind: &Type, wire: Wire<'_>, path: FieldPath<'_>, depth: usize) -> Result<Value, DecodeError> {
    Ok(match (kind, wire) {
        (Type::Text, Wire::Bytes(text)) => utf8(text, path)?.into(),
        (Type::Bytes, Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (Type::Bool, Wire::Varint(number)) => (number != 0).into(),
        // Negative numbers are written as their 64-bit two's complement.
        (Type::Integer, Wire::Varint(number)) => number.cast_signed().into(),
        (Type::Double, Wire::Fixed64(bits)) => json!(f64::from_bits(bits)),
        (Type::Message(name), Wire::Bytes(bytes)) => {
            let shape = messages::message(name).ok_or_else(|| at(path, "a message that is not known"))?;
            Value::Object(message(bytes, shape, path, depth + 1)?)
        }
        (Type::Special(name), Wire::Bytes(bytes)) => special(name, bytes, path, depth)?,
        _ => return Err(at(path, "a value of the wrong type")),
    })
}

/// The first value of a field in a message, if any.
fn first<'a>(bytes: &'a [u8], wanted: u32, path: FieldPath<'_>) -> Result<Option<Wire<'a>>, DecodeError> {
    for field in Fields(bytes) {
        let (number, wire) = field.map_err(|reason| at(path, reason))?;
        if number == wanted {
            return Ok(Some(wire));
        }
    }
    Ok(None)
}

/// Messages whose JSON form is not an object of their fields.
fn special(name: &str, bytes: &[u8], path: FieldPath<'_>, depth: usize) -> Result<Value, DecodeError> {
    let number = |wanted| {
        first(bytes, wanted, path).map(|wire| match wire {
            Some(Wire::Varint(number)) => number.cast_signed(),
            _ => 0,
        })
    };
    let text = |wanted| match first(bytes, wanted, path)? {
        Some(Wire::Bytes(text)) => utf8(text, path),
        _ => Ok(String::new()),
    };
    let schema = |wanted| match first(bytes, wanted, path)? {
        Some(wire) => value(&Type::Message("apiextensions.JSONSchemaProps"), wire, path, depth).map(Some),
        None => Ok(None),
    };
    let every = |wanted, kind: Type| -> Result<Value, DecodeError> {
        let mut list = Vec::new();
        for field in Fields(bytes) {
            let (number, wire) = field.map_err(|reason| at(path, reason))?;
            if number == wanted {
                list.push(value(&kind, wire, path, depth)?);
            }
        }
        Ok(Value::Array(list))
    };
    Ok(match name {
        "Quantity" => text(1)?.into(),
        "IntOrString" if number(1)? == 0 => number(2)?.into(),
        "IntOrString" => text(3)?.into(),
        "Time" | "MicroTime" if bytes.is_empty() => Value::Null,
        "Time" => time(number(1)?, 0, path)?.to_string().into(),
        // Go refuses one without its six digits.
        "MicroTime" => format!("{:.6}", time(number(1)?, number(2)?, path)?).into(),
        "Duration" => format!("{:#}", SignedDuration::from_nanos(number(1)?)).replace(' ', "").into(),
        "FieldsV1" | "RawExtension" | "JSON" => {
            let raw = match first(bytes, 1, path)? {
                Some(Wire::Bytes(raw)) if !raw.is_empty() => raw,
                _ => return Ok(Value::Null),
            };
            serde_json::from_slice(raw).map_err(|_| at(path, "embedded JSON does not parse"))?
        }
        "Strings" => every(1, Type::Text)?,
        "JSONSchemaPropsOrArray" => {
            schema(1)?.map_or_else(|| every(2, Type::Message("apiextensions.JSONSchemaProps")), Ok)?
        }
        "JSONSchemaPropsOrBool" => {
            schema(2)?.map_or_else(|| number(1).map(|allows| (allows != 0).into()), Ok)?
        }
        "JSONSchemaPropsOrStringArray" => schema(1)?.map_or_else(|| every(2, Type::Text), Ok)?,
        _ => return Err(at(path, "a message that is not known")),
    })
}

fn time(seconds: i64, nanos: i64, path: FieldPath<'_>) -> Result<Timestamp, DecodeError> {
    let nanos = i32::try_from(nanos).map_err(|_| at(path, "a time out of range"))?;
    Timestamp::new(seconds, nanos).map_err(|_| at(path, "a time out of range"))
}

#[cfg(test)]
mod tests;
