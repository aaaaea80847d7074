use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::Service;

use crate::{Error, Shutdown};

/// Connections at a time.
const CONNECTIONS: usize = 4096;
/// How long a TLS handshake or the head of a request may take.
const GREETING: Duration = Duration::from_secs(10);
/// How long connections may go on after the shutdown was triggered.
const GRACE: Duration = Duration::from_secs(2);
/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Request extension: the certificate (DER) with which the peer has proved that it is a client of our authority.
#[derive(Debug, Clone)]
pub struct PeerCertificate(pub Arc<[u8]>);

/// Request extension: where the request came from.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// A bound TCP socket that can serve a router.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds. Port 0 picks a free one.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::Listen`].
    pub async fn bind(address: SocketAddr) -> Result<Listener, Error> {
        let failed = |cause: std::io::Error| match cause.kind() {
            std::io::ErrorKind::AddrInUse => Error::AddressInUse(address),
            _ => Error::Listen { address, cause },
        };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        Self::over(socket).map_err(failed)
    }

    /// Over a socket that was bound elsewhere.
    ///
    /// # Errors
    /// When the system does not tell its address.
    pub fn over(socket: TcpListener) -> std::io::Result<Listener> {
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    }

    /// Where it listens, with the port that was picked.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves HTTP/1.1 and HTTP/2 with prior knowledge, upgrades included, until the shutdown.
    pub async fn serve(self, app: Router, shutdown: Shutdown) {
        self.accept(app, None, shutdown).await;
    }

    /// Serves over TLS, HTTP/1.1 and HTTP/2 by ALPN, upgrades included, until the shutdown.
    pub async fn serve_tls(self, app: Router, tls: Arc<rustls::ServerConfig>, shutdown: Shutdown) {
        self.accept(app, Some(TlsAcceptor::from(tls)), shutdown).await;
    }

    async fn accept(self, app: Router, tls: Option<TlsAcceptor>, shutdown: Shutdown) {
        let connections = accept(self.socket, CONNECTIONS, &shutdown, |stream, peer| {
            let (app, tls, shutdown) = (app.clone(), tls.clone(), shutdown.clone());
            async move {
                match tls {
                    None => connection(stream, app, peer, None, shutdown).await,
                    Some(tls) => greet(stream, tls, app, peer, shutdown).await,
                }
            }
        });
        // What has not ended by then (watches, streams) is cut; their clients reconnect.
        let _ = tokio::time::timeout(GRACE, connections.await.wait()).await;
    }
}

/// Accepts connections, `most` at a time, until `until`; further ones wait in the system's backlog. Each gets a task of its
/// own that runs what `serve` gives. Gives those that still run; the socket is closed by then.
pub async fn accept<F>(
    socket: TcpListener,
    most: usize,
    until: &Shutdown,
    serve: impl Fn(TcpStream, SocketAddr) -> F,
) -> TaskTracker
where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(most));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = until.wait() => break,
            accepted = async {
                let place = room.clone().acquire_owned().await;
                (place, socket.accept().await)
            } => accepted,
        };
        let (place, (stream, peer)) = match accepted {
            (Ok(place), Ok(connection)) => (place, connection),
            (_, Err(error)) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
            (Err(_), _) => break,
        };
        // Small answers must not wait for the peer's delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        let served = serve(stream, peer);
        tasks.spawn(async move {
            let _place = place;
            served.await;
        });
    }
    tasks.close();
    tasks
}

async fn greet(stream: TcpStream, tls: TlsAcceptor, app: Router, peer: SocketAddr, shutdown: Shutdown) {
    let stream = match tokio::time::timeout(GREETING, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, %peer, "a TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!(%peer, "a TLS handshake took too long");
            return;
        }
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = certificate.map(|der| PeerCertificate(der.as_ref().into()));
    connection(stream, app, peer, certificate, shutdown).await;
}

async fn connection<S>(
    stream: S,
    app: Router,
    peer: SocketAddr,
    certificate: Option<PeerCertificate>,
    shutdown: Shutdown,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(PeerAddress(peer));
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        Service::call(&mut app.clone(), request)
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(GREETING);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1024);
    let connection =
        builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection ended early");
    }
}
