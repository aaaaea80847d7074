//! The listeners: one task per connection, a bound on them, an orderly end.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::answer::Body;
use crate::content::Content;

/// Connections of one door at once; further ones wait in the kernel's queue.
pub const CONNECTION_LIMIT: usize = 512;
/// Requests at once on one HTTP/2 connection.
pub const STREAM_LIMIT: u32 = 128;
/// Bytes of the header fields of one request.
pub const HEADER_LIMIT: u32 = 64 << 10;
/// How long a connection may be silent before a request when nothing else is said. Longer than what proxies keep a
/// connection for, so that they, who know whether they are about to use it, are the ones to close it.
pub const IDLE_LIMIT: Duration = Duration::from_secs(75);

/// After a failed accept (no descriptor left, mostly) nothing is gained by trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often the other side of an HTTP/2 connection is asked whether it is there, and how long it may take to say so.
const PING_PAUSE: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(20);

/// One contract, served at one port.
pub trait Door: Clone + Send + Sync + 'static {
    /// Answers a request. When the future is dropped, the client has gone.
    fn answer(&self, request: Request<Content>) -> impl Future<Output = Response<Body>> + Send;

    /// Whether somebody uses the sandbox by it, rather than looks whether the program lives.
    fn is_use(&self, request: &Request<Content>) -> bool;
}

/// Listens on one address or, when none is given, on all: IPv6 and IPv4, or IPv4 alone where there is no IPv6.
///
/// # Errors
/// When the port is taken or not allowed.
pub async fn listen(host: Option<IpAddr>, port: u16) -> Result<TcpListener, Error> {
    let refused = |source| Error::Listen { port, source };
    if let Some(host) = host {
        return TcpListener::bind(SocketAddr::from((host, port))).await.map_err(refused);
    }
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(refused(error)),
        Err(_) => TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await.map_err(refused),
    }
}

/// Serves until `stop`, then until all requests have ended.
pub async fn serve(listener: TcpListener, door: impl Door, idle: Duration, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTION_LIMIT));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            () = stop.cancelled() => break,
            // What has ended is forgotten as it ends.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => {
                    let (door, stop) = (door.clone(), stop.clone());
                    connections.spawn(async move {
                        connection(stream, door, idle, stop).await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// HTTP/1.1 or HTTP/2, as the client begins. When it closes the connection, the answers that it waited for are
/// dropped, and with them the commands.
async fn connection(stream: TcpStream, door: impl Door, idle: Duration, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let asked = Arc::new(AtomicBool::new(false));
    let service = service_fn({
        let asked = asked.clone();
        move |request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            let door = door.clone();
            async move { Ok::<_, Infallible>(door.answer(request.map(Content::new)).await) }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle).max_buf_size(HEADER_LIMIT as usize);
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(STREAM_LIMIT).max_header_list_size(HEADER_LIMIT);
    http2.keep_alive_interval(PING_PAUSE).keep_alive_timeout(PING_LIMIT);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let silent = async {
        tokio::time::sleep(idle).await;
        if asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = connection.as_mut() => return,
        // Whoever has not asked for anything by now takes a place that others need.
        () = silent => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
