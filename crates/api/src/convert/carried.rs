//! What rides in annotations because the other version has no field for it.

use serde_json::{Map, Value, json};

use super::{Error, object_entry};

/// Bytes of all annotations of an object, keys and values: what Kubernetes takes.
const ANNOTATIONS_BYTES: usize = 256 << 10;
/// The fields of the older version for which the newer one has no place, with all kinds together.
const OLD_FIELDS: [(&str, &str); 4] =
    [("spec", "replicas"), ("spec", "sandboxTemplateRef"), ("spec", "warmpool"), ("status", "replicas")];

/// The older object that was saved with a newer one.
pub(super) struct Saved {
    key: &'static str,
    object: Value,
}

impl Saved {
    pub(super) fn parse(key: &'static str, text: &str) -> Result<Saved, Error> {
        let object: Value = decode(key, text)?;
        if !object.is_object() {
            return Err(Error::State { key, reason: "it holds no JSON object".into() });
        }
        Ok(Saved { key, object })
    }

    /// A field that is a 32-bit integer; none when it is not there or null.
    pub(super) fn integer(&self, path: &str) -> Result<Option<i32>, Error> {
        match self.object.pointer(path) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
                number.map(Some).ok_or_else(|| self.wrong(path, "a 32-bit integer"))
            }
        }
    }

    /// A field that is a string; none when it is not there or null.
    pub(super) fn text(&self, path: &str) -> Result<Option<&str>, Error> {
        match self.object.pointer(path) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.wrong(path, "a string")),
        }
    }

    fn wrong(&self, path: &str, wanted: &str) -> Error {
        let field = path.trim_start_matches('/').replace('/', ".");
        Error::State { key: self.key, reason: format!("{field} is not {wanted}") }
    }
}

/// What an annotation holds, as JSON.
pub(super) fn decode<T: serde::de::DeserializeOwned>(key: &'static str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::State { key, reason: error.to_string() })
}

/// The older object as text, without what changes at every write: else an update that changes nothing would
/// still change the stored object, and wake every watcher.
///
/// Where the whole would not fit among the object's annotations, the fields that the newer version has not.
pub(super) fn saved_copy(object: &Map<String, Value>, key: &str) -> String {
    let mut copy = object.clone();
    let mut others = 0;
    if let Some(metadata) = copy.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
        metadata.remove("generation");
        if let Some(annotations) = metadata.get("annotations").and_then(Value::as_object) {
            others =
                annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
        }
    }
    let whole = Value::Object(copy).to_string();
    if others + key.len() + whole.len() <= ANNOTATIONS_BYTES { whole } else { old_fields(object).to_string() }
}

fn old_fields(object: &Map<String, Value>) -> Value {
    let mut kept = json!({});
    for key in ["apiVersion", "kind"] {
        if let Some(value) = object.get(key) {
            kept[key] = value.clone();
        }
    }
    for (part, field) in OLD_FIELDS {
        if let Some(value) = object.get(part).and_then(|part| part.get(field)) {
            kept[part][field] = value.clone();
        }
    }
    kept
}

pub(super) fn take_annotation(object: &mut Map<String, Value>, key: &str) -> Option<String> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let value = annotations.remove(key)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    value.as_str().map(str::to_owned)
}

pub(super) fn set_annotation(object: &mut Map<String, Value>, key: &str, value: String) -> Result<(), Error> {
    let metadata = object_entry(object, "metadata")?;
    object_entry(metadata, "annotations")?.insert(key.to_owned(), value.into());
    Ok(())
}
