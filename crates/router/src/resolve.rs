//! From the name of a Sandbox to its Pod.

use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use hutch_kubelet::PodId;

use crate::{Sleeps, Target};

/// The Pod of a Sandbox that can be reached now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// UID of the Sandbox.
    pub sandbox: String,
    /// Its Pod, in this life.
    pub pod: PodId,
    /// The Pod's addresses, the first one preferred; at least one.
    pub ips: Vec<IpAddr>,
    /// Set when it is suspended after nobody has used it for a time.
    pub sleeps: Option<Sleeps>,
}

/// Why there is no Pod to reach. All of these are one answer to the client; the log tells them apart.
#[derive(Debug, thiserror::Error)]
pub enum Unresolved {
    /// No such Sandbox, or another one of that name.
    #[error("there is no such Sandbox")]
    Unknown,
    /// It still belongs to its pool: nobody has claimed it.
    #[error("the Sandbox is in a pool, not claimed")]
    Pooled,
    /// It has no Pod, or none that is its own, ready and has an address.
    #[error("the Sandbox has no Pod that is ready")]
    NotReady,
    /// The API could not be asked.
    #[error("the API cannot be asked: {0}")]
    Api(String),
}

/// Whose an address was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// This Sandbox's, in an earlier life of its Pod.
    Its,
    /// Another one's, and never this one's.
    Another,
    /// Nobody's, as far as is remembered.
    Unknown,
}

/// Finds the Pod of a Sandbox.
pub trait Resolve: Send + Sync + 'static {
    /// The Pod of the Sandbox that `target` names, as it is now.
    fn resolve<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Arc<Backend>, Unresolved>>;
    /// Ends when a watch has told that it can be reached. Never, where nothing is watched.
    fn reachable<'a>(&'a self, _target: &'a Target) -> BoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
    /// What is known of an address that is not this Sandbox's now.
    fn past(&self, sandbox: &str, address: IpAddr) -> Past;
    /// The Pod that was found for it does not exist any more: do not find it again without looking.
    fn forget(&self, target: &Target);
    /// The Pods that can be reached of Sandboxes that are suspended when nobody uses them and have somebody inside who can be
    /// asked, as far as they are known without asking the API.
    fn asked_before_sleep(&self) -> Vec<Arc<Backend>> {
        Vec::new()
    }
    /// Whether it knows the state of the cluster.
    fn ready(&self) -> bool;
}
