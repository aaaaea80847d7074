//! OpenAPI v3: the index and one document for each group and version, made from the kinds' schemas.
//!
//! kubectl reads three things of it: whether the verbs take `fieldValidation`, whether a kind takes strategic merge
//! patches, and the schemas (for `explain` and for the merge keys of `apply`). Before 1.27 it reads OpenAPI v2 instead.

mod binary;
mod paths;
mod v2;

use std::collections::BTreeMap;
use std::hash::Hasher;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::kinds::{Kind, OBJECT_META, REFERENCE, api_version, definition};

const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// Media types of OpenAPI v2 in Protobuf, as clients name it and as an answer does.
const BINARY: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// The document of `/openapi/v2` in both forms.
#[derive(Debug)]
pub(crate) struct Old {
    json: Bytes,
    binary: Bytes,
}

impl Old {
    pub(crate) fn of<'a>(kinds: impl IntoIterator<Item = &'a Kind>, server_version: &str) -> Old {
        let document = v2::document(kinds, server_version);
        Old { binary: binary::encode(&document).into(), json: document.to_string().into() }
    }

    /// Returns the form that an `Accept` header prefers, and its media type; `None` if it accepts neither.
    pub(crate) fn form(&self, accept: &str) -> Option<(Bytes, &'static str)> {
        let ranges = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim());
        for range in ranges {
            match range {
                "" | "application/json" | "application/*" | "*/*" => {
                    return Some((self.json.clone(), "application/json"));
                }
                range if BINARY.contains(&range) => return Some((self.binary.clone(), BINARY[1])),
                _ => {}
            }
        }
        None
    }
}

/// The answer to `/openapi/v3`: where each document is, with a hash that changes when the document does.
pub(crate) fn index<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> Value {
    let mut hashes: BTreeMap<String, Fingerprint> = BTreeMap::new();
    for kind in kinds {
        let path = document_path(&kind.group, &kind.version);
        hashes.entry(path).or_default().add(kind);
    }
    let entry = |(path, hash): (String, Fingerprint)| {
        let url = format!("/openapi/v3/{path}?hash={:016X}", hash.0.finish());
        (path, json!({"serverRelativeURL": url}))
    };
    json!({"paths": hashes.into_iter().map(entry).collect::<Map<_, _>>()})
}

