//! `spec.replicas` (0 or 1) against `spec.operatingMode`.

use serde_json::{Map, Value, json};

use super::{Error, object_entry, text};

pub(super) fn up(object: &mut Map<String, Value>, _: Option<&Value>) -> Result<(), Error> {
    let spec = object_entry(object, "spec")?;
    let suspended = spec.remove("replicas").and_then(|n| n.as_i64()) == Some(0);
    spec.insert("operatingMode".into(), if suspended { "Suspended" } else { "Running" }.into());
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("replicas");
    }
    Ok(())
}

pub(super) fn down(object: &mut Map<String, Value>, saved: Option<&Value>) -> Result<(), Error> {
    let mode = text(object, &["spec", "operatingMode"]).to_owned();
    let plain = if mode == "Suspended" { 0 } else { 1 };
    let spec = object_entry(object, "spec")?;
    spec.remove("operatingMode");
    match saved.filter(|_| mode == "Running") {
        // The client's own value comes back, "not set" included, unless it meant suspended.
        Some(saved) => match saved["spec"].get("replicas") {
            None | Some(Value::Null) => {
                spec.remove("replicas");
            }
            Some(n) if n == &json!(0) => {
                spec.insert("replicas".into(), json!(1));
            }
            Some(n) => {
                spec.insert("replicas".into(), n.clone());
            }
        },
        None => {
            spec.insert("replicas".into(), json!(plain));
        }
    }
    let replicas = match saved {
        Some(saved) => saved["status"].get("replicas").cloned(),
        None => Some(json!(plain)),
    };
    let has_status = object.get("status").is_some_and(Value::is_object);
    if has_status || replicas.is_some() {
        let status = object_entry(object, "status")?;
        status.remove("nodeName");
        if let Some(replicas) = replicas {
            status.insert("replicas".into(), replicas);
        }
    }
    Ok(())
}
