//! Services of the front that Pods of the `embedded` handler represent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{Duplex, PodId, StreamError};
use hutch_privsep::Service;
use hutch_router::{Access, Router};

use crate::bootstrap;

/// Maximum buffered bytes between a port-forward and the router, in each direction.
const PIPE_BYTES: usize = 64 << 10;

/// The router, which is set later, because it is created after the node through which it connects.
#[derive(Default)]
pub(crate) struct RouterService(OnceLock<Router>);

impl RouterService {
    /// Sets the router, which serves from then on.
    pub(crate) fn is(&self, router: Router) {
        // There is one router in a process; a second call has no effect.
        let _ = self.0.set(router);
    }

    /// Returns true if the router serves.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.get().is_some_and(Router::ready)
    }
}

impl Service for RouterService {
    /// Connects to the router on any port: manifests of several releases name different ones. The API server has
    /// authorized the client for this Pod. A user of any namespace can create such a Pod there, so it reaches the Sandboxes of
    /// its own namespace; only that of administrators reaches all.
    fn connect(&self, pod: &PodId, _port: u16) -> BoxFuture<'_, Result<Box<dyn Duplex>, StreamError>> {
        let access = match pod.namespace.as_str() {
            bootstrap::NAMESPACE => Access::Authorized,
            namespace => Access::Namespace(namespace.to_owned()),
        };
        let caller = hutch_kubelet::CALLER.try_with(Clone::clone).unwrap_or_else(|_| "port-forward".into());
        async move {
            let router = self.0.get().cloned();
            let router =
                router.ok_or_else(|| StreamError::Unavailable("the router is starting".to_owned()))?;
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            tokio::spawn(async move { router.serve_caller(theirs, access, caller).await });
            Ok(Box::new(ours) as Box<dyn Duplex>)
        }
        .boxed()
    }
}

/// The controllers of the four kinds.
#[derive(Default)]
pub(crate) struct ControllerService(Arc<AtomicBool>);

impl ControllerService {
    pub(crate) fn set_ready(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    /// Returns true if the controllers run.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Service for ControllerService {
    fn connect(&self, _pod: &PodId, port: u16) -> BoxFuture<'_, Result<Box<dyn Duplex>, StreamError>> {
        async move { Err(StreamError::Unavailable(format!("the controller has no port {port} here"))) }
            .boxed()
    }
}
