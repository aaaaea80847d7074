//! Answers that the router gives itself, in the words of the contract.

use axum::body::Body;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

/// Why a request was not passed on, or its answer not passed back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoId,
    BadId,
    BadNamespace,
    BadPort,
    BadAddress,
    Unauthenticated,
    /// A method or a form of target that has no meaning here.
    NotProxied,
    /// The Sandbox is not there, not ready, cannot be connected to, or ended the connection before it answered.
    Unreachable(String),
    /// No head of an answer in time.
    Silent(String),
    /// The backend switched protocols without being asked to.
    Unasked,
}

#[derive(Serialize)]
struct Detail {
    detail: String,
}

impl Refusal {
    /// Status and public text.
    pub(crate) fn public(&self) -> (StatusCode, String) {
        let bad = |text: &str| (StatusCode::BAD_REQUEST, text.to_owned());
        match self {
            Refusal::NoId => bad("X-Sandbox-ID header is required."),
            Refusal::BadId => bad("Invalid sandbox ID format."),
            Refusal::BadNamespace => bad("Invalid namespace format."),
            Refusal::BadPort => bad("Invalid port format."),
            Refusal::BadAddress => bad("Invalid target IP address."),
            Refusal::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated".into()),
            Refusal::NotProxied => (StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed".into()),
            Refusal::Unreachable(id) => {
                (StatusCode::BAD_GATEWAY, format!("Could not connect to the backend sandbox: {id}"))
            }
            Refusal::Silent(id) => {
                (StatusCode::GATEWAY_TIMEOUT, format!("Timed out waiting for the backend sandbox: {id}"))
            }
            Refusal::Unasked => (
                StatusCode::BAD_GATEWAY,
                "Backend attempted a WebSocket upgrade over HTTP. Connect using the WebSocket protocol instead."
                    .into(),
            ),
        }
    }

    pub(crate) fn answer(&self) -> Response<Body> {
        let (status, detail) = self.public();
        let mut response = json(status, &Detail { detail });
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(crate) fn json(status: StatusCode, content: &impl Serialize) -> Response<Body> {
    // Structs of strings can always be written.
    let mut response = Response::new(Body::from(serde_json::to_vec(content).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
