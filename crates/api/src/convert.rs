//! Conversion between the two served versions, on JSON.
//!
//! `v1beta1` is the hub. An annotation holds the whole `v1alpha1` object, so that a client of the older
//! version reads back what it wrote. In the other direction, fields of `spec` that the older version lacks
//! are kept in annotations of their own, so that an old client that reads and writes does not lose them. Two
//! fields of `status` are not kept, `nodeName` and `observedGeneration`: permission to write annotations must
//! not grant writes to status, and the controller observes both again.
//!
//! An undecodable annotation is ignored and stays in place: a conversion review holds all objects of a list,
//! so a user who may write one annotation could otherwise block every read of that kind.

mod carried;
mod claim;
mod sandbox;
mod template;
mod warm_pool;

use serde_json::{Map, Value};

use self::carried::{Saved, saved_copy, set_annotation, take_annotation, take_readable};
use crate::{DEPRECATED_VERSION, EXTENSIONS_GROUP, GROUP, STORED_VERSION, annotation};

/// Reason why an object could not be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The object is no JSON object, or one of its parts has the wrong shape.
    #[error("{0} is missing or is not an object")]
    Shape(&'static str),
    /// There is no conversion between these versions of this kind.
    #[error("cannot convert {kind} from {from:?} to {to:?}")]
    Unsupported {
        /// Kind of the object.
        kind: String,
        /// Its version.
        from: String,
        /// The requested version.
        to: String,
    },
}

impl From<Error> for String {
    fn from(error: Error) -> Self {
        error.to_string()
    }
}

/// Converts the object to another version, for example `agents.x-k8s.io/v1alpha1`; no-op for its own version.
///
/// # Errors
/// When the kind or a version is unknown, or the object is malformed.
pub fn convert(object: Value, to_api_version: &str) -> Result<Value, Error> {
    let Value::Object(mut object) = object else { return Err(Error::Shape("the object")) };
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (from, kind) = (text("apiVersion"), text("kind"));
    if from == to_api_version {
        return Ok(Value::Object(object));
    }
    let unsupported =
        || Error::Unsupported { kind: kind.clone(), from: from.clone(), to: to_api_version.to_owned() };
    let (group, key, up, down): (_, _, Step, Step) = match kind.as_str() {
        "Sandbox" => (GROUP, annotation::SANDBOX_STATE, sandbox::up, sandbox::down),
        "SandboxClaim" => (EXTENSIONS_GROUP, annotation::CLAIM_STATE, claim::up, claim::down),
        "SandboxTemplate" => (EXTENSIONS_GROUP, annotation::TEMPLATE_STATE, template::up, template::down),
        "SandboxWarmPool" => (EXTENSIONS_GROUP, annotation::POOL_STATE, warm_pool::up, warm_pool::down),
        _ => return Err(unsupported()),
    };
    let (old, new) = (format!("{group}/{DEPRECATED_VERSION}"), format!("{group}/{STORED_VERSION}"));
    if from == old && to_api_version == new {
        take_annotation(&mut object, key);
        let state = saved_copy(&object, key);
        up(&mut object, None)?;
        set_annotation(&mut object, key, state)?;
    } else if from == new && to_api_version == old {
        let state = take_readable(&mut object, key, Saved::parse);
        down(&mut object, state.as_ref())?;
    } else {
        return Err(unsupported());
    }
    object.insert("apiVersion".into(), to_api_version.into());
    Ok(Value::Object(object))
}

/// Converts one kind in one direction, in place; `Some` is the older object that was saved with it.
type Step = fn(&mut Map<String, Value>, Option<&Saved>) -> Result<(), Error>;

/// Returns the object at that key; creates it when missing or null.
fn object_entry<'a>(
    parent: &'a mut Map<String, Value>,
    key: &'static str,
) -> Result<&'a mut Map<String, Value>, Error> {
    let entry = parent.entry(key).or_insert(Value::Null);
    if entry.is_null() {
        *entry = Value::Object(Map::new());
    }
    entry.as_object_mut().ok_or(Error::Shape(key))
}

/// Returns a string of the object, empty when absent.
fn text<'a>(object: &'a Map<String, Value>, path: &[&str]) -> &'a str {
    let Some((first, rest)) = path.split_first() else { return "" };
    let mut value = object.get(*first);
    for key in rest {
        value = value.and_then(|value| value.get(key));
    }
    value.and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
