//! The router's own listeners: many connections, each with bounds on how slow it may be.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, Version};
use hutch_serve::Shutdown;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::dial::keep_alive;
use crate::forward::Origin;
use crate::pace::{Activity, Limits, Paced};
use crate::tls::Tls;
use crate::{Access, Router};

/// Connections at a time.
const CONNECTIONS: usize = 32_768;
/// Bytes of the head of a request. As much is read at once of a body.
const HEAD_LIMIT: usize = 128 << 10;
/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 250;
/// Bytes that a client may send ahead, of one request and of all requests on one HTTP/2 connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// How often a client is asked whether it is still there while requests are in progress on HTTP/2.
const PING: Duration = Duration::from_secs(30);
const LIMITS: Limits =
    Limits { head: Duration::from_secs(10), idle: Duration::from_secs(120), stall: Duration::from_secs(300) };

impl Router {
    /// Serves HTTP/1.1 and HTTP/2 (by ALPN with TLS, by prior knowledge without) until `drain`; then takes no further
    /// connection or request, and returns when those in progress have been answered, after `grace` at the latest.
    pub async fn serve(
        self,
        socket: TcpListener,
        tls: Option<Tls>,
        access: Access,
        drain: Shutdown,
        grace: Duration,
    ) {
        let access = Arc::new(access);
        let connections = hutch_serve::accept(socket, CONNECTIONS, &drain, |stream, peer| {
            keep_alive(&stream);
            let (router, tls, access, drain) = (self.clone(), tls.clone(), access.clone(), drain.clone());
            async move {
                match tls {
                    None => router.converse(stream, access, Some(peer), false, drain).await,
                    Some(tls) => router.greet(stream, tls, access, peer, drain).await,
                }
            }
        });
        let connections = connections.await;
        if tokio::time::timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "requests were cut: they took longer than {grace:?}"
            );
        }
    }

    async fn greet(
        self,
        stream: TcpStream,
        tls: Tls,
        access: Arc<Access>,
        peer: SocketAddr,
        drain: Shutdown,
    ) {
        let acceptor = TlsAcceptor::from(tls.current());
        match tokio::time::timeout(LIMITS.head, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => self.converse(stream, access, Some(peer), true, drain).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "a TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
        }
    }

    /// Serves over a stream that came another way than a listener, upgrades included, until it ends.
    pub async fn serve_connection<S>(&self, stream: S, access: Access)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shutdown = self.0.shutdown.clone();
        self.clone().converse(stream, Arc::new(access), None, false, shutdown).await;
    }

    async fn converse<S>(
        self,
        stream: S,
        access: Arc<Access>,
        peer: Option<SocketAddr>,
        secure: bool,
        drain: Shutdown,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::new(Activity::default());
        let stream = Paced::new(stream, LIMITS, activity.clone());
        let origin = Origin { peer: peer.map(|peer| peer.ip().to_canonical()), secure };
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (router, access, activity) = (self.clone(), access.clone(), activity.clone());
            async move {
                if request.version() == Version::HTTP_2 {
                    activity.set_multiplexed();
                }
                let held = Box::new(activity.begin());
                let response = router.answer(request.map(Body::new), &access, origin, Some(held)).await;
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    activity.set_free();
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().max_buf_size(HEAD_LIMIT);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(HEAD_LIMIT).unwrap_or(u32::MAX))
            .keep_alive_interval(PING);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = drain.wait() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, ?peer, "a connection ended early");
        }
    }
}
