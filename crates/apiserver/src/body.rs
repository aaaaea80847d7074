//! Request bodies: JSON, YAML or protobuf, as one JSON value.

use std::fmt;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::field_path::{FieldPath, Findings};
use crate::{BODY_BYTES, protobuf};

/// Media types that create and update accept.
const ACCEPTED: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// A body that was read.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    pub(crate) value: Value,
    /// Paths of fields that appear twice; the last one counts.
    pub(crate) duplicates: Vec<String>,
    /// The body itself if it is JSON.
    pub(crate) text: Bytes,
}

/// Reads the whole body, 3 MiB at most.
pub(crate) async fn read(body: Body) -> Result<Bytes, Failure> {
    match Limited::new(body, BODY_BYTES).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::too_large()),
        Err(error) => Err(Failure::bad_request(format!("the body could not be read: {error}"))),
    }
}

/// The media type of the body, without parameters; JSON when the client names none.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media.is_empty() { "application/json".into() } else { media }
}

/// Decodes the body of a create, an update or a delete.
pub(crate) fn decode(bytes: &Bytes, media_type: &str) -> Result<Decoded, Failure> {
    match media_type {
        "application/json" => json(bytes).map(|decoded| Decoded { text: bytes.clone(), ..decoded }),
        "application/yaml" => yaml(bytes),
        protobuf::MEDIA_TYPE => {
            let value = protobuf::decode(bytes).map_err(|error| Failure::bad_request(error.to_string()))?;
            Ok(Decoded { value, ..Decoded::default() })
        }
        _ => Err(Failure::unsupported_media_type(ACCEPTED)),
    }
}

/// Decodes JSON and notes fields that appear twice.
pub(crate) fn json(bytes: &[u8]) -> Result<Decoded, Failure> {
    let mut duplicates = Findings::default();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let seed = Noting { path: FieldPath::ROOT, duplicates: &mut duplicates };
    let value = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let value =
        value.map_err(|error| Failure::bad_request(format!("couldn't decode the body as JSON: {error}")))?;
    Ok(Decoded { value, duplicates: duplicates.into_messages(), ..Decoded::default() })
}

/// Decodes YAML. Errors tell line and column.
pub(crate) fn yaml(bytes: &[u8]) -> Result<Decoded, Failure> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Failure::bad_request(format!("couldn't decode the body as YAML: {error}")))?;
    let mut value = serde_saphyr::from_str(text)
        .map_err(|error| Failure::bad_request(format!("couldn't decode the body as YAML: {error}")))?;
    // On its way through JSON a whole number loses its point.
    crate::number::shorten(&mut value);
    Ok(Decoded { value, ..Decoded::default() })
}

/// Builds a [`Value`] and notes duplicate fields by path.
struct Noting<'a> {
    path: FieldPath<'a>,
    duplicates: &'a mut Findings,
}

impl<'de> DeserializeSeed<'de> for Noting<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Noting<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        // This is how `-0` is read.
        Ok(if value == 0.0 && value.is_sign_negative() { 0.into() } else { value.into() })
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let seed = Noting { path: self.path.item(list.len()), duplicates: &mut *self.duplicates };
            match items.next_element_seed(seed)? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = self.path.field(&name);
            if map.contains_key(&name) {
                self.duplicates.add(format_args!("{path}"));
            }
            let value = fields.next_value_seed(Noting { path, duplicates: &mut *self.duplicates })?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field_path::tests::{MAX_JOINED, joined_by};

    #[test]
    fn duplicates_are_noted_with_their_path() {
        let read = json(br#"{"a":{"b":1,"b":2,"c":[{"d":1,"d":2}]},"e":[1,null,true,"x",-1,1.5]}"#).unwrap();
        assert_eq!(read.duplicates, ["a.b", "a.c[0].d"]);
        assert_eq!(read.value["a"]["b"], 2);
        assert_eq!(read.value["e"], json!([1, null, true, "x", -1, 1.5]));
    }

    #[test]
    fn paths_are_joined_for_duplicates_only() {
        let long = "k".repeat(1 << 20);
        let body = format!(r#"{{"{long}":[{}{{"d":1,"d":2}}]}}"#, "{\"a\":[0]},".repeat(100_000));
        let joined = joined_by(|| {
            let read = json(body.as_bytes()).unwrap();
            assert_eq!(read.duplicates.len(), 1);
        });
        assert!(joined <= 1024, "{joined}");
        let body = format!(r#"{{"{long}":{{{}"a":0}}}}"#, r#""a":0,"#.repeat(100_000));
        let joined = joined_by(|| assert_eq!(json(body.as_bytes()).unwrap().duplicates.len(), 1));
        assert!(joined <= MAX_JOINED, "{joined}");
    }

    #[test]
    fn syntax_error_names_its_position() {
        assert!(json(b"{\"a\":").unwrap_err().message.contains("line 1 column"));
        assert!(json(b"{} x").is_err());
        let error = yaml(b"a: 1\nb: [1,\nc: }").unwrap_err().message;
        assert!(error.contains("line"), "{error}");
    }
}
