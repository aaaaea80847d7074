//! Connections between Pods that are open.

use std::num::NonZeroU16;
use std::sync::Arc;

use hutch_policy::Level;
use tokio::task::JoinHandle;

use crate::peers::{AllBehind, Services, leads_to};

/// A connection of a Pod to another one. Dropping it ends the connection.
#[derive(Debug)]
pub struct Link<F, T> {
    /// The Pod that connects.
    pub from: F,
    /// Namespace and name of the Service that it has named.
    pub service: (String, String),
    /// Port of the Service.
    pub port: NonZeroU16,
    /// The other Pod.
    pub to: T,
    /// Makes the connection, and ends with it.
    pub task: JoinHandle<()>,
}

impl<F, T> Drop for Link<F, T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All connections between Pods.
#[derive(Debug)]
pub struct Links<F, T>(Vec<Link<F, T>>);

impl<F, T> Default for Links<F, T> {
    fn default() -> Links<F, T> {
        Links(Vec::new())
    }
}

impl<F, T: PartialEq> Links<F, T> {
    /// Adds a connection, and forgets those that have ended.
    pub fn add(&mut self, link: Link<F, T>) {
        self.0.retain(|link| !link.task.is_finished());
        self.0.push(link);
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the connections that are no longer allowed. `from` returns the levels and the namespace of a Pod, and `name` what
    /// it is called as the other one.
    pub fn keep<'a, P>(
        &mut self,
        services: &Services,
        all: &AllBehind<P>,
        from: impl Fn(&F) -> Option<(&'a [Arc<Level>], &'a str)>,
        name: impl Fn(&P) -> T,
    ) {
        self.0.retain(|link| {
            let Some((levels, namespace)) = from(&link.from).filter(|_| !link.task.is_finished()) else {
                return false;
            };
            let to = |pod: &P| name(pod) == link.to;
            leads_to(services, levels, namespace, &link.service, link.port, all, to)
        });
    }
}
