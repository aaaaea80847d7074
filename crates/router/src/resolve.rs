//! Resolves the name of a Sandbox to its Pod.

pub(crate) mod directory;
pub(crate) mod history;
pub(crate) mod idle_timeout;
pub(crate) mod undecodable;
pub(crate) mod wake;
pub(crate) mod waker;

use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use hutch_kubelet::PodId;

use crate::{IdleTimeout, Target};

/// Reachable Pod of a Sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// UID of the Sandbox.
    pub sandbox: String,
    /// Current Pod of the Sandbox.
    pub pod: PodId,
    /// Addresses of the Pod, the first one preferred; at least one.
    pub ips: Vec<IpAddr>,
    /// Set if the Sandbox has an idle timeout.
    pub idle_timeout: Option<IdleTimeout>,
}

/// Reason why no Pod is reachable. The client receives one response for all of them; the log has the reason.
#[derive(Debug, thiserror::Error)]
pub enum Unresolved {
    /// The Sandbox does not exist, or its UID differs.
    #[error("there is no such Sandbox")]
    Unknown,
    /// The Sandbox is pooled and no claim has adopted it.
    #[error("the Sandbox is in a pool, not claimed")]
    Pooled,
    /// The Sandbox has no Pod of its own that is ready and has an address.
    #[error("the Sandbox has no Pod that is ready")]
    NotReady,
    /// The API request failed.
    #[error("the API cannot be asked: {0}")]
    Api(String),
}

/// Former owner of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// This Sandbox, with an earlier Pod.
    Its,
    /// Another Sandbox, and never this one.
    Another,
    /// No remembered Sandbox.
    Unknown,
}

/// Finds the Pod of a Sandbox.
pub trait Resolve: Send + Sync + 'static {
    /// Returns the current Pod of the Sandbox that `target` names.
    fn resolve<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Arc<Backend>, Unresolved>>;
    /// Returns when an informer cache shows a reachable Pod. Never returns without watches.
    fn reachable<'a>(&'a self, _target: &'a Target) -> BoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
    /// Returns the former owner of an address that this Sandbox does not have now.
    fn past(&self, sandbox: &str, address: IpAddr) -> Past;
    /// Drops the cached Pod of the target, which no longer exists.
    fn forget(&self, target: &Target);
    /// Returns the reachable Pods of cached Sandboxes that have an idle timeout and an activity port, without
    /// requests to the API.
    fn polled_before_suspend(&self) -> Vec<Arc<Backend>> {
        Vec::new()
    }
    /// Returns true if the state of the cluster is known.
    fn ready(&self) -> bool;
}
