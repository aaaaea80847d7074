//! HTTP between two processes over a pair of connected sockets: one HTTP/2 connection, for a `kube::Client` in one process
//! and a router in the other.
//!
//! Requests are not authenticated: the holder of the socket is the user that `app` sets. No upgrades.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use futures::FutureExt;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tower::Service;

/// Maximum number of requests at a time, watches included.
const STREAMS: u32 = 4096;
/// Bytes that a side may send before the other has read them: lists are larger than the default of HTTP/2.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Authority of requests, which have no host.
const HOST: &str = "hutch";

/// Creates the two sockets.
///
/// # Errors
/// When the system has no descriptors left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (one, other) = std::os::unix::net::UnixStream::pair()?;
    Ok((one.into(), other.into()))
}

fn stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Serves `app` to the other process until that closes its socket. Needs a tokio runtime.
///
/// # Errors
/// When the socket is unusable, or the other process breaks the protocol.
pub async fn serve(socket: OwnedFd, app: Router) -> io::Result<()> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let connection = builder.serve_connection(TokioIo::new(stream(socket)?), TowerToHyperService::new(app));
    connection.await.map_err(io::Error::other)
}

/// Returns a client whose requests the other process answers. Needs a tokio runtime.
///
/// # Errors
/// When the socket is unusable, or the other process does not speak HTTP/2.
pub async fn client(socket: OwnedFd, default_namespace: &str) -> io::Result<kube::Client> {
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_reset_streams(STREAMS as usize);
    let (sender, connection) =
        builder.handshake(TokioIo::new(stream(socket)?)).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection between the processes ended early");
        }
    });
    Ok(kube::Client::new(Connector { sender }, default_namespace))
}

/// The service behind [`client`].
#[derive(Clone)]
struct Connector {
    sender: SendRequest<kube::client::Body>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Incoming>, tower::BoxError>> + Send>>;

impl Service<Request<kube::client::Body>> for Connector {
    type Response = Response<Incoming>;
    type Error = tower::BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<kube::client::Body>) -> Answer {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(Authority::from_static(HOST));
        match Uri::from_parts(parts) {
            Ok(uri) => *request.uri_mut() = uri,
            Err(error) => return async move { Err(error.into()) }.boxed(),
        }
        let answer = self.sender.send_request(request);
        async move { Ok(answer.await?) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use futures::StreamExt;
    use http_body_util::BodyExt;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;

    use super::*;

    async fn connected(app: Router) -> kube::Client {
        let (ours, theirs) = pair().unwrap();
        tokio::spawn(serve(theirs, app));
        client(ours, "default").await.unwrap()
    }

    #[tokio::test]
    async fn requests_are_answered_at_the_same_time() {
        let map = || async { r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"}}"# };
        let never = || async {
            futures::future::pending::<()>().await;
            ""
        };
        let app = Router::new()
            .route("/api/v1/namespaces/default/configmaps/m", get(map))
            .route("/api/v1/namespaces/default/configmaps/never", get(never));
        let client = connected(app).await;
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let waiting = maps.get("never");
        tokio::select! {
            biased;
            _ = waiting => panic!("it is never answered"),
            found = futures::future::join_all((0..200).map(|_| maps.get("m"))) => {
                assert!(found.iter().all(|map| map.as_ref().unwrap().metadata.name.as_deref() == Some("m")));
            }
        }
    }

    #[tokio::test]
    async fn answer_that_is_larger_than_the_windows_arrives() {
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        let body = move || {
            let pieces = futures::stream::iter(vec![piece.clone(); 40]);
            async move { Body::from_stream(pieces.map(Ok::<_, io::Error>)) }
        };
        let client = connected(Router::new().route("/large", get(body))).await;
        let request = Request::get("/large").body(kube::client::Body::empty()).unwrap();
        let body = client.send(request).await.unwrap().into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes().len(), 40 << 20);
    }
}
