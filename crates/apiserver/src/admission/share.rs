//! Fields that are a number of Pods or a percentage of them, with Kubernetes' messages.

use serde_json::Value;

use crate::failure::Cause;

const NO_PERCENTAGE: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// Checks that a value is a number of at least 0 or a percentage.
pub(super) fn check(value: &Value, field: &str, causes: &mut Vec<Cause>) {
    let wrong = match value.as_str() {
        Some(text) if percent(text).is_none() => Some(NO_PERCENTAGE),
        Some(_) => None,
        None => {
            value.as_i64().is_some_and(|number| number < 0).then_some("must be greater than or equal to 0")
        }
    };
    causes.extend(wrong.map(|why| Cause::invalid(field, value, why)));
}

/// Checks that a percentage is at most 100.
pub(super) fn check_most(value: &Value, field: &str, causes: &mut Vec<Cause>) {
    if value.as_str().and_then(percent).is_some_and(|percent| percent > 100) {
        causes.push(Cause::invalid(field, value, "must not be greater than 100%"));
    }
}

/// Returns true for 0, 0%, and a text that is neither a number nor a percentage.
pub(super) fn is_zero(value: &Value) -> bool {
    match value.as_str() {
        Some(text) => percent(text).or_else(|| text.parse().ok()).unwrap_or(0) == 0,
        None => value.as_i64() == Some(0),
    }
}

/// Returns a percentage; the largest number for one that is larger.
fn percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%')?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(u32::MAX))
}
