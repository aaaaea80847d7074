//! Defaults that a real API server adds to built-in objects, and the few of its checks that clients meet.
//!
//! It works on objects as they are stored. Each kind that needs something has a file of its own.

pub(crate) mod data;
pub(crate) mod definition;
pub(crate) mod names;
pub(crate) mod namespace;
pub(crate) mod pod;
pub(crate) mod rbac;
pub(crate) mod service;
pub(crate) mod token_secret;
pub(crate) mod volume_claim;
pub(crate) mod workload;

use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::quota::limits;
use crate::registry::Resource;
use crate::server::Core;

/// Completes a new object.
pub(crate) fn create(core: &Core, resource: &Resource, object: &mut Value) -> Result<(), Failure> {
    let kind = &resource.kind;
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => pod::create(core, kind, object),
        ("", "services") => service::create(core, object),
        ("", "namespaces") => {
            namespace::create(object);
            Ok(())
        }
        ("", "persistentvolumeclaims") => {
            volume_claim::create(kind, object)?;
            limits::check_volume_claim(core, kind, object)
        }
        ("", "limitranges") => {
            limits::complete(object);
            Ok(())
        }
        ("", "resourcequotas") => {
            object["status"] = json!({});
            Ok(())
        }
        ("", "configmaps") => data::check(kind, None, object),
        ("", "secrets") => {
            fold_string_data(object);
            default(object, "type", "Opaque");
            token_secret::fill(core, kind, object)?;
            data::check(kind, None, object)
        }
        ("", "persistentvolumes") => {
            object["status"] = json!({ "phase": "Pending" });
            Ok(())
        }
        ("", "nodes") => Ok(()),
        ("apps" | "batch", _) => workload::create(kind, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => definition::create(kind, object),
        (crate::access::GROUP, _) => rbac::check(kind, None, object),
        _ => Ok(()),
    }
}

/// Completes and checks a changed object.
pub(crate) fn update(
    core: &Core,
    resource: &Resource,
    old: &Value,
    object: &mut Value,
) -> Result<(), Failure> {
    let kind = &resource.kind;
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => pod::update(kind, old, object),
        ("", "services") => service::update(core, kind, old, object),
        ("", "namespaces") => {
            namespace::label(object);
            Ok(())
        }
        ("", "configmaps") => data::check(kind, Some(old), object),
        ("", "persistentvolumeclaims") => limits::check_volume_claim(core, kind, object),
        ("", "limitranges") => {
            limits::complete(object);
            Ok(())
        }
        ("", "secrets") => {
            fold_string_data(object);
            token_secret::fill(core, kind, object)?;
            data::check(kind, Some(old), object)
        }
        ("apps" | "batch", _) => workload::update(kind, old, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => definition::update(kind, old, object),
        (crate::access::GROUP, _) => rbac::check(kind, Some(old), object),
        _ => Ok(()),
    }
}

/// `stringData` of a Secret is a way of writing `data`.
fn fold_string_data(object: &mut Value) {
    use base64::Engine;
    let Some(Value::Object(texts)) = object.as_object_mut().and_then(|map| map.remove("stringData")) else {
        return;
    };
    let data = map(object, "data");
    for (key, text) in texts {
        let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
        data.insert(key, encoded.into());
    }
}

/// Sets an absent (or null) field.
pub(crate) fn default(object: &mut Value, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none_or(Value::is_null)
        && let Some(map) = object.as_object_mut()
    {
        map.insert(field.into(), value.into());
    }
}

/// A field that is an object, made if missing.
pub(crate) fn map<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = &mut object[field];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("was made an object above")
}

/// The items of a list field; none if it is missing.
pub(crate) fn items<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}
