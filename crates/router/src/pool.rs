//! Connections to Pods: HTTP/1.1 ones that wait for their next request, HTTP/2 ones that take several at once.

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
use crate::stall::Stalling;

/// How long a connection waits. Shorter than what servers wait (uvicorn: 5 s), so that a request is not written to a
/// connection that the other side is just closing: such a request could not be sent again.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Connections kept for one port of one Pod; further ones are closed after their answer.
const PER_PORT: usize = 128;
/// Ports for which connections are kept.
const PORTS: usize = 1024;
/// Bytes of the head of an answer. As much is read at once of a body.
const HEAD_LIMIT: usize = 128 << 10;
/// Bytes that a sandbox may send ahead, of one answer and of all answers on one HTTP/2 connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// How often a sandbox is asked whether it is still there while requests are in progress on HTTP/2.
const PING: Duration = Duration::from_secs(30);

/// A port of one life of a Pod, and how it is spoken to.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) backend: Arc<Backend>,
    pub(crate) port: u16,
    /// HTTP/2 without TLS, instead of HTTP/1.1.
    pub(crate) h2: bool,
    /// The thread on which the connection lives.
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

/// The near end of a connection.
pub(crate) enum Sender {
    One(http1::SendRequest<Body>),
    Many(http2::SendRequest<Body>),
}

impl Sender {
    /// Sends a request. One that was not sent at all comes back in the error.
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

/// Clones share the connections.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Ports>>);

impl Pool {
    /// A connection that can take a request now, the one used last first.
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
                // The others are still giving their last answer.
                Sender::One(sender) if sender.is_ready() => return Some(kept.swap_remove(place).sender),
                Sender::One(_) => {}
            }
        }
        None
    }

    /// Speaks HTTP over a fresh connection.
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

    /// Keeps a connection whose answer has begun; it takes the next request once that answer was read to its end.
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
    /// Closes the connections that wait for their next request.
    pub(crate) fn close_idle(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).kept.clear();
    }
}

fn ended_early(error: hyper::Error) {
    tracing::debug!(%error, "a connection to a sandbox ended early");
}

/// Closes what has waited too long, until nothing is left to wait.
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
