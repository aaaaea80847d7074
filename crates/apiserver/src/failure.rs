//! A refusal, as the `Status` object that a Kubernetes API server answers.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use crate::kinds::Kind;

/// Maximum bytes of a value in a message: an object may have many that are invalid.
const SHOWN: usize = 1 << 10;

/// One reason of several, usually about one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) field: String,
}

/// A request that was refused or failed. The message is public: it names nothing that the caller may not know.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: StatusCode,
    pub(crate) reason: Cow<'static, str>,
    pub(crate) message: String,
    details: Option<Box<Details>>,
}

#[derive(Debug, Clone, Default)]
struct Details {
    name: String,
    group: String,
    kind: String,
    uid: String,
    causes: Vec<Cause>,
    retry_after_seconds: u64,
    /// Token with which a list continues, in the metadata of the `Status`.
    continue_token: String,
    /// Details in the words of a webhook, in place of the others.
    of_webhook: Option<Value>,
}

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        let reason = Cow::Borrowed(reason);
        Failure { code, reason, message: message.into(), details: None }
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        let details = self.details.get_or_insert_default();
        details.name = name.into();
        details.group.clone_from(&kind.group);
        details.kind.clone_from(&kind.plural);
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn no_such_path() -> Self {
        let mut failure =
            Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
        failure.details = Some(Box::default());
        failure
    }

    pub(crate) fn method_not_allowed() -> Self {
        let mut failure = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        failure.details = Some(Box::default());
        failure
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", kind.group_resource());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(kind, name)
    }

    pub(crate) fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", kind.group_resource());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(kind, name)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.group_resource());
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(kind, name)
    }

    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// A server-side apply that would take fields of other managers.
    pub(crate) fn apply_conflict(message: String, causes: Vec<Cause>) -> Self {
        let mut failure = Self::new(StatusCode::CONFLICT, "Conflict", message);
        failure.details.get_or_insert_default().causes = causes;
        failure
    }

    pub(crate) fn forbidden(kind: &Kind, name: &str, why: &str, causes: Vec<Cause>) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", kind.group_resource());
        let mut failure = Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(kind, name);
        failure.details.get_or_insert_default().causes = causes;
        failure
    }

    /// The caller may not do this. An empty resource means that the request is for no object.
    pub(crate) fn denied(group: &str, resource: &str, name: &str, why: &str, reason: &str) -> Self {
        // As Kubernetes does, so that no browser takes the message for a page.
        let why = why.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let colon = if reason.is_empty() { "" } else { ": " };
        let why = format!("{why}{colon}{reason}");
        let kind = Kind { group: group.into(), plural: resource.into(), ..Kind::default() };
        let message = match (resource, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{} is forbidden: {why}", kind.group_resource()),
            (_, name) => format!("{} {name:?} is forbidden: {why}", kind.group_resource()),
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(&kind, name)
    }

    /// The object breaks rules of its kind.
    pub(crate) fn invalid(kind: &Kind, name: &str, causes: Vec<Cause>) -> Self {
        let full =
            if kind.group.is_empty() { kind.kind.clone() } else { format!("{}.{}", kind.kind, kind.group) };
        let texts: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let text = if texts.len() == 1 { texts[0].clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{full} \"{name}\" is invalid: {text}");
        let mut failure = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(kind, name);
        let details = failure.details.get_or_insert_default();
        details.kind.clone_from(&kind.kind);
        details.causes = causes;
        failure
    }

    /// The options of a request break rules.
    pub(crate) fn invalid_options(kind: &str, cause: Cause) -> Self {
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {}: {}", cause.field, cause.message);
        let mut failure = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        let details = failure.details.get_or_insert_default();
        details.group = "meta.k8s.io".into();
        details.kind = kind.into();
        details.causes = vec![cause];
        failure
    }

    /// A patch that does not fit the object.
    pub(crate) fn unprocessable(kind: &Kind, name: &str, message: &str) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(kind, name)
    }

    pub(crate) fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub(crate) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/yaml";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub(crate) fn too_large() -> Self {
        let message = format!("Request entity too large: limit is {}", crate::BODY_BYTES);
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// A list whose first page is too old to be continued. The token leads to the rest as it is now.
    pub(crate) fn expired_list(continue_token: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
        let mut failure = Self::expired(message);
        failure.details.get_or_insert_default().continue_token = continue_token;
        failure
    }

    /// The requested revision is in the future; a later request may find it.
    pub(crate) fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut failure = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        let details = failure.details.get_or_insert_default();
        details.retry_after_seconds = 1;
        details.causes = vec![Cause {
            reason: "ResourceVersionTooLarge",
            message: "Too large resource version".into(),
            field: String::new(),
        }];
        failure
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// The caller has too many requests in progress.
    pub(crate) fn too_many_requests(message: impl Into<String>) -> Self {
        let mut failure = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        failure.details.get_or_insert_default().retry_after_seconds = 1;
        failure
    }

    /// An eviction that a disruption budget does not allow now.
    pub(crate) fn disrupts(why: String, retry_after_seconds: u64) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let mut failure = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        let details = failure.details.get_or_insert_default();
        details.causes = vec![Cause::new("DisruptionBudget", "", why)];
        details.retry_after_seconds = retry_after_seconds;
        failure
    }

    /// Returns true for a refusal of this server with that reason. A webhook may give any reason.
    pub(crate) fn is(&self, reason: &str) -> bool {
        matches!(self.reason, Cow::Borrowed(own) if own == reason)
    }

    /// A webhook denied the request.
    pub(crate) fn of_webhook(code: u16, reason: &str, message: String, details: &Value) -> Self {
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST);
        let mut failure = Self::new(code, "", message);
        failure.reason = Cow::Owned(reason.to_owned());
        if details.is_object() {
            failure.details.get_or_insert_default().of_webhook = Some(details.clone());
        }
        failure
    }

    /// A policy of admission refused the request, for one of the reasons that it may give.
    pub(crate) fn of_policy(kind: &Kind, name: &str, message: &str, reason: &str) -> Self {
        let mut failure = Self::forbidden(kind, name, message, vec![Cause::new("", "", message)]);
        (failure.code, failure.reason) = match reason {
            "Unauthorized" => (StatusCode::UNAUTHORIZED, "Unauthorized".into()),
            "Forbidden" => (StatusCode::FORBIDDEN, "Forbidden".into()),
            "RequestEntityTooLarge" => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge".into()),
            _ => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid".into()),
        };
        failure
    }

    /// The request took longer than requests may.
    pub(crate) fn timeout() -> Self {
        let message = "Timeout: request did not complete within requested timeout";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// An internal error without a reason, for requests that a Kubernetes API server answers so.
    pub(crate) fn unexplained(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub(crate) fn disk_full() -> Self {
        let message = "no space left on the disk that holds the objects; nothing was changed";
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "InternalError", message)
    }

    /// The failure of a write of one object to the store.
    pub(crate) fn of_store(error: hutch_store::Error, kind: &Kind, name: &str) -> Self {
        match error {
            hutch_store::Error::Exists => Self::already_exists(kind, name),
            hutch_store::Error::NotFound => Self::not_found(kind, name),
            hutch_store::Error::Conflict { .. } => Self::modified(kind, name),
            hutch_store::Error::DiskFull => Self::disk_full(),
            hutch_store::Error::Closed => Self::unavailable("the API server is shutting down"),
            other => {
                tracing::error!(error = %other, "the store failed");
                Self::internal("the object could not be stored")
            }
        }
    }

    /// The `Status` object.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if self.reason.is_empty()
            && let Some(fields) = status.as_object_mut()
        {
            fields.remove("reason");
        }
        if let Some(token) = self.details.as_ref().map(|details| &details.continue_token)
            && !token.is_empty()
        {
            status["metadata"]["continue"] = token.as_str().into();
        } else if let Some(given) = self.details.as_ref().and_then(|details| details.of_webhook.as_ref()) {
            status["details"] = given.clone();
        } else if let Some(details) = &self.details {
            let mut object = serde_json::Map::new();
            for (field, value) in [
                ("name", &details.name),
                ("group", &details.group),
                ("kind", &details.kind),
                ("uid", &details.uid),
            ] {
                if !value.is_empty() {
                    object.insert(field.into(), value.as_str().into());
                }
            }
            if !details.causes.is_empty() {
                object.insert("causes".into(), details.causes.iter().map(cause).collect());
            }
            if details.retry_after_seconds > 0 {
                object.insert("retryAfterSeconds".into(), details.retry_after_seconds.into());
            }
            status["details"] = object.into();
        }
        status
    }
}

