//! Functions that take the place of those of the interpreter, which panic, or take any time, at some values.

use std::cell::RefCell;
use std::sync::Arc;

use kube_cel::cel::extractors::This;
use kube_cel::cel::{Context, ExecutionError, Value, functions};
use regex::Regex;

use super::constants::COMPILED;
use super::work;

/// Maximum bytes of the text of a duration, and its maximum days.
const DURATION_LENGTH: usize = 64;
const DURATION_DAYS: i64 = 365_250;
/// Maximum comparisons in a search for bytes.
const COMPARISONS: usize = 1 << 24;

/// Maximum bytes of a regular expression, which can come from the arguments of a call.
const PATTERN: usize = 1024;

/// Adds the functions to those of an evaluation.
pub(super) fn add(context: &mut Context<'_>) {
    context.add_function("contains", contains);
    context.add_function("duration", duration);
    context.add_function("matches", matches);
}

/// Returns true if a value is in another one. The interpreter panics for empty bytes.
fn contains(This(this): This<Value>, part: Value) -> Result<Value, ExecutionError> {
    match (&this, &part) {
        (Value::Bytes(_), Value::Bytes(part)) if part.is_empty() => Ok(Value::Bool(true)),
        (Value::Bytes(all), Value::Bytes(part)) if all.len().saturating_mul(part.len()) > COMPARISONS => {
            Err(ExecutionError::function_error("contains", "the bytes are too many"))
        }
        _ => functions::contains(This(this), part),
    }
}

/// Returns the duration of a text of at most a thousand years. The interpreter panics when it adds a longer one to a time.
fn duration(text: Arc<String>) -> Result<Value, ExecutionError> {
    let too_long = || ExecutionError::function_error("duration", "longer than a thousand years");
    if text.len() > DURATION_LENGTH {
        return Err(too_long());
    }
    match functions::duration(text)? {
        Value::Duration(duration) if duration.num_days().abs() > DURATION_DAYS => Err(too_long()),
        value => Ok(value),
    }
}

thread_local! {
    /// The last regular expression, `None` if it is invalid, and its text: a loop has the same one for each element.
    static LAST: RefCell<Option<(Arc<String>, Option<Regex>)>> = const { RefCell::new(None) };
}

/// Returns true if a text matches a regular expression of bounded size.
fn matches(This(this): This<Arc<String>>, text: Arc<String>) -> Result<bool, ExecutionError> {
    let error = |why: &str| ExecutionError::function_error("matches", why);
    if text.len() > PATTERN {
        return Err(error("the regular expression is too long"));
    }
    LAST.with_borrow_mut(|last| {
        if last.as_ref().is_none_or(|(known, _)| *known != text) {
            if !work::take(work::READING) {
                return Err(error("the regular expressions are too many"));
            }
            let compiled = regex::RegexBuilder::new(&text).size_limit(COMPILED).build().ok();
            *last = Some((text, compiled));
        }
        let expression = last.as_ref().and_then(|(_, expression)| expression.as_ref());
        Ok(expression.ok_or_else(|| error("it is not a regular expression, or too large"))?.is_match(&this))
    })
}
