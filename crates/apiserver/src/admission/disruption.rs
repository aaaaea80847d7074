//! PodDisruptionBudgets: numbers, percentages and policies.

use serde_json::{Value, json};

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
        share(&spec[field], &format!("spec.{field}"), &mut causes);
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

/// A number of at least 0, or a percentage of at most 100.
fn share(value: &Value, field: &str, causes: &mut Vec<Cause>) {
    let mut wrong = |why: &str| causes.push(Cause::invalid(field, value, why));
    if let Some(text) = value.as_str() {
        let digits = text.strip_suffix('%').filter(|digits| !digits.is_empty());
        match digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
            None => wrong(
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
            ),
            Some(digits) if digits.parse::<u32>().is_ok_and(|percent| percent <= 100) => {}
            Some(_) => wrong("must not be greater than 100%"),
        }
    } else if value.as_i64().is_some_and(|number| number < 0) {
        wrong("must be greater than or equal to 0");
    }
}
