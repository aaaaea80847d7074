//! `metadata`: names, identifiers, times.

pub(crate) mod check;

use hutch_serve::Ambient;
use serde_json::{Map, Value};

/// Letters of generated name suffixes: no vowels and nothing that looks like another letter.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters of a generated suffix.
const SUFFIX: usize = 5;
/// A generated name's base is cut to leave room for the suffix in a DNS label.
const BASE: usize = 63 - SUFFIX;

/// The name to try for a `generateName`.
pub(crate) fn generated_name(base: &str, ambient: &Ambient) -> String {
    let mut cut = base.len().min(BASE);
    while !base.is_char_boundary(cut) {
        cut -= 1;
    }
    let letter = |_| SUFFIX_LETTERS[ambient.below(SUFFIX_LETTERS.len())] as char;
    let suffix: String = (0..SUFFIX).map(letter).collect();
    format!("{}{suffix}", &base[..cut])
}

/// A time as Kubernetes writes it: UTC, whole seconds.
pub(crate) fn seconds(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metadata` of an object, made if missing.
pub(crate) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let object = object.as_object_mut().expect("was made an object above");
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("was made an object above")
}

/// A text field of `metadata`; empty when missing.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    !text(object, "deletionTimestamp").is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_fit_a_label() {
        let name = generated_name("sandbox-claim-", &Ambient::default());
        assert!(name.starts_with("sandbox-claim-") && name.len() == 19, "{name}");
        assert_eq!(generated_name(&"x".repeat(100), &Ambient::default()).len(), 63);
        assert!(check::name("", "namespaces", "metadata.name", &name).is_empty());
    }
}
