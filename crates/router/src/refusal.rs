//! Error responses of the router itself, with the texts of the upstream contract.

use axum::body::Body;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, VARY, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;

/// Seconds of `Retry-After` when all connections are in use.
const BUSY_SECONDS: u32 = 1;

/// Reason why a request or its response was not forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoId,
    BadId,
    BadNamespace,
    BadPort,
    BadAddress,
    Unauthenticated,
    /// The token is valid, but not for this target.
    Forbidden,
    /// The token could not be reviewed: the public text.
    NotReviewed(String),
    /// A method or a form of target that a proxy does not support.
    NotProxied,
    /// The body exceeds the limit of this router.
    TooLarge,
    /// The body of declared length arrives too slowly.
    TooSlow,
    /// The Sandbox is absent, not ready, unreachable, or closed the connection before it responded.
    Unreachable(String),
    /// All connections to Sandboxes are in use.
    Busy,
    /// The head of the response did not arrive in time.
    Silent(String),
    /// Suspended, and not woken in time or too many requests wait for it; the seconds are for `Retry-After`.
    Asleep(String, u32),
    /// The policies of the Sandbox do not let the answer out: the public text.
    Found(String),
    /// The policies of the Sandbox have answers scanned, and this cannot be.
    NotScanned(&'static str),
    /// The audit log refuses the record of a request: the public text.
    NotRecorded(String),
    /// The backend switched protocols without a request to do so.
    Unasked,
}

#[derive(Serialize)]
struct Detail {
    detail: String,
}

impl Refusal {
    /// Returns the status and the public text.
    pub(crate) fn public(&self) -> (StatusCode, String) {
        let bad = |text: &str| (StatusCode::BAD_REQUEST, text.to_owned());
        match self {
            Refusal::NoId => bad("X-Sandbox-ID header is required."),
            Refusal::BadId => bad("Invalid sandbox ID format."),
            Refusal::BadNamespace => bad("Invalid namespace format."),
            Refusal::BadPort => bad("Invalid port format."),
            Refusal::BadAddress => bad("Invalid target IP address."),
            Refusal::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated".into()),
            Refusal::Forbidden => (StatusCode::FORBIDDEN, "forbidden".into()),
            Refusal::NotReviewed(text) => (StatusCode::INTERNAL_SERVER_ERROR, text.clone()),
            Refusal::NotProxied => (StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed".into()),
            Refusal::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Request body too large.".into()),
            Refusal::TooSlow => (StatusCode::REQUEST_TIMEOUT, "Request body too slow.".into()),
            Refusal::Unreachable(id) => {
                (StatusCode::BAD_GATEWAY, format!("Could not connect to the backend sandbox: {id}"))
            }
            Refusal::Busy => {
                (StatusCode::SERVICE_UNAVAILABLE, "Too many connections to sandboxes are in use.".into())
            }
            Refusal::Silent(id) => {
                (StatusCode::GATEWAY_TIMEOUT, format!("Timed out waiting for the backend sandbox: {id}"))
            }
            Refusal::Asleep(id, _) => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("The backend sandbox is waking up: {id}"))
            }
            Refusal::Found(text) => (StatusCode::FORBIDDEN, text.clone()),
            Refusal::NotScanned(what) => {
                let text = format!("A policy has the answers of this sandbox scanned, and {what} cannot be.");
                (StatusCode::FORBIDDEN, text)
            }
            Refusal::NotRecorded(text) => (StatusCode::SERVICE_UNAVAILABLE, text.clone()),
            Refusal::Unasked => (
                StatusCode::BAD_GATEWAY,
                "Backend attempted a WebSocket upgrade over HTTP. Connect using the WebSocket protocol instead."
                    .into(),
            ),
        }
    }

    /// Returns true if the request was refused before it was authorized.
    fn before_admission(&self) -> bool {
        matches!(self, Refusal::Unauthenticated | Refusal::NotReviewed(_))
    }

    /// Makes the response: an HTML page if the client accepts one and was authorized, else JSON.
    pub(crate) fn answer(&self, page_wanted: bool) -> Response<Body> {
        let (status, detail) = self.public();
        let mut response = match page_wanted && !self.before_admission() {
            true => page(status, &detail),
            false => json(status, &Detail { detail }),
        };
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        match self {
            Refusal::Asleep(_, seconds) => drop(headers.insert(RETRY_AFTER, HeaderValue::from(*seconds))),
            Refusal::Busy => drop(headers.insert(RETRY_AFTER, HeaderValue::from(BUSY_SECONDS))),
            _ => {}
        }
        response
    }
}

pub(crate) fn json(status: StatusCode, content: &impl Serialize) -> Response<Body> {
    // Encoding structs of strings cannot fail.
    let mut response = Response::new(Body::from(serde_json::to_vec(content).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns true if the client accepts `text/html` by name. A wildcard does not count: programs send that.
pub(crate) fn wants_page(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        html && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

fn page(status: StatusCode, detail: &str) -> Response<Body> {
    let detail = detail.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{status}</title>\
         <h1>{status}</h1><p>{detail}</p></html>\n"
    );
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    headers.insert("content-security-policy", HeaderValue::from_static("default-src 'none'"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wanted(value: &str) -> bool {
        wants_page(&HeaderMap::from_iter([(ACCEPT, value.parse().unwrap())]))
    }

    #[test]
    fn only_an_explicit_accept_yields_a_page() {
        assert!(wanted("text/html") && wanted("application/xml;q=0.9, Text/HTML;level=1;q=0.5"));
        for no in ["*/*", "text/*", "application/json", "text/html;q=0", "text/html2", ""] {
            assert!(!wanted(no), "{no:?}");
        }
    }

    #[test]
    fn unauthorized_clients_receive_json() {
        let kind =
            |refusal: Refusal| refusal.answer(true).headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        assert_eq!(kind(Refusal::Unauthenticated), "application/json");
        assert_eq!(kind(Refusal::NotReviewed("x".into())), "application/json");
        assert_eq!(kind(Refusal::Forbidden), "text/html; charset=utf-8");
        let asleep = Refusal::Asleep("a".into(), 7).answer(false);
        assert_eq!((asleep.status().as_u16(), asleep.headers()[RETRY_AFTER].to_str().unwrap()), (503, "7"));
    }

    proptest! {
        #[test]
        fn any_accept_header_is_handled(value in "[ -~]{0,60}") {
            wanted(&value);
        }
    }
}