/// The answer to `/openapi/v3/PATH`, where the path is `api/v1` or `apis/GROUP/VERSION`. `None` if nothing is served
/// there. `server_version` is what `/version` says, such as `v1.36.0`.
pub(crate) fn document<'a>(
    kinds: impl IntoIterator<Item = &'a Kind>,
    path: &str,
    server_version: &str,
) -> Option<Value> {
    let kinds: Vec<_> = kinds.into_iter().filter(|k| document_path(&k.group, &k.version) == path).collect();
    if kinds.is_empty() {
        return None;
    }
    let mut paths = Map::new();
    let mut schemas = BTreeMap::new();
    add_definition(DELETE_OPTIONS, &mut schemas);
    for kind in kinds {
        paths::add(kind, &mut paths);
        add_kind(kind, &mut schemas);
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

fn document_path(group: &str, version: &str) -> String {
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", api_version(group, version))
}

/// Hash of a document's sources. The hasher has fixed keys, so that a restart keeps clients' caches.
#[derive(Default)]
struct Fingerprint(std::hash::DefaultHasher);

impl Fingerprint {
    fn add(&mut self, kind: &Kind) {
        self.0.write(env!("CARGO_PKG_VERSION").as_bytes());
        self.0.write(kind.kind.as_bytes());
        for sub in &kind.subresources {
            self.0.write(sub.name.as_bytes());
        }
        if let Some(schema) = &kind.schema {
            // Writing to a hasher cannot fail.
            let _ = serde_json::to_writer(&mut *self, schema.as_ref());
        }
    }
}

impl std::io::Write for Fingerprint {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The name of a kind's component: that of its definition, or `org.example.v1.Box`.
fn component(kind: &Kind) -> String {
    match &kind.definition {
        Some(name) => name.clone(),
        None => {
            let reversed: Vec<_> = kind.group.rsplit('.').collect();
            format!("{}.{}.{}", reversed.join("."), kind.version, kind.kind)
        }
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{REFERENCE}{name}")})
}

fn add_kind(kind: &Kind, schemas: &mut BTreeMap<String, Value>) {
    let name = component(kind);
    if kind.is_custom() {
        schemas.insert(name.clone(), custom_schema(kind));
        add_definition(OBJECT_META, schemas);
    } else {
        add_definition(&name, schemas);
    }
    for sub in &kind.subresources {
        if let Some(definition) = body_definition(sub.body.0.as_str(), &sub.body.2) {
            add_definition(definition, schemas);
        }
    }
    if !kind.is_review() {
        add_definition(LIST_META, schemas);
        schemas.insert(format!("{name}List"), list_schema(kind, &name));
    }
}

/// The definitions of subresources' bodies that are not the kind itself.
fn body_definition(group: &str, kind: &str) -> Option<&'static str> {
    Some(match (group, kind) {
        ("autoscaling", "Scale") => "io.k8s.api.autoscaling.v1.Scale",
        ("policy", "Eviction") => "io.k8s.api.policy.v1.Eviction",
        ("", "Binding") => "io.k8s.api.core.v1.Binding",
        ("authentication.k8s.io", "TokenRequest") => "io.k8s.api.authentication.v1.TokenRequest",
        _ => return None,
    })
}

/// Adds a definition and all that it refers to.
fn add_definition(name: &str, schemas: &mut BTreeMap<String, Value>) {
    if schemas.contains_key(name) {
        return;
    }
    let Some(schema) = definition(name) else { return };
    schemas.insert(name.into(), schema.clone());
    let mut found = Vec::new();
    references(schema, &mut found);
    for name in found {
        add_definition(name, schemas);
    }
}

fn references<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    match schema {
        Value::Object(map) => {
            let reference = map.get("$ref").and_then(Value::as_str);
            found.extend(reference.and_then(|r| r.strip_prefix(REFERENCE)));
            map.values().for_each(|child| references(child, found));
        }
        Value::Array(items) => items.iter().for_each(|child| references(child, found)),
        _ => {}
    }
}

fn gvk(kind: &Kind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

/// `apiVersion` and `kind` with their usual descriptions.
fn type_properties() -> Map<String, Value> {
    let text = |description: &str| json!({"type": "string", "description": description});
    let mut properties = Map::new();
    let version = "APIVersion defines the versioned schema of this representation of an object.";
    let kind = "Kind is a string value representing the REST resource this object represents.";
    properties.insert("apiVersion".into(), text(version));
    properties.insert("kind".into(), text(kind));
    properties
}

/// A custom kind's own schema, with what every object has filled in.
fn custom_schema(kind: &Kind) -> Value {
    let mut schema = kind.schema.as_deref().cloned().unwrap_or_else(|| json!({"type": "object"}));
    let described = type_properties();
    let metadata = json!({"allOf": [reference(OBJECT_META)], "description": "Standard object's metadata."});
    if let Value::Object(map) = &mut schema {
        if let Value::Object(properties) = map.entry("properties").or_insert_with(|| json!({})) {
            properties.extend(described);
            properties.insert("metadata".into(), metadata);
        }
        map.insert("x-kubernetes-group-version-kind".into(), json!([gvk(kind)]));
    }
    schema
}

fn list_schema(kind: &Kind, item: &str) -> Value {
    let mut properties = type_properties();
    let description = format!("List of {}.", kind.plural);
    properties.insert(
        "items".into(),
        json!({"description": description, "type": "array", "items": reference(item)}),
    );
    properties.insert(
        "metadata".into(),
        json!({"allOf": [reference(LIST_META)], "description": "Standard list metadata."}),
    );
    json!({
        "description": format!("{} is a list of {}", kind.list_kind, kind.kind),
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind":
            [{"group": kind.group, "version": kind.version, "kind": kind.list_kind}],
    })
}

#[cfg(test)]
mod tests;
