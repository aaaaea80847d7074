//! The answer of a webhook.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::review::{API_VERSION, KIND};
use crate::failure::Failure;

/// Maximum warnings of one answer, and maximum characters of each.
const WARNINGS: usize = 20;
const WARNING: usize = 256;

/// Answer of a webhook.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    /// A JSON patch of the object.
    pub(crate) patch: Option<Value>,
    /// The status of a denial.
    pub(crate) status: Value,
    pub(crate) warnings: Vec<String>,
    pub(crate) audit: Vec<(String, String)>,
}

/// Reads the answer to the review with this uid. The error is a message.
pub(crate) fn read(review: &Value, uid: &str, mutating: bool) -> Result<Answer, String> {
    let invalid = |why: String| Err(format!("received invalid webhook response: {why}"));
    let response = &review["response"];
    if !response.is_object() {
        return invalid("webhook response was absent".into());
    }
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    if text(response, "uid") != uid {
        return invalid(format!("expected response.uid={uid:?}, got {:?}", text(response, "uid")));
    }
    let (version, kind) = (text(review, "apiVersion"), text(review, "kind"));
    if (version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
        return invalid(format!(
            "expected webhook response of {API_VERSION}, Kind={KIND}, got {version}, Kind={kind}"
        ));
    }
    let (patch, kind) = (text(response, "patch"), response["patchType"].as_str());
    if !mutating {
        for (field, given) in [("patch", !patch.is_empty()), ("patchType", kind.is_some())] {
            if given {
                return invalid(format!("validating webhook may not return response.{field}"));
            }
        }
    }
    match (patch.is_empty(), kind) {
        (false, None) => return invalid("webhook returned response.patch but not response.patchType".into()),
        (true, Some(_)) => {
            return invalid("webhook returned response.patchType but not response.patch".into());
        }
        (false, Some(other)) if other != "JSONPatch" => {
            return Err(format!("unsupported patch type {other:?}"));
        }
        _ => {}
    }
    let Some(allowed) = response["allowed"].as_bool() else {
        return invalid("response.allowed is not true or false".into());
    };
    let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let annotations = response["auditAnnotations"].as_object().into_iter().flatten();
    Ok(Answer {
        allowed,
        patch: if patch.is_empty() { None } else { Some(decoded(&patch)?) },
        status: response["status"].clone(),
        warnings: warnings.take(WARNINGS).map(|text| text.chars().take(WARNING).collect()).collect(),
        audit: annotations
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
    })
}

fn decoded(patch: &str) -> Result<Value, String> {
    let undecodable = |why: String| format!("received undecodable patch in webhook response: {why}");
    let bytes = STANDARD.decode(patch).map_err(|error| undecodable(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| undecodable(error.to_string()))
}

/// The refusal of a request that a webhook denied.
pub(crate) fn denial(webhook: &str, status: &Value) -> Failure {
    let denied = format!("admission webhook {webhook:?} denied the request");
    let text = |field: &str| status[field].as_str().unwrap_or_default();
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    // A code that is no refusal would let a client believe that the object was stored.
    let code = status["code"].as_u64().filter(|code| (400..600).contains(code)).unwrap_or(400);
    Failure::of_webhook(code as u16, text("reason"), message, &status["details"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn response(response: Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    }

    #[test]
    fn answers_are_read_and_invalid_ones_refused() {
        let patch = STANDARD.encode(r#"[{"op": "add", "path": "/a", "value": 1}]"#);
        let full = response(json!({"uid": "u", "allowed": true, "patch": patch, "patchType": "JSONPatch",
            "warnings": ["w", 1], "auditAnnotations": {"a": "b"}}));
        let read_full = read(&full, "u", true).unwrap();
        assert!(
            read_full.allowed && read_full.warnings == ["w"] && read_full.patch.unwrap()[0]["value"] == 1
        );
        assert_eq!(read_full.audit, [("a".to_owned(), "b".to_owned())]);
        let mut other = full.clone();
        other["apiVersion"] = "admission.k8s.io/v1beta1".into();
        let invalid = |why: &str| format!("received invalid webhook response: {why}");
        for (review, mutating, expected) in [
            (json!([]), true, invalid("webhook response was absent")),
            (
                response(json!({"uid": "v", "allowed": true})),
                true,
                invalid("expected response.uid=\"u\", got \"v\""),
            ),
            (
                other,
                true,
                invalid(
                    "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got \
                     admission.k8s.io/v1beta1, Kind=AdmissionReview",
                ),
            ),
            (full, false, invalid("validating webhook may not return response.patch")),
            (
                response(json!({"uid": "u", "allowed": true, "patch": patch})),
                true,
                invalid("webhook returned response.patch but not response.patchType"),
            ),
            (
                response(json!({"uid": "u", "allowed": true, "patch": patch, "patchType": "Merge"})),
                true,
                "unsupported patch type \"Merge\"".into(),
            ),
            (response(json!({"uid": "u"})), true, invalid("response.allowed is not true or false")),
        ] {
            assert_eq!(read(&review, "u", mutating).unwrap_err(), expected);
        }
        let broken = response(json!({"uid": "u", "allowed": true, "patch": "%", "patchType": "JSONPatch"}));
        assert!(
            read(&broken, "u", true)
                .unwrap_err()
                .starts_with("received undecodable patch in webhook response: ")
        );
    }

    #[test]
    fn denials_have_the_status_of_the_webhook() {
        let shown = |status: Value| {
            let status = denial("a.b.c", &status).status();
            (status["code"].clone(), status["reason"].clone(), status["message"].as_str().unwrap().to_owned())
        };
        let denied = "admission webhook \"a.b.c\" denied the request";
        assert_eq!(shown(Value::Null), (400.into(), Value::Null, format!("{denied} without explanation")));
        assert_eq!(
            shown(json!({"code": 403, "reason": "Forbidden", "message": "no"})),
            (403.into(), "Forbidden".into(), format!("{denied}: no"))
        );
        assert_eq!(
            shown(json!({"code": 200, "reason": "Later"})),
            (400.into(), "Later".into(), format!("{denied}: Later"))
        );
    }
}
