//! Converts `spec.replicas` (0 or 1) from and to `spec.operatingMode`.

use serde_json::{Map, Value, json};

use super::{Error, Saved, object_entry, text};

pub(super) fn up(object: &mut Map<String, Value>, _: Option<&Saved>) -> Result<(), Error> {
    let spec = object_entry(object, "spec")?;
    let suspended = spec.remove("replicas").and_then(|n| n.as_i64()) == Some(0);
    spec.insert("operatingMode".into(), if suspended { "Suspended" } else { "Running" }.into());
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("replicas");
    }
    Ok(())
}

pub(super) fn down(object: &mut Map<String, Value>, saved: Option<&Saved>) -> Result<(), Error> {
    let mode = text(object, &["spec", "operatingMode"]).to_owned();
    let plain = if mode == "Suspended" { 0 } else { 1 };
    let spec = object_entry(object, "spec")?;
    spec.remove("operatingMode");
    // Restores the client's own value, "not set" included, unless that value meant suspended.
    let replicas = match saved.filter(|_| mode == "Running") {
        Some(saved) => saved.replicas().map(|n| if n == 0 { 1 } else { n }),
        None => Some(plain),
    };
    if let Some(replicas) = replicas {
        spec.insert("replicas".into(), json!(replicas));
    }
    let observed = match saved {
        Some(saved) => saved.observed_replicas(),
        // `None` is omitted, as Go's types do.
        None => (plain > 0).then_some(plain),
    };
    let has_status = object.get("status").is_some_and(Value::is_object);
    if has_status || observed.is_some() {
        let status = object_entry(object, "status")?;
        status.remove("nodeName");
        if let Some(observed) = observed {
            status.insert("replicas".into(), json!(observed));
        }
    }
    Ok(())
}
