//! ControllerRevisions: earlier states of a workload. Their data does not change.

use serde_json::Value;

use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

pub(crate) fn check(kind: &Kind, old: Option<&Value>, object: &Value) -> Result<(), Failure> {
    let mut causes = Vec::new();
    if object["revision"].as_i64().is_some_and(|revision| revision < 0) {
        let why = "must be greater than or equal to 0";
        causes.push(Cause::invalid("revision", &object["revision"], why));
    }
    match old {
        Some(old) if old["data"] != object["data"] => {
            causes.push(Cause::invalid("data", &object["data"], "field is immutable"));
        }
        None if object["data"].is_null() => causes.push(Cause::required("data", "data is mandatory")),
        None if !object["data"].is_object() => {
            causes.push(Cause::required("data", "data must be a valid JSON object"));
        }
        _ => {}
    }
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}
