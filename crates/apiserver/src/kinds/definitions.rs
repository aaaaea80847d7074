//! The published OpenAPI definitions of the built-in kinds (`definitions/kubernetes.txt`, Apache-2.0, from Kubernetes
//! 1.36): with descriptions for `kubectl explain`, merge keys for patches, list types for apply.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use serde_json::Value;

/// Prefix of a reference to a definition.
pub(crate) const REFERENCE: &str = "#/components/schemas/";
/// The definition of every object's metadata.
pub(crate) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// A definition as text, parsed at its first use: most runs need a few dozen of the 350.
struct Entry {
    text: &'static str,
    parsed: OnceLock<Value>,
}

static TEXT: &str = include_str!("definitions/kubernetes.txt");
static INDEX: LazyLock<BTreeMap<&'static str, Entry>> = LazyLock::new(|| {
    let lines = TEXT.lines().filter_map(|line| line.split_once('\t'));
    lines.map(|(name, text)| (name, Entry { text, parsed: OnceLock::new() })).collect()
});

/// The OpenAPI definition of that name, such as `io.k8s.api.core.v1.Pod`.
pub(crate) fn definition(name: &str) -> Option<&'static Value> {
    let entry = INDEX.get(name)?;
    // The text is a constant of the program and a test parses every line of it.
    Some(entry.parsed.get_or_init(|| serde_json::from_str(entry.text).unwrap_or_default()))
}

/// The schema that a `$ref` (or an `allOf` of one `$ref`) stands for; any other schema itself.
pub(crate) fn resolve(schema: &Value) -> &Value {
    let reference = schema.get("$ref").or_else(|| schema.get("allOf")?.get(0)?.get("$ref"));
    let name = reference.and_then(Value::as_str).and_then(|r| r.strip_prefix(REFERENCE));
    name.and_then(definition).unwrap_or(schema)
}

/// All names, sorted.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    INDEX.keys().copied()
}
