//! PodDisruptionBudgets: numbers, percentages and policies.

use serde_json::{Value, json};

use super::share;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;
use crate::selector::LabelSelector;

/// Checks a budget; a new one has not been counted.
pub(crate) fn check(kind: &Kind, old: Option<&Value>, object: &mut Value) -> Result<(), Failure> {
    if old.is_none() {
        object["status"] =
            json!({ "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0 });
    }
    let (spec, mut causes) = (&object["spec"], Vec::new());
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        causes.push(Cause::invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set"));
    }
    for field in ["minAvailable", "maxUnavailable"] {
        let (value, field) = (&spec[field], format!("spec.{field}"));
        share::check(value, &field, &mut causes);
        share::check_most(value, &field, &mut causes);
    }
    if let Err(error) = LabelSelector::from_object(&spec["selector"]) {
        causes.push(Cause::invalid("spec.selector", &spec["selector"], &error.to_string()));
    }
    if let Some(policy) = spec["unhealthyPodEvictionPolicy"].as_str()
        && !matches!(policy, "AlwaysAllow" | "IfHealthyBudget")
    {
        let message =
            format!("Unsupported value: {policy:?}: supported values: \"AlwaysAllow\", \"IfHealthyBudget\"");
        causes.push(Cause::new("FieldValueNotSupported", "spec.unhealthyPodEvictionPolicy", message));
    }
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}
