//! ConfigMaps and Secrets: their keys become names of files.

use serde_json::Value;

use super::names::{invalid, key};
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// Checks the keys. Those that were stored before the rule existed stay until they are removed.
pub(crate) fn check(kind: &Kind, old: Option<&Value>, object: &Value) -> Result<(), Failure> {
    let mut causes = Vec::new();
    for field in ["data", "binaryData"] {
        for name in object[field].as_object().into_iter().flat_map(|data| data.keys()) {
            if old.is_some_and(|old| old[field].get(name).is_some()) {
                continue;
            }
            causes.extend(invalid(&format!("{field}[{name}]"), name, key(name)));
            if field == "data" && !object["binaryData"][name].is_null() {
                let message = "duplicate of key present in binaryData";
                causes.push(Cause::invalid(format!("data[{name}]"), &name.as_str().into(), message));
            }
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}
