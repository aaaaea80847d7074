//! The listener: one task per connection, a bound on them, an orderly end.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::legacy::Legacy;

/// Connections at once; further ones wait in the kernel's queue.
pub const CONNECTION_LIMIT: usize = 1024;
/// How long a connection may be silent before a request. Longer than what proxies keep a connection for, so that
/// they, who know whether they are about to use it, are the ones to close it.
pub const IDLE_LIMIT: Duration = Duration::from_secs(75);
/// How long requests may take to end after a stop was asked for.
pub const STOP_LIMIT: Duration = Duration::from_secs(5);

/// After a failed accept (no descriptor left, mostly) nothing is gained by trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens on all addresses, IPv6 and IPv4, or IPv4 alone where there is no IPv6.
///
/// # Errors
/// When the port is taken or not allowed.
pub async fn listen(port: u16) -> Result<TcpListener, Error> {
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Err(Error::Listen { port, source: error })
        }
        Err(_) => {
            let bound = TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await;
            bound.map_err(|source| Error::Listen { port, source })
        }
    }
}

/// Serves until `stop`, then lets requests end for [`STOP_LIMIT`].
pub async fn serve(listener: TcpListener, legacy: Legacy, stop: CancellationToken) {
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
                    let (legacy, stop) = (legacy.clone(), stop.clone());
                    connections.spawn(async move {
                        connection(stream, legacy, stop).await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(STOP_LIMIT, ended).await;
}

/// When the client closes the connection, the answer that it waited for is dropped, and the command with it.
async fn connection(stream: TcpStream, legacy: Legacy, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let legacy = legacy.clone();
        async move { Ok::<_, Infallible>(legacy.answer(request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE_LIMIT);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
