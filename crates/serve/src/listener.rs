mod cut;
mod table;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::Service;

use self::cut::Cut;
use self::table::{Place, Table};
use crate::{Error, Placed, Shutdown, connection_limit};

pub use self::table::{Connection, Connections};

/// Maximum connections of a [`Listener`], for their memory. Where descriptors are scarce there are fewer.
pub const CONNECTIONS: usize = 4096;
/// Connections that may be closing or waiting for a place besides those.
const CHANGING: usize = 16;
/// How long a TLS handshake or the head of a request may take.
const GREETING: Duration = Duration::from_secs(10);
/// How long a connection is kept without a request in progress, as a kube-apiserver does.
const IDLE: Duration = Duration::from_secs(90);
/// Maximum bytes of the head of a request on HTTP/1.1, which a stranger can make the server keep.
const HEAD_BYTES: usize = 128 << 10;
/// Interval of HTTP/2 keepalive pings, and their timeout.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(15);
/// Maximum time that connections stay open after the shutdown was triggered.
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
        let most = connection_limit(CONNECTIONS);
        let table = Table::new(most);
        let connections = within(self.socket, most + CHANGING, &shutdown, |socket, peer, permit| {
            let (app, tls, shutdown) = (app.clone(), tls.clone(), shutdown.clone());
            let place = table.admit(peer);
            async move {
                let _permit = permit;
                let Some(place) = place else {
                    tracing::debug!(%peer, "a connection was refused: all others have requests in progress");
                    return;
                };
                let connection = place.connection().clone();
                let stream = Cut::new(Placed::new(socket, place), &connection);
                let served = async {
                    match tls {
                        None => converse(stream, app, peer, None, &connection, shutdown).await,
                        Some(tls) => greet(stream, tls, app, peer, &connection, shutdown).await,
                    }
                };
                tokio::select! {
                    () = served => {}
                    () = connection.evicted() => {}
                }
            }
        });
        // What has not ended by then (watches, streams) is cut; their clients reconnect.
        let _ = tokio::time::timeout(GRACE, connections.await.wait()).await;
    }
}

/// The right to one of a bounded number of connections, until it is dropped.
#[derive(Debug)]
pub struct Permit(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

/// Accepts connections until `until`, `most` at a time or fewer where descriptors are scarce; further ones wait in the
/// system's backlog. Each gets a task of its own that runs what `serve` gives, and counts until its permit is dropped. Gives
/// those that still run; the socket is closed by then.
pub async fn accept<F>(
    socket: TcpListener,
    most: usize,
    until: &Shutdown,
    serve: impl Fn(TcpStream, SocketAddr, Permit) -> F,
) -> TaskTracker
where
    F: Future<Output = ()> + Send + 'static,
{
    within(socket, connection_limit(most), until, serve).await
}

async fn within<F>(
    socket: TcpListener,
    most: usize,
    until: &Shutdown,
    serve: impl Fn(TcpStream, SocketAddr, Permit) -> F,
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
        tasks.spawn(serve(stream, peer, Permit(place)));
    }
    tasks.close();
    tasks
}

async fn greet(
    stream: Cut<Placed<TcpStream, Place>>,
    tls: TlsAcceptor,
    app: Router,
    peer: SocketAddr,
    connection: &Connection,
    shutdown: Shutdown,
) {
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
    converse(stream, app, peer, certificate, connection, shutdown).await;
}

async fn converse<S>(
    stream: S,
    app: Router,
    peer: SocketAddr,
    certificate: Option<PeerCertificate>,
    connection: &Connection,
    shutdown: Shutdown,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let own = connection.clone();
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(PeerAddress(peer));
        request.extensions_mut().insert(own.clone());
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        let current = own.begin();
        let answer = Service::call(&mut app.clone(), request);
        async move {
            let (head, body) = answer.await?.into_parts();
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                current.hold();
            }
            Ok::<_, Infallible>(Response::from_parts(head, current.answered(body)))
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(GREETING).max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1024)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    let served =
        builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = shutdown.wait() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
        () = connection.idle(IDLE) => {
            served.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, served).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection ended early");
    }
}
