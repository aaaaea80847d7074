//! Data that annotations carry because the other version has no field for it.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Error, object_entry};

/// Maximum bytes of all annotations of an object, keys and values; the limit of Kubernetes.
const ANNOTATIONS_BYTES: usize = 256 << 10;
/// Fields of the older version that the newer version lacks, over all kinds.
const OLD_FIELDS: [(&str, &str); 4] =
    [("spec", "replicas"), ("spec", "sandboxTemplateRef"), ("spec", "warmpool"), ("status", "replicas")];

/// Relevant parts of the older object that was saved with a newer one.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Saved {
    #[serde(default)]
    spec: Option<SavedSpec>,
    #[serde(default)]
    status: Option<SavedStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedSpec {
    replicas: Option<i32>,
    sandbox_template_ref: Option<SavedReference>,
    warmpool: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct SavedStatus {
    replicas: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
struct SavedReference {
    name: Option<String>,
}

impl Saved {
    pub(super) fn parse(text: &str) -> Option<Saved> {
        let whole: Value = serde_json::from_str(text).ok().filter(Value::is_object)?;
        serde_json::from_value(whole).ok()
    }

    pub(super) fn replicas(&self) -> Option<i32> {
        self.spec.as_ref()?.replicas
    }

    pub(super) fn observed_replicas(&self) -> Option<i32> {
        self.status.as_ref()?.replicas
    }

    pub(super) fn template(&self) -> Option<&str> {
        self.spec.as_ref()?.sandbox_template_ref.as_ref()?.name.as_deref()
    }

    pub(super) fn warmpool(&self) -> Option<&str> {
        self.spec.as_ref()?.warmpool.as_deref()
    }
}

/// Serializes the older object without the fields that change at every write: otherwise an update that
/// changes nothing would still change the stored object, and wake every watcher.
///
/// Falls back to the fields that the newer version lacks when the whole exceeds the annotation limit.
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

/// Removes an annotation and returns its value; an undecodable one stays in place.
pub(super) fn take_readable<T>(
    object: &mut Map<String, Value>,
    key: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Option<T> {
    let value = read(object.get("metadata")?.get("annotations")?.get(key)?.as_str()?)?;
    take_annotation(object, key);
    Some(value)
}

pub(super) fn take_annotation(object: &mut Map<String, Value>, key: &str) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    if annotations.remove(key).is_some() && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

pub(super) fn set_annotation(object: &mut Map<String, Value>, key: &str, value: String) -> Result<(), Error> {
    let metadata = object_entry(object, "metadata")?;
    object_entry(metadata, "annotations")?.insert(key.to_owned(), value.into());
    Ok(())
}
