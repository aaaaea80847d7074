//! Fields that a kind does not know: told, refused or dropped, as `fieldValidation` asks.

use serde_json::Value;

use crate::body::Decoded;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds;

/// What to do about unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Validation {
    Ignore,
    Warn,
    Strict,
}

/// Checks the fields of a body against its kind, drops the unknown ones, and gives the object.
pub(crate) fn settle(call: &Call, body: Decoded) -> Result<Value, Failure> {
    let validation = validation(call)?;
    let Decoded { mut value, duplicates } = body;
    let kind = call.kind();
    let shape = kind.shape();
    if !kind.is_custom() {
        // A real server decodes these into structs; a wrong type is refused before anything else.
        if let Some(mistyped) = kinds::check(&value, shape).mistyped.first() {
            return Err(Failure::bad_request(format!("{}: json: {mistyped}", cannot_be_handled(call))));
        }
    }
    let unknown = kinds::prune(&mut value, shape);
    if validation == Validation::Ignore || (unknown.is_empty() && duplicates.is_empty()) {
        return Ok(value);
    }
    let mut problems: Vec<String> =
        duplicates.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
    problems.extend(unknown.iter().map(|path| format!("unknown field \"{path}\"")));
    if validation == Validation::Warn {
        for problem in problems {
            call.warn(problem);
        }
        return Ok(value);
    }
    let text = problems.join(", ");
    Err(Failure::bad_request(format!("{}: strict decoding error: {text}", cannot_be_handled(call))))
}

/// The same for the outcome of a patch, in which nothing can appear twice.
pub(crate) fn settle_patched(call: &Call, value: Value) -> Result<Value, Failure> {
    settle(call, Decoded { value, duplicates: Vec::new() })
}

fn cannot_be_handled(call: &Call) -> String {
    let kind = call.kind();
    format!("{} in version \"{}\" cannot be handled as a {}", kind.kind, kind.version, kind.kind)
}

fn validation(call: &Call) -> Result<Validation, Failure> {
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
