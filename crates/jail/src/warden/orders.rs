//! Messages between the warden and its caller.

use serde::{Deserialize, Serialize};

use crate::cgroup::Freezer;
use crate::error::Error;
use crate::event::Usage;
use crate::network::NetworkPlan;
use crate::spec::Spec;

/// From the caller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Order {
    /// Create a network namespace.
    Network(NetworkPlan),
    /// Make a jail. Descriptors: the end of its control channel that init keeps, and the network namespace to join.
    Launch(Box<Spec>),
    /// Tell what the jail of this number has used.
    Usage(u64),
}

/// From the warden, one for each order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Answer {
    /// It has started, and swept up what an earlier life left. Not an answer to an order.
    Started,
    /// The network namespace is set up. Descriptors: the namespace and the listeners.
    Network,
    /// The jail stands. Descriptor: pidfd of its init.
    Launched { number: u64, pid: u32, freezer: Option<Freezer> },
    /// The requested resource usage.
    Used(Usage),
    /// It could not be done.
    Failed(Error),
}
