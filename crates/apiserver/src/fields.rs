//! Unknown fields: dropped with a warning, dropped silently or refused, as `fieldValidation` requires. In policies of the network
//! they are always refused.

use serde_json::Value;

use crate::body::Decoded;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::{kinds, number};

/// Treatment of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Validation {
    Ignore,
    Warn,
    Strict,
}

/// Checks the fields of a body against its kind, drops the unknown ones, and gives the object.
pub(crate) fn settle(call: &Call, body: Decoded) -> Result<Value, Failure> {
    let Decoded { mut value, duplicates, text } = body;
    if let Some(mistyped) = mistyped(call, &mut value).into_iter().next() {
        return Err(Failure::bad_request(format!("{}: json: {mistyped}", cannot_be_handled(call))));
    }
    drop_unknown(call, value, &duplicates, &text)
}

fn drop_unknown(call: &Call, mut value: Value, duplicates: &[String], text: &[u8]) -> Result<Value, Failure> {
    let kind = call.kind();
    let shape = kind.shape();
    let validation = validation(call)?;
    let unknown = kinds::prune(&mut value, shape);
    if validation == Validation::Ignore || (unknown.is_empty() && duplicates.is_empty()) {
        return Ok(value);
    }
    let problems = problems(call, unknown, duplicates, text);
    if validation == Validation::Warn {
        for problem in problems {
            call.warn(problem);
        }
        return Ok(value);
    }
    let text = problems.join(", ");
    Err(Failure::bad_request(format!("{}: strict decoding error: {text}", cannot_be_handled(call))))
}

/// The messages about unknown and duplicate fields in Kubernetes' order: of a built-in kind that of the text, of a custom
/// kind duplicates first, then unknown fields of the metadata, then the others.
fn problems(call: &Call, mut unknown: Vec<String>, duplicates: &[String], text: &[u8]) -> Vec<String> {
    if !call.kind().is_custom() {
        let found = kinds::problems(text, call.kind().shape());
        if !found.is_empty() {
            return found;
        }
    }
    unknown.sort_by_key(|path| (!path.starts_with("metadata."), path.clone()));
    let mut problems: Vec<String> =
        duplicates.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
    problems.extend(unknown.iter().map(|path| format!("unknown field \"{path}\"")));
    problems
}

/// Checks the outcome of a patch in the same way; it has no duplicates. Values that were stored before a rule existed
/// stay until they are changed: an object with one can still get a status and lose its finalizers.
pub(crate) fn settle_patched(call: &Call, current: &Value, mut value: Value) -> Result<Value, Failure> {
    let wrong = mistyped(call, &mut value);
    let stored = if wrong.is_empty() { Vec::new() } else { mistyped(call, &mut current.clone()) };
    if let Some(mistyped) = wrong.into_iter().find(|mistyped| !stored.contains(mistyped)) {
        let cause = Cause::invalid("patch", &value.to_string().into(), &format!("json: {mistyped}"));
        return Err(Failure::invalid(call.kind(), &call.name, vec![cause]));
    }
    drop_unknown(call, value, &[], &[])
}

/// Checks what a webhook made of an object, and drops unknown fields. The error is a message.
pub(crate) fn settle_mutated(call: &Call, mut value: Value) -> Result<Value, String> {
    if let Some(mistyped) = mistyped(call, &mut value).into_iter().next() {
        return Err(format!("json: {mistyped}"));
    }
    kinds::prune(&mut value, call.kind().shape());
    Ok(value)
}

/// The values of a wrong type. A real server decodes built-in kinds and all metadata into structs, and refuses such a
/// thing before it looks at anything else.
fn mistyped(call: &Call, value: &mut Value) -> Vec<kinds::Mistyped> {
    let shape = if call.kind().is_custom() {
        number::widen(value);
        if let Some(metadata) = value.get_mut("metadata") {
            number::shorten(metadata);
        }
        kinds::Shape::ENVELOPE
    } else {
        call.kind().shape()
    };
    kinds::check(value, shape)
}

fn cannot_be_handled(call: &Call) -> String {
    let kind = call.kind();
    format!("{} in version \"{}\" cannot be handled as a {}", kind.kind, kind.version, kind.kind)
}

fn validation(call: &Call) -> Result<Validation, Failure> {
    // A field that is dropped could be the one that closes something.
    if call.kind().group == kinds::POLICIES {
        return Ok(Validation::Strict);
    }
    match call.query.get("fieldValidation") {
        None | Some("" | "Warn") => Ok(Validation::Warn),
        Some("Ignore") => Ok(Validation::Ignore),
        Some("Strict") => Ok(Validation::Strict),
        Some(other) => {
            let message =
                format!("Unsupported value: \"{other}\": supported values: \"Ignore\", \"Strict\", \"Warn\"");
            let cause = Cause::new("FieldValueNotSupported", "fieldValidation", message);
            Err(Failure::invalid_options("CreateOptions", cause))
        }
    }
}
