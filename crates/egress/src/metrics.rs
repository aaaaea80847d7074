//! Serves the counters of the process to Prometheus.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::rest::http1;
use crate::way::Way;

/// Maximum connections, and the maximum time of each.
const CONNECTIONS: usize = 16;
const TIME: Duration = Duration::from_secs(30);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the clients of a listener.
pub(crate) async fn serve(listener: TcpListener, way: Arc<Way>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let way = way.clone();
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(move |request| {
                let response = answer(&way, &request);
                async { Ok::<_, Infallible>(response) }
            });
            let served = http1().keep_alive(false).serve_connection(TokioIo::new(client), service);
            // Why the connection ended has no consequence.
            let _ = timeout(TIME, served).await;
        });
    }
}

fn answer(way: &Way, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET || request.uri().path() != "/metrics" {
        let mut response = Response::new(Full::from("GET /metrics\n"));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let mut response = Response::new(Full::from(way.counters.text()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
    response
}