fn cause(cause: &Cause) -> Value {
    let mut object = json!({ "message": cause.message });
    if !cause.reason.is_empty() {
        object["reason"] = cause.reason.into();
    }
    if !cause.field.is_empty() {
        object["field"] = cause.field.as_str().into();
    }
    object
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.code, self.status().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(details) = &self.details
            && details.retry_after_seconds > 0
        {
            headers.insert(header::RETRY_AFTER, details.retry_after_seconds.into());
        }
        if self.code == StatusCode::FORBIDDEN {
            response.extensions_mut().insert(Refused(self.message));
        }
        response
    }
}

/// Response extension: the message of a refusal, for the audit log.
#[derive(Debug, Clone)]
pub(crate) struct Refused(pub(crate) String);

impl Cause {
    pub(crate) fn new(reason: &'static str, field: impl Into<String>, message: impl Into<String>) -> Self {
        Cause { reason, message: message.into(), field: field.into() }
    }

    /// `Required value`, with an explanation or none.
    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".into() } else { format!("Required value: {detail}") };
        Self::new("FieldValueRequired", field, message)
    }

    /// `Invalid value: V: why`. Strings appear quoted.
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let shown = match value {
            Value::String(text) => format!("{text:?}"),
            Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => crate::number::shown(float),
                None => number.to_string(),
            },
            other => other.to_string(),
        };
        Self::shown(field, &shown, detail)
    }

    /// `Invalid value: V: why` of a value in the words of the caller. A long value is cut.
    pub(crate) fn shown(field: impl Into<String>, value: &str, detail: &str) -> Self {
        let end = value.floor_char_boundary(SHOWN);
        let cut = if end < value.len() { "…" } else { "" };
        let value = &value[..end];
        Self::new("FieldValueInvalid", field, format!("Invalid value: {value}{cut}: {detail}"))
    }

    /// `Forbidden: why`.
    pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {detail}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_in_messages() {
        let cause = Cause::invalid("a", &"ä".repeat(SHOWN).into(), "too long");
        assert!(cause.message.ends_with("ä…: too long"), "{}", cause.message);
        assert!(cause.message.len() < SHOWN + 40);
        assert_eq!(Cause::invalid("a", &"x".into(), "no").message, "Invalid value: \"x\": no");
    }
}
