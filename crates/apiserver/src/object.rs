//! An object as it is stored: encoded JSON, and the labels for selectors.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

/// An object in its storage version.
///
/// It is kept encoded: a get is a copy of bytes, a list is a join of them, and an idle object costs its text and
/// no more (a decoded tree takes five to ten times that). A write decodes it, in some ten microseconds.
#[derive(Debug)]
pub(crate) struct Object {
    json: Bytes,
    /// Position in the text after `kind` and `apiVersion`, which come first.
    after_type: usize,
    /// An object of nothing but `metadata.labels`, which is all that a label selector looks at.
    labels: Value,
}

impl Object {
    /// The whole text.
    pub(crate) fn json(&self) -> &Bytes {
        &self.json
    }

    /// The text without `kind` and `apiVersion`, lacking the opening brace.
    pub(crate) fn json_after_type(&self) -> &[u8] {
        &self.json[self.after_type..]
    }

    /// An object with these labels and nothing else.
    pub(crate) fn labels(&self) -> &Value {
        &self.labels
    }

    /// Decodes it.
    pub(crate) fn value(&self) -> Value {
        // `seal` encodes what was decoded, within the depth of a body, and `open` refuses what cannot be decoded.
        serde_json::from_slice(&self.json).unwrap_or_else(|error| {
            tracing::error!(%error, "an object in memory cannot be decoded");
            Value::Null
        })
    }
}

/// A value that can be decoded, with its numbers and its depth. Nothing of it is kept.
struct Decodable;

impl<'de> Deserialize<'de> for Decodable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Decodable)
    }
}

impl<'de> Visitor<'de> for Decodable {
    type Value = Decodable;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Decodable>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<Decodable, Decodable>()?.is_some() {}
        Ok(self)
    }
}

/// Key of an object in its collection: `namespace/name`, or the name alone.
pub(crate) fn key(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// Encodes an object with `kind`, `apiVersion` and `metadata` first, as a Kubernetes API server does. Also returns
/// the position of the text after the first two.
pub(crate) fn encode(object: &Value) -> (Vec<u8>, usize) {
    const FIRST: [&str; 2] = ["kind", "apiVersion"];
    let mut text = Vec::with_capacity(1024);
    let Some(map) = object.as_object() else {
        text.extend_from_slice(object.to_string().as_bytes());
        return (text, 1);
    };
    text.push(b'{');
    for name in FIRST {
        if let Some(value) = map.get(name) {
            write_field(&mut text, name, value);
        }
    }
    let after_type = text.len();
    if let Some(metadata) = map.get("metadata") {
        write_field(&mut text, "metadata", metadata);
    }
    for (name, value) in map {
        if !FIRST.contains(&name.as_str()) && name != "metadata" {
            write_field(&mut text, name, value);
        }
    }
    if text.last() == Some(&b',') {
        text.pop();
    }
    text.push(b'}');
    // An object of nothing but its type has no text after it.
    let after_type = after_type.min(text.len() - 1);
    (text, after_type)
}

fn write_field(text: &mut Vec<u8>, name: &str, value: &Value) {
    // Writing to a Vec cannot fail, and a Value has only string keys.
    let _ = serde_json::to_writer(&mut *text, name);
    text.push(b':');
    let _ = serde_json::to_writer(&mut *text, value);
    text.push(b',');
}

fn only_labels(labels: Option<Value>) -> Value {
    labels.map_or(Value::Null, |labels| json!({ "metadata": { "labels": labels } }))
}

/// Sets `metadata.resourceVersion`.
pub(crate) fn set_revision(object: &mut Value, revision: u64) {
    if let Some(object) = object.as_object_mut() {
        let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("resourceVersion".into(), revision.to_string().into());
        }
    }
}

impl hutch_store::Value for Object {
    type Draft = Value;

    fn seal(mut draft: Value, revision: u64) -> Self {
        // Revision 0 is that of an object that is shown and never stored.
        if revision > 0 {
            set_revision(&mut draft, revision);
        }
        let (text, after_type) = encode(&draft);
        Object {
            json: text.into(),
            after_type,
            labels: only_labels(draft.pointer("/metadata/labels").cloned()),
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.json
    }

    fn open(bytes: &[u8]) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head<'a> {
            #[serde(borrow)]
            kind: std::borrow::Cow<'a, str>,
            #[serde(borrow)]
            api_version: std::borrow::Cow<'a, str>,
            #[serde(default)]
            metadata: Metadata,
        }
        #[derive(serde::Deserialize, Default)]
        struct Metadata {
            #[serde(default)]
            labels: Option<Value>,
        }
        let Decodable = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let head: Head<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let start = encode(&json!({ "kind": head.kind, "apiVersion": head.api_version, "metadata": 0 }));
        let after_type = start.1;
        if bytes.get(..after_type) != start.0.get(..after_type) {
            return Err("it does not begin with its kind".into());
        }
        Ok(Object {
            json: Bytes::copy_from_slice(bytes),
            after_type,
            labels: only_labels(head.metadata.labels),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hutch_store::Value as _;

    #[test]
    fn an_object_is_read_as_it_was_written() {
        let draft = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": {"a": 1},
            "metadata": {"name": "x", "labels": {"app": "y"}},
        });
        let object = Object::seal(draft, 7);
        assert!(object.json().starts_with(br#"{"kind":"Pod","apiVersion":"v1","metadata":{"#));
        assert!(object.json_after_type().starts_with(br#""metadata":{"#));
        let again = Object::open(object.bytes()).unwrap();
        assert_eq!(again.value(), object.value());
        assert_eq!(again.json_after_type(), object.json_after_type());
        assert_eq!(again.labels()["metadata"]["labels"]["app"], "y");
        assert_eq!(object.value()["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn damage_is_seen() {
        assert!(Object::open(b"{\"kind\":\"Pod\"").is_err());
        assert!(Object::open(br#"{"apiVersion":"v1","kind":"Pod"}"#).is_err());
        let with = |a: &str| format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{}},"a":{a}}}"#);
        Object::open(with("[1, -1, 1.5, null, true, {\"b\": \"\\n\"}]").as_bytes()).unwrap();
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for undecodable in ["1e999", "\"\\ud800\"", &deep] {
            assert!(serde_json::from_str::<Value>(&with(undecodable)).is_err(), "{undecodable}");
            assert!(Object::open(with(undecodable).as_bytes()).is_err(), "{undecodable}");
        }
    }
}
