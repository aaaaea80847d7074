//! Kubernetes `Status` objects: the response without a stream, and the exit status of a process.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use crate::{Exit, StreamError};

/// Shell convention for a process that a signal ended: 128 plus the number of the signal.
const SIGNAL_BASE: i32 = 128;
/// Exit code of a process that was killed.
const KILLED: i32 = 137;

/// Reason for a `Status` response instead of a stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The request is invalid.
    #[error("{0}")]
    Malformed(String),
    /// The client supports none of the accepted protocols, which the response lists.
    #[error("unable to upgrade: unable to negotiate protocol: client supports [{offered}], server accepts [{}]", accepted.join(" "))]
    NoCommonProtocol {
        /// Protocols of the client, as sent.
        offered: String,
        /// Accepted protocols.
        accepted: &'static [&'static str],
    },
    /// The node could not open the stream.
    #[error(transparent)]
    Node(#[from] StreamError),
}

impl Refusal {
    /// Returns the HTTP response: a `Status` with status `Failure`.
    pub(crate) fn response(&self) -> Response {
        let (code, reason) = match self {
            Self::Malformed(_) | Self::Node(StreamError::BadRequest(_)) => {
                (StatusCode::BAD_REQUEST, "BadRequest")
            }
            Self::NoCommonProtocol { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::Node(StreamError::NotFound(_)) => (StatusCode::NOT_FOUND, "NotFound"),
            Self::Node(StreamError::Unavailable(_)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            Self::Node(StreamError::Internal(_)) => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        };
        let status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.to_string(),
            "reason": reason,
            "code": code.as_u16(),
        });
        let mut response = Response::new(Body::from(status.to_string()));
        *response.status_mut() = code;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Self::NoCommonProtocol { accepted, .. } = self {
            for protocol in *accepted {
                let value = HeaderValue::from_static(protocol);
                response.headers_mut().append("x-accepted-stream-protocol-versions", value);
            }
        }
        response
    }
}

/// Reporting of the end of a process to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Reports the exit code: `exec`.
    ExitCode,
    /// Reports only whether the stream could be followed: `attach`.
    Followed,
}

/// Returns the `Status` that ends a session.
pub(crate) fn last_word(exit: &Exit, verdict: Verdict) -> Value {
    let code = match (exit, verdict) {
        (Exit::Failed(text), Verdict::ExitCode) => {
            return failed("error executing command in container", text);
        }
        (Exit::Failed(text), Verdict::Followed) => return failed("error attaching to container", text),
        (_, Verdict::Followed) => 0,
        (Exit::Code(code), _) => *code,
        (Exit::Signal(signal), _) => SIGNAL_BASE.saturating_add(*signal),
        (Exit::OutOfMemory, _) => KILLED,
    };
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with exit code {code}"),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

fn failed(step: &str, text: &str) -> Value {
    let cause = format!("{step}: {text}");
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("Internal error occurred: {cause}"),
        "reason": "InternalError",
        "details": {"causes": [{"message": cause}]},
        "code": 500,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_status_reports_the_exit() {
        let table = [
            (Exit::Code(0), Verdict::ExitCode, "Success", None),
            (Exit::Code(3), Verdict::ExitCode, "Failure", Some("3")),
            (Exit::Signal(9), Verdict::ExitCode, "Failure", Some("137")),
            (Exit::OutOfMemory, Verdict::ExitCode, "Failure", Some("137")),
            (Exit::Signal(i32::MAX), Verdict::ExitCode, "Failure", Some("2147483647")),
            (Exit::Code(3), Verdict::Followed, "Success", None),
            (
                Exit::Failed("gone".into()),
                Verdict::ExitCode,
                "Failure",
                Some("error executing command in container: gone"),
            ),
            (
                Exit::Failed("gone".into()),
                Verdict::Followed,
                "Failure",
                Some("error attaching to container: gone"),
            ),
        ];
        for (exit, verdict, status, cause) in table {
            let word = last_word(&exit, verdict);
            assert_eq!(word["status"], status, "{exit:?}");
            assert_eq!(word["details"]["causes"][0]["message"].as_str(), cause, "{exit:?}");
        }
    }

    #[test]
    fn a_client_without_a_common_protocol_receives_the_accepted_ones() {
        let refusal = Refusal::NoCommonProtocol { offered: "v9".into(), accepted: &["v4", "v3"] };
        let response = refusal.response();
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        assert_eq!(response.headers().get_all("x-accepted-stream-protocol-versions").iter().count(), 2);
    }
}
