//! Converts `spec.replicas`, required in the older version, and `status.observedGeneration`, absent in it.

use serde_json::{Map, Value, json};

use super::{Error, Saved, object_entry};

pub(super) fn up(_: &mut Map<String, Value>, _: Option<&Saved>) -> Result<(), Error> {
    Ok(())
}

pub(super) fn down(object: &mut Map<String, Value>, _: Option<&Saved>) -> Result<(), Error> {
    let replicas = object_entry(object, "spec")?.entry("replicas").or_insert(Value::Null);
    if replicas.is_null() {
        *replicas = json!(1);
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("observedGeneration");
    }
    Ok(())
}
