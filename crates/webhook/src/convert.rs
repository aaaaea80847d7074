//! `POST /convert`, with a bound on each body and on all of them together.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::review;

/// The path in the definitions.
pub(crate) const PATH: &str = "/convert";

/// Maximum that a webhook accepts at a time. As JSON in memory a body is some ten times as large.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Bytes of one body. etcd keeps objects of 1.5 MiB; a review may hold several.
    pub(crate) body: usize,
    /// Bytes of all bodies.
    pub(crate) bodies: usize,
    /// Requests at a time.
    pub(crate) requests: usize,
    /// How long a request waits for room. The API server gives up on a webhook after 30 s.
    pub(crate) wait: Duration,
    /// How long a body may take to arrive.
    pub(crate) arrival: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            body: 16 << 20,
            bodies: 32 << 20,
            requests: 128,
            wait: Duration::from_secs(10),
            arrival: Duration::from_secs(10),
        }
    }
}

/// Bodies above this are worked on outside the threads that serve connections.
const LARGE: usize = 256 << 10;

struct Gate {
    bounds: Bounds,
    /// Permits are bytes.
    room: Arc<Semaphore>,
}

impl Gate {
    /// Room for a body of that length, at least an equal share of all room, so that requests are bounded too.
    async fn enter(&self, length: usize) -> Option<OwnedSemaphorePermit> {
        let share = self.bounds.bodies / self.bounds.requests;
        let bytes = u32::try_from(length.clamp(share, self.bounds.bodies)).unwrap_or(u32::MAX);
        let entered = self.room.clone().acquire_many_owned(bytes);
        tokio::time::timeout(self.bounds.wait, entered).await.ok()?.ok()
    }
}

/// The application.
pub(crate) fn app(bounds: Bounds) -> Router {
    let room = Arc::new(Semaphore::new(bounds.bodies));
    Router::new().route(PATH, post(convert)).with_state(Arc::new(Gate { bounds, room }))
}

async fn convert(State(gate): State<Arc<Gate>>, request: Request) -> Response {
    match handle(&gate, request).await {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
        Err((status, message)) => {
            tracing::warn!(%status, message, "a conversion request was refused");
            let retry = (status == StatusCode::SERVICE_UNAVAILABLE).then_some([(header::RETRY_AFTER, "1")]);
            (status, retry, format!("{message}\n")).into_response()
        }
    }
}

type Refusal = (StatusCode, String);

async fn handle(gate: &Gate, request: Request) -> Result<Vec<u8>, Refusal> {
    let bounds = gate.bounds;
    check_type(request.headers())?;
    let too_large =
        || (StatusCode::PAYLOAD_TOO_LARGE, format!("a body of at most {} bytes is taken", bounds.body));
    // A body that does not tell its length may be as large as one can be.
    let length = match request.headers().get(header::CONTENT_LENGTH) {
        Some(value) => value.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX),
        None => bounds.body,
    };
    if length > bounds.body {
        return Err(too_large());
    }
    let Some(_permit) = gate.enter(length).await else {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "too many conversions at a time".into()));
    };
    let body = match tokio::time::timeout(bounds.arrival, read(request.into_body(), bounds.body)).await {
        Err(_) => return Err((StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive".into())),
        Ok(Err(Refused::TooLarge)) => return Err(too_large()),
        Ok(Err(Refused::Broken(why))) => {
            return Err((StatusCode::BAD_REQUEST, format!("the body broke off: {why}")));
        }
        Ok(Ok(body)) => body,
    };
    let answer = if body.len() > LARGE {
        let work = tokio::task::spawn_blocking(move || review::answer(&body));
        work.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
    } else {
        review::answer(&body)
    };
    answer.map_err(|message| (StatusCode::BAD_REQUEST, message))
}

fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let given = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let media = given.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = format!("Content-Type is {:?}; application/json is right", given.unwrap_or_default());
    Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

enum Refused {
    TooLarge,
    Broken(String),
}

async fn read(body: Body, limit: usize) -> Result<Bytes, Refused> {
    axum::body::to_bytes(body, limit).await.map_err(|error| {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = cause {
            if error.is::<http_body_util::LengthLimitError>() {
                return Refused::TooLarge;
            }
            cause = error.source();
        }
        Refused::Broken(error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SMALL: Bounds = Bounds {
        body: 64 << 10,
        bodies: 128 << 10,
        requests: 2,
        wait: Duration::from_millis(50),
        arrival: Duration::from_millis(200),
    };

    fn post(kind: &str, body: impl Into<Body>) -> Request {
        Request::post(PATH).header(header::CONTENT_TYPE, kind).body(body.into()).unwrap()
    }

    async fn send(app: &Router, request: Request) -> (StatusCode, HeaderMap, String) {
        let answer = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    fn review(padding: usize) -> String {
        let sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {"operatingMode": "Suspended", "podTemplate": {"spec": {"padding": "x".repeat(padding)}}}});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request":
            {"uid": "u", "desiredAPIVersion": "agents.x-k8s.io/v1alpha1", "objects": [sandbox]}})
        .to_string()
    }

    #[tokio::test]
    async fn objects_as_large_as_kubernetes_takes_are_converted() {
        let app = app(Bounds::default());
        let (status, headers, answer) =
            send(&app, post("application/json; charset=utf-8", review(3 << 20))).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers[header::CONTENT_TYPE], "application/json");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["response"]["convertedObjects"][0]["spec"]["replicas"], 0);
    }

    #[tokio::test]
    async fn problem_of_a_request_is_named() {
        let app = app(SMALL);
        let unknown_length = || Body::from_stream(futures_stream(vec![vec![b' '; 40 << 10]; 3]));
        for (request, status, expected) in [
            (post("application/json", "{"), StatusCode::BAD_REQUEST, "no ConversionReview"),
            (
                post("application/yaml", review(0)),
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "application/json is right",
            ),
            (post("application/json", review(70 << 10)), StatusCode::PAYLOAD_TOO_LARGE, "65536 bytes"),
            (post("application/json", unknown_length()), StatusCode::PAYLOAD_TOO_LARGE, "65536 bytes"),
            (Request::get(PATH).body(Body::empty()).unwrap(), StatusCode::METHOD_NOT_ALLOWED, ""),
            (Request::post("/other").body(Body::empty()).unwrap(), StatusCode::NOT_FOUND, ""),
        ] {
            let (got, _, text) = send(&app, request).await;
            assert_eq!(got, status, "{text}");
            assert!(text.contains(expected), "{text}");
        }
    }

    fn futures_stream(
        chunks: Vec<Vec<u8>>,
    ) -> impl futures::Stream<Item = Result<Vec<u8>, std::io::Error>> + Send + 'static {
        futures::stream::iter(chunks.into_iter().map(Ok))
    }

    /// Two bodies that never end take all room; a third request gets a `Retry-After`, and is served once one has ended.
    #[tokio::test]
    async fn request_beyond_the_bounds_waits_and_gets_a_retry_after() {
        let app = app(SMALL);
        let endless = || {
            post(
                "application/json",
                Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>()),
            )
        };
        let held: Vec<_> = (0..2)
            .map(|_| {
                tokio::spawn({
                    let (app, request) = (app.clone(), endless());
                    async move { send(&app, request).await }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        let (status, headers, _) = send(&app, post("application/json", review(0))).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(headers[header::RETRY_AFTER], "1");
        for held in held {
            assert_eq!(held.await.unwrap().0, StatusCode::REQUEST_TIMEOUT);
        }
        let (status, _, answer) = send(&app, post("application/json", review(0))).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
}
