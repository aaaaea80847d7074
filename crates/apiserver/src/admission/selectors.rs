//! Label selectors inside objects, checked with Kubernetes' messages.

use hutch_api::syntax;
use serde_json::Value;

use super::names::invalid;
use crate::failure::Cause;

/// Checks a selector.
pub(super) fn check(selector: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        let field = format!("{at}.matchLabels");
        causes.extend(invalid(&field, key, syntax::key(key)));
        let value = value.as_str().unwrap_or_default();
        causes.extend(invalid(&field, value, syntax::label_value(value)));
    }
    for (index, expression) in selector["matchExpressions"].as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}.matchExpressions[{index}]");
        let values = expression["values"].as_array().map_or(&[][..], Vec::as_slice);
        match expression["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if values.is_empty() => causes.push(Cause::required(
                format!("{at}.values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => causes.push(Cause::forbidden(
                format!("{at}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let why = "not a valid selector operator";
                causes.push(Cause::invalid(format!("{at}.operator"), &other.into(), why));
            }
        }
        let key = expression["key"].as_str().unwrap_or_default();
        causes.extend(invalid(&format!("{at}.key"), key, syntax::key(key)));
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            causes.extend(invalid(&format!("{at}.values[{index}]"), value, syntax::label_value(value)));
        }
    }
}
