//! The compared parts of an answer.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A refusal, or the value that a case looks at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    code: u16,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    /// In order of their fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    causes: Vec<Cause>,
    /// Of a refusal without causes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    value: Value,
}

/// One of the reasons of a refusal.
#[derive(Debug, Clone, PartialEq, PartialOrd, Eq, Ord, Serialize, Deserialize)]
struct Cause {
    field: String,
    reason: String,
    message: String,
}

impl Answer {
    /// Of the body; `place` is a JSON pointer to what matters in an object that was taken.
    pub(crate) fn of(code: u16, body: &[u8], place: &str) -> Answer {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        if code < 300 {
            let found = if place.is_empty() { None } else { body.pointer(place).cloned() };
            let value = plain(found.unwrap_or_default());
            return Answer { code, reason: String::new(), causes: Vec::new(), message: String::new(), value };
        }
        let causes = body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let cause = |cause: &Value| Cause {
            field: text(cause, "field"),
            reason: text(cause, "reason"),
            // The object in question, times and all.
            message: if cause["field"] == "patch" { String::new() } else { short(&text(cause, "message")) },
        };
        let mut causes: Vec<Cause> = causes.iter().map(cause).collect();
        causes.sort();
        // A real server checks a change several times over.
        causes.dedup();
        // Other decoding errors have the words of the decoder.
        let full = text(&body, "message");
        let is_shown = causes.is_empty() && (code != 400 || full.contains("strict decoding error"));
        let message = if is_shown { full } else { String::new() };
        Answer { code, reason: text(&body, "reason"), causes, message, value: Value::Null }
    }
}

/// A number in one form only, and a text no longer than it need be.
fn plain(value: Value) -> Value {
    match &value {
        Value::Number(number) if !number.is_i64() => number.as_f64().into(),
        Value::String(text) => short(text).into(),
        _ => value,
    }
}

/// The start and the end of a text.
fn short(text: &str) -> String {
    const KEPT: usize = 60;
    if text.len() <= 2 * KEPT {
        return text.to_owned();
    }
    let (start, end) = (text.floor_char_boundary(KEPT), text.ceil_char_boundary(text.len() - KEPT));
    format!("{}...{}...{}", &text[..start], text.len(), &text[end..])
}

impl fmt::Display for Answer {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}
