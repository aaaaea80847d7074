//! Listeners of the router: many connections, each with timeouts for slow clients.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, Version};
use hutch_serve::{Permit, Placed, Shutdown};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::admit::tls::Tls;
use crate::pace::{Activity, Paced};
use crate::proxy::dial::keep_alive;
use crate::proxy::forward::Origin;
use crate::proxy::stall::Stalling;
use crate::{Access, Router};

/// Maximum bytes of a request head, and of one read of a body.
const HEAD_LIMIT: usize = 128 << 10;
/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 250;
/// Flow control windows of one request, and of all requests on one HTTP/2 connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Interval of HTTP/2 pings to a client while requests are in progress.
const PING: Duration = Duration::from_secs(30);

impl Router {
    /// Serves HTTP/1.1 and HTTP/2 (by ALPN with TLS, by prior knowledge without) until `drain`. Then it
    /// accepts no more connections and requests, and returns when those in progress have ended, after `grace`
    /// at the latest.
    pub async fn serve(
        self,
        socket: TcpListener,
        tls: Option<Tls>,
        access: Access,
        drain: Shutdown,
        grace: Duration,
    ) {
        let access = Arc::new(access);
        let most = self.0.config.connections;
        let connections = hutch_serve::accept(socket, most, &drain, |stream, peer, permit| {
            keep_alive(&stream);
            let (router, tls, access, drain) = (self.clone(), tls.clone(), access.clone(), drain.clone());
            async move {
                // Boxed, because the allocation is freed when the connection is upgraded. A task keeps its
                // allocation as long as a waker exists.
                let Some(threads) = router.0.config.threads.clone() else {
                    let stream = Placed::new(stream, permit);
                    return Box::pin(router.meet(stream, tls, access, peer, drain)).await;
                };
                let Ok(stream) = stream.into_std() else { return };
                let served = Box::pin(async move {
                    // From here on the events of this connection belong to that thread.
                    let Ok(stream) = TcpStream::from_std(stream) else { return };
                    router.meet(Placed::new(stream, permit), tls, access, peer, drain).await;
                });
                threads.run(served).await;
            }
        });
        let connections = connections.await;
        if tokio::time::timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "aborted requests that took longer than {grace:?}"
            );
        }
    }

    async fn meet(
        self,
        stream: Placed<TcpStream, Permit>,
        tls: Option<Tls>,
        access: Arc<Access>,
        peer: SocketAddr,
        drain: Shutdown,
    ) {
        match tls {
            None => {
                let origin = Origin::of(peer, false, &access);
                self.converse(stream, access, origin, drain).await;
            }
            Some(tls) => self.greet(stream, tls, access, peer, drain).await,
        }
    }

    async fn greet(
        self,
        stream: Placed<TcpStream, Permit>,
        tls: Tls,
        access: Arc<Access>,
        peer: SocketAddr,
        drain: Shutdown,
    ) {
        let acceptor = TlsAcceptor::from(tls.current());
        match tokio::time::timeout(self.0.config.limits.head, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let origin = Origin::of(peer, true, &access);
                self.converse(stream, access, origin, drain).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, %peer, "a TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
        }
    }

    /// Serves a stream from another source than a listener, upgrades included, until it ends.
    pub async fn serve_connection<S>(&self, stream: S, access: Access)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let caller = access.caller().into();
        self.serve_caller(stream, access, caller).await;
    }

    /// Serves a stream whose client was authenticated before, under its name in the audit log.
    pub async fn serve_caller<S>(&self, stream: S, access: Access, caller: Arc<str>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shutdown = self.0.shutdown.clone();
        let origin = Origin { peer: None, secure: false, caller };
        self.clone().converse(stream, Arc::new(access), origin, shutdown).await;
    }

    async fn converse<S>(self, stream: S, access: Arc<Access>, origin: Origin, drain: Shutdown)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::new(Activity::default());
        let limits = self.0.config.limits;
        let stream = Paced::new(Stalling::new(stream, limits.stall), limits, activity.clone());
        let watched = activity.clone();
        let peer = origin.peer.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (router, access, activity) = (self.clone(), access.clone(), activity.clone());
            let origin = origin.clone();
            async move {
                if request.version() == Version::HTTP_2 {
                    activity.set_multiplexed();
                }
                let current = activity.begin();
                let response = router.answer(request.map(Body::new), &access, origin, current).await;
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
            () = watched.untaken(limits.stall) => {
                tracing::debug!(?peer, "a connection was cut: an answer was not taken in time");
                return;
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, ?peer, "a connection ended early");
        }
    }
}
