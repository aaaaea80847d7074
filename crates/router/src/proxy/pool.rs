//! Pool of connections to Pods: idle HTTP/1.1 connections, and HTTP/2 connections for concurrent requests.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hutch_kubelet::Duplex;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;

use crate::Backend;
use crate::proxy::stall::Stalling;

/// Idle timeout of a connection. It is shorter than that of servers (uvicorn: 5 s), so that no request is
/// written to a connection that the server is closing: such a request could not be sent again.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Maximum number of pooled connections of one port of a Pod; further ones are closed after their response.
const PER_PORT: usize = 128;
/// Maximum number of ports with pooled connections.
const PORTS: usize = 1024;
/// Maximum bytes of a response head, and of one read of a body.
const HEAD_LIMIT: usize = 128 << 10;
/// Flow control windows of one response, and of all responses on one HTTP/2 connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Interval of HTTP/2 pings to a Sandbox while requests are in progress.
const PING: Duration = Duration::from_secs(30);

/// Port of a Pod with a certain UID, and the protocol and thread of the connection.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) backend: Arc<Backend>,
    pub(crate) port: u16,
    /// True for HTTP/2 without TLS, false for HTTP/1.1.
    pub(crate) h2: bool,
    /// Thread of the connection.
    pub(crate) thread: usize,
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        let same = self.port == other.port && self.h2 == other.h2 && self.thread == other.thread;
        same && self.backend.pod == other.backend.pod
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.backend.pod.uid.hash(state);
        self.port.hash(state);
        self.thread.hash(state);
    }
}

/// Sending end of a connection.
pub(crate) enum Sender {
    One(http1::SendRequest<Body>),
    Many(http2::SendRequest<Body>),
}

impl Sender {
    /// Sends a request. The error returns a request that was not sent at all.
    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        match self {
            Sender::One(sender) => sender.try_send_request(request).await,
            Sender::Many(sender) => sender.try_send_request(request).await,
        }
    }

    fn usable(&self) -> bool {
        match self {
            Sender::One(sender) => !sender.is_closed(),
            Sender::Many(sender) => !sender.is_closed(),
        }
    }
}

struct Kept {
    sender: Sender,
    since: Instant,
}

#[derive(Default)]
struct Ports {
    kept: HashMap<Key, Vec<Kept>>,
    swept: bool,
}

/// Connection pool. Clones share the connections.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Ports>>);

impl Pool {
    /// Returns a connection that is ready for a request, the most recently used one first.
    pub(crate) fn take(&self, key: &Key) -> Option<Sender> {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = ports.kept.get_mut(key)?;
        let mut place = kept.len();
        while place > 0 {
            place -= 1;
            if !kept[place].sender.usable() || kept[place].since.elapsed() >= IDLE_LIMIT {
                kept.remove(place);
                continue;
            }
            match &mut kept[place].sender {
                Sender::Many(sender) => {
                    let shared = sender.clone();
                    kept[place].since = Instant::now();
                    return Some(Sender::Many(shared));
                }
                // The others are still sending their last response.
                Sender::One(sender) if sender.is_ready() => return Some(kept.swap_remove(place).sender),
                Sender::One(_) => {}
            }
        }
        None
    }

    /// Starts HTTP on a new connection.
    pub(crate) async fn open(
        &self,
        stream: Box<dyn Duplex>,
        stall: Duration,
        h2: bool,
    ) -> Result<Sender, hyper::Error> {
        let stream = Stalling::new(stream, stall);
        if h2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_header_list_size(u32::try_from(HEAD_LIMIT).unwrap_or(u32::MAX))
                .keep_alive_interval(PING);
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
            tokio::spawn(async move { connection.await.unwrap_or_else(ended_early) });
            return Ok(Sender::Many(sender));
        }
        let (sender, connection) =
            http1::Builder::new().max_buf_size(HEAD_LIMIT).handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            connection.with_upgrades().await.unwrap_or_else(ended_early);
        });
        Ok(Sender::One(sender))
    }

    /// Pools a connection after the head of its response; it is ready again at the end of that response.
    pub(crate) fn give_back(&self, key: &Key, sender: Sender) {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !ports.kept.contains_key(key) && ports.kept.len() >= PORTS {
            return;
        }
        if !ports.kept.contains_key(key) {
            ports.kept.insert(key.clone(), Vec::new());
        }
        let Some(kept) = ports.kept.get_mut(key) else { return };
        let known = matches!(sender, Sender::Many(_)) && !kept.is_empty();
        if known || kept.len() >= PER_PORT {
            return;
        }
        kept.push(Kept { sender, since: Instant::now() });
        if !ports.swept {
            ports.swept = true;
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }
}

impl Pool {
    /// Closes the idle connections.
    pub(crate) fn close_idle(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).kept.clear();
    }
}

fn ended_early(error: hyper::Error) {
    tracing::debug!(%error, "a connection to a sandbox ended early");
}

/// Closes connections after their idle timeout, until none is left.
async fn sweep(ports: Weak<Mutex<Ports>>) {
    loop {
        tokio::time::sleep(IDLE_LIMIT).await;
        let Some(ports) = ports.upgrade() else { return };
        let mut ports = ports.lock().unwrap_or_else(PoisonError::into_inner);
        for kept in ports.kept.values_mut() {
            kept.retain(|kept| kept.since.elapsed() < IDLE_LIMIT && kept.sender.usable());
        }
        ports.kept.retain(|_, kept| !kept.is_empty());
        if ports.kept.is_empty() {
            ports.swept = false;
            return;
        }
    }
}
