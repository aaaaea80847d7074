//! Listeners: one task per connection, a limit of connections, graceful shutdown.

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

/// Maximum number of connections of one port; further ones wait in the kernel's queue.
pub const CONNECTION_LIMIT: usize = 512;
/// Maximum number of concurrent requests on one HTTP/2 connection.
pub const STREAM_LIMIT: u32 = 128;
/// Maximum bytes of the header fields of one request.
pub const HEADER_LIMIT: u32 = 64 << 10;
/// Default idle timeout of a connection before a request. It is longer than that of proxies, which know
/// whether they are about to use a connection and so should be the ones to close it.
pub const IDLE_LIMIT: Duration = Duration::from_secs(75);

/// Pause after a failed accept. It mostly lacks a descriptor, and an immediate retry would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Interval of HTTP/2 pings, and maximum time until their acknowledgement.
const PING_PAUSE: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(20);

/// API on one port.
pub trait Door: Clone + Send + Sync + 'static {
    /// Responds to a request. The future is dropped when the client disconnects.
    fn answer(&self, request: Request<Content>) -> impl Future<Output = Response<Body>> + Send;

    /// Returns true if a request counts as activity, unlike a probe.
    fn is_use(&self, request: &Request<Content>) -> bool;
}

/// Listens on one address, or on all without an address: IPv6 and IPv4, or only IPv4 on a host without IPv6.
///
/// # Errors
/// The port is in use or not allowed.
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
            // Tasks are removed as they end.
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

/// Serves HTTP/1.1 or HTTP/2, as the client begins. When the client closes the connection, pending responses
/// are dropped, and their commands are killed.
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
        // An idle connection takes a permit that others need.
        () = silent => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
