//! A `kube::Client` onto a `Router` of the same process.
//!
//! An ordinary request calls the router as a function, on the caller's task: nothing is encoded, no connection is
//! kept, a watch holds nothing but its own stream. A get of a small Pod takes about 25 us (`examples/load` of the API
//! server), most of it in the client. Only a request that wants to switch protocols (exec, attach, port-forward)
//! needs a connection to switch: it gets one of its own, a pipe in memory with hyper at both ends.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use futures::FutureExt;
use http::{Request, Response, header};
use hyper_util::rt::TokioIo;
use tower::Service;

pub use kube::Client;

/// Buffer of a connection in memory, each way. A WebSocket frame of exec is at most 32 KiB.
const PIPE_BYTES: usize = 64 << 10;

/// A client whose requests are answered by `app`. The identity of the caller is whatever `app` attaches.
///
/// Must be called inside a tokio runtime.
pub fn client(app: Router, default_namespace: &str) -> Client {
    Client::new(Connector { app }, default_namespace)
}

/// The service behind [`client`].
#[derive(Clone)]
struct Connector {
    app: Router,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, tower::BoxError>> + Send>>;

impl Service<Request<kube::client::Body>> for Connector {
    type Response = Response<Body>;
    type Error = tower::BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Answer {
        if request.headers().contains_key(header::UPGRADE) {
            return upgrade(self.app.clone(), request).boxed();
        }
        let mut app = self.app.clone();
        let answer = Service::<Request<Body>>::call(&mut app, request.map(Body::new));
        answer.map(|result| result.map_err(|never: Infallible| match never {})).boxed()
    }
}

/// Sends one request over a connection of its own, so that both sides can switch protocols on it.
async fn upgrade(
    app: Router,
    mut request: Request<kube::client::Body>,
) -> Result<Response<Body>, tower::BoxError> {
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let service = hyper_util::service::TowerToHyperService::new(app);
    let server = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(theirs), service)
        .with_upgrades();
    tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::debug!(%error, "an upgraded connection in memory ended early");
        }
    });
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await?;
    tokio::spawn(connection.with_upgrades());
    if !request.headers().contains_key(header::HOST) {
        request.headers_mut().insert(header::HOST, http::HeaderValue::from_static("hutch"));
    }
    let response = sender.send_request(request.map(Body::new)).await?;
    Ok(response.map(Body::new))
}
