//! Validation errors in FastAPI's form.

use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json as value};

use crate::answer::{Body, json};

/// One validation error.
#[derive(Serialize)]
pub(super) struct Invalid {
    r#type: &'static str,
    loc: Vec<Value>,
    msg: String,
    input: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    ctx: Value,
}

#[derive(Serialize)]
struct Refusal {
    detail: Vec<Invalid>,
}

impl Invalid {
    fn new(r#type: &'static str, loc: Vec<Value>, msg: &str, input: Value) -> Invalid {
        Invalid { r#type, loc, msg: msg.to_owned(), input, ctx: Value::Null }
    }

    /// Missing field; `input` is the object without it.
    pub(super) fn missing(field: &str, input: Value) -> Invalid {
        Invalid::new("missing", vec!["body".into(), field.into()], "Field required", input)
    }

    /// Missing body.
    pub(super) fn no_body() -> Invalid {
        Invalid::new("missing", vec!["body".into()], "Field required", Value::Null)
    }

    /// Body that is not an object.
    pub(super) fn no_object(input: Value) -> Invalid {
        let text = "Input should be a valid dictionary or object to extract fields from";
        Invalid::new("model_attributes_type", vec!["body".into()], text, input)
    }

    /// Field that is not a string.
    pub(super) fn no_string(field: &str, input: Value) -> Invalid {
        Invalid::new(
            "string_type",
            vec!["body".into(), field.into()],
            "Input should be a valid string",
            input,
        )
    }

    /// Field that is not a number.
    pub(super) fn no_number(field: &str, input: Value) -> Invalid {
        Invalid::new("float_type", vec!["body".into(), field.into()], "Input should be a valid number", input)
    }

    /// Number that is zero or negative.
    pub(super) fn not_positive(field: &str, input: Value) -> Invalid {
        let text = "Input should be greater than 0";
        let mut invalid = Invalid::new("greater_than", vec!["body".into(), field.into()], text, input);
        invalid.ctx = value!({"gt": 0.0});
        invalid
    }

    /// Form part that is not a file.
    pub(super) fn no_file(field: &str, input: Value) -> Invalid {
        let text = "Value error, Expected UploadFile, received: <class 'str'>";
        let mut invalid = Invalid::new("value_error", vec!["body".into(), field.into()], text, input);
        invalid.ctx = value!({"error": {}});
        invalid
    }

    /// Body that is not JSON.
    pub(super) fn no_json(body: &[u8], error: &serde_json::Error) -> Invalid {
        let lines = body.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
        let position = lines.map(<[u8]>::len).sum::<usize>() + error.column().saturating_sub(1);
        let text = error.to_string();
        let text = text.split(" at line ").next().unwrap_or_default();
        let loc = vec!["body".into(), position.into()];
        let mut invalid = Invalid::new("json_invalid", loc, "JSON decode error", value!({}));
        invalid.ctx = value!({"error": text});
        invalid
    }
}

/// Responds 422 with all validation errors.
pub(super) fn unprocessable(detail: Vec<Invalid>) -> Response<Body> {
    json(StatusCode::UNPROCESSABLE_ENTITY, &Refusal { detail })
}
