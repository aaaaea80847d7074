//! Connections to Pods that wait for their next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use hutch_remote::{Duplex, PodId};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

/// How long a connection waits. Shorter than what servers wait (uvicorn: 5 s), so that a request is not written to a
/// connection that the other side is just closing: such a request could not be sent again.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Connections that wait for one port of one Pod.
const PER_PORT: usize = 16;
/// Ports for which connections wait.
const PORTS: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) pod: PodId,
    pub(crate) port: u16,
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<HashMap<Key, Vec<Idle>>>>);

impl Pool {
    /// A connection that waited and is still good, the one used last first.
    pub(crate) fn take(&self, key: &Key) -> Option<SendRequest<Body>> {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = ports.get_mut(key)?;
        while let Some(Idle { sender, since }) = idle.pop() {
            if since.elapsed() < IDLE_LIMIT && sender.is_ready() && !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    /// Speaks HTTP/1.1 over a fresh connection.
    pub(crate) async fn open(&self, stream: Box<dyn Duplex>) -> Result<SendRequest<Body>, hyper::Error> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to a sandbox ended early");
            }
        });
        Ok(sender)
    }

    /// Takes a connection back when its answer has been read to the end; it is closed if that does not happen.
    pub(crate) fn give_back(&self, key: Key, mut sender: SendRequest<Body>) {
        let pool = self.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_err() {
                return;
            }
            if pool.put(&key, sender) {
                tokio::time::sleep(IDLE_LIMIT).await;
                pool.sweep(&key);
            }
        });
    }

    fn put(&self, key: &Key, sender: SendRequest<Body>) -> bool {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !ports.contains_key(key) && ports.len() >= PORTS {
            return false;
        }
        let idle = ports.entry(key.clone()).or_default();
        if idle.len() >= PER_PORT {
            return false;
        }
        idle.push(Idle { sender, since: Instant::now() });
        true
    }

    fn sweep(&self, key: &Key) {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(idle) = ports.get_mut(key) else { return };
        idle.retain(|idle| idle.since.elapsed() < IDLE_LIMIT && !idle.sender.is_closed());
        if idle.is_empty() {
            ports.remove(key);
        }
    }
}
