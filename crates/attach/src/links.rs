//! Connections between Pods that are open.

use std::sync::Arc;

use hutch_policy::Level;
use tokio::task::JoinHandle;

use crate::peers::{AllBehind, leads_to};

/// Number of connections after which those that have ended are forgotten for the first time.
const FULL: usize = 64;

/// A connection of a Pod to another one. Dropping it ends the connection.
#[derive(Debug)]
pub struct Link<F, T> {
    /// The Pod that connects.
    pub from: F,
    /// Namespace and name of the Service that it has named.
    pub service: (String, String),
    /// The other Pod.
    pub to: T,
    /// Port of that Pod.
    pub port: u16,
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
pub struct Links<F, T> {
    all: Vec<Link<F, T>>,
    /// Number at which those that have ended are forgotten.
    full: usize,
}

impl<F, T> Default for Links<F, T> {
    fn default() -> Links<F, T> {
        Links { all: Vec::new(), full: FULL }
    }
}

impl<F, T: PartialEq> Links<F, T> {
    /// Adds a connection.
    pub fn add(&mut self, link: Link<F, T>) {
        if self.all.len() >= self.full {
            self.all.retain(|link| !link.task.is_finished());
            self.full = FULL.max(2 * self.all.len());
        }
        self.all.push(link);
    }

    /// Returns true if it is empty.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Ends the connections that are no longer allowed. `from` returns the levels and the namespace of a Pod, and `name` what
    /// it is called as the other one.
    pub fn keep<'a, P>(
        &mut self,
        all: &AllBehind<P>,
        from: impl Fn(&F) -> Option<(&'a [Arc<Level>], &'a str)>,
        name: impl Fn(&P) -> T,
    ) {
        self.all.retain(|link| {
            let Some((levels, namespace)) = from(&link.from).filter(|_| !link.task.is_finished()) else {
                return false;
            };
            let to = |pod: &P| name(pod) == link.to;
            leads_to(levels, namespace, (&link.service, link.port), all, to)
        });
    }
}
