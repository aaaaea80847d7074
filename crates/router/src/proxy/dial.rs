//! Connections to Pods.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{Duplex, Hold, Kubelet, StreamError};
use tokio::net::TcpStream;

use crate::Backend;
use crate::admit::target::can_be_a_pods;

/// Interval of TCP keepalive probes on an idle connection.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// A retry may succeed: no process listens yet, or a packet was lost.
    #[error("{0}")]
    Retry(String),
    /// All connections to sandboxes are in use.
    #[error("too many connections to sandboxes are in use")]
    Busy,
    /// A retry cannot succeed: the Pod is gone.
    #[error("{0}")]
    Gone(String),
}

/// Connects to a port of a Pod, with one attempt. The caller decides on retries and timeouts.
pub trait Dial: Send + Sync + 'static {
    /// Opens a new connection and writes nothing to it.
    fn dial<'a>(
        &'a self,
        backend: &'a Backend,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>>;

    /// Thaws a frozen Pod before a request. The Pod counts as in use until the result is dropped.
    fn hold<'a>(&'a self, backend: &'a Backend) -> BoxFuture<'a, Result<Hold, DialError>> {
        let _ = backend;
        futures::future::ready(Ok(Box::new(()) as Hold)).boxed()
    }
}

/// Connects from inside the Pod's network namespace, through the node of this process.
pub struct Inside(pub Arc<dyn Kubelet>);

impl Dial for Inside {
    fn dial<'a>(
        &'a self,
        backend: &'a Backend,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>> {
        self.0.connect(&backend.pod, port).map(|result| result.map_err(DialError::from)).boxed()
    }

    fn hold<'a>(&'a self, backend: &'a Backend) -> BoxFuture<'a, Result<Hold, DialError>> {
        self.0.hold(&backend.pod).map(|result| result.map_err(DialError::from)).boxed()
    }
}

impl From<StreamError> for DialError {
    fn from(error: StreamError) -> DialError {
        match error {
            StreamError::NotFound(text) => DialError::Gone(text),
            other => DialError::Retry(other.to_string()),
        }
    }
}

/// Connects to the Pod's address over the cluster network.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direct {
    /// Allows loopback addresses of Pods.
    pub allow_loopback: bool,
}

impl Dial for Direct {
    fn dial<'a>(
        &'a self,
        backend: &'a Backend,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>> {
        async move {
            // A client that may write a Pod's status must not thereby reach this machine or a metadata
            // service.
            let possible = |ip: &&IpAddr| can_be_a_pods(**ip, self.allow_loopback);
            let ip = *backend
                .ips
                .iter()
                .find(possible)
                .ok_or_else(|| DialError::Gone("the Pod has no usable address".into()))?;
            let stream = TcpStream::connect(SocketAddr::new(ip, port)).await;
            let stream = stream.map_err(|error| DialError::Retry(error.to_string()))?;
            // Small messages of an interactive session must not wait for an acknowledgement.
            let _ = stream.set_nodelay(true);
            keep_alive(&stream);
            Ok(Box::new(stream) as Box<dyn Duplex>)
        }
        .boxed()
    }
}

/// Enables TCP keepalive, so that the kernel detects a lost peer.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(stream, KEEP_ALIVE);
    let _ = rustix::net::sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE);
}
