//! How a Pod is connected to.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_remote::{Duplex, Kubelet, StreamError};
use tokio::net::TcpStream;

use crate::Backend;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// It may work in a moment: nothing listens yet, a packet was lost.
    #[error("{0}")]
    Retry(String),
    /// It will not: that Pod has gone.
    #[error("{0}")]
    Gone(String),
}

/// Connects to a port of a Pod. One try; how often and for how long is the caller's.
pub trait Dial: Send + Sync + 'static {
    /// A fresh connection, nothing written to it.
    fn dial<'a>(
        &'a self,
        backend: &'a Backend,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>>;
}

/// Connects from inside the Pod's network namespace, through the node of this process.
pub struct Inside(pub Arc<dyn Kubelet>);

impl Dial for Inside {
    fn dial<'a>(
        &'a self,
        backend: &'a Backend,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>> {
        let connected = self.0.connect(&backend.pod, port);
        connected
            .map(|result| {
                result.map_err(|error| match error {
                    StreamError::NotFound(text) => DialError::Gone(text),
                    other => DialError::Retry(other.to_string()),
                })
            })
            .boxed()
    }
}

/// Connects to the Pod's address over the cluster's network.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direct;

impl Dial for Direct {
    fn dial<'a>(
        &'a self,
        backend: &'a Backend,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>> {
        async move {
            let ip = *backend.ips.first().ok_or_else(|| DialError::Gone("the Pod has no address".into()))?;
            let stream = TcpStream::connect(SocketAddr::new(ip, port)).await;
            let stream = stream.map_err(|error| DialError::Retry(error.to_string()))?;
            // Small messages of an interactive session must not wait for an acknowledgement.
            let _ = stream.set_nodelay(true);
            Ok(Box::new(stream) as Box<dyn Duplex>)
        }
        .boxed()
    }
}
