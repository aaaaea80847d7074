//! Probes and metrics of a router on a cluster.

use axum::body::Body;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use crate::Router;
use crate::refusal::json;

/// Serves `GET /healthz` and `GET /readyz`.
pub fn health(router: &Router) -> axum::Router {
    let own = router.clone();
    axum::Router::new()
        .route("/healthz", get(async || json(StatusCode::OK, &serde_json::json!({"status": "ok"}))))
        .route("/readyz", get(async move || own.readiness()))
}

/// Serves `GET /metrics`, in the text format of Prometheus.
pub fn metrics_page(router: &Router) -> axum::Router {
    let metrics = router.metrics().clone();
    axum::Router::new().route(
        "/metrics",
        get(async move || {
            let mut response = Response::new(Body::from(metrics.text()));
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }),
    )
}
