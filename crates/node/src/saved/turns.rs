//! Turns of snapshots: one of a namespace at a time, so that a Sandbox which makes its snapshot last lets only its own
//! namespace wait, and a few of the node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

/// Maximum snapshots that a node takes at once: each reads the memory of a Sandbox and writes it to the disk.
const AT_ONCE: usize = 4;

/// Turns of the snapshots of a node.
pub(crate) struct Turns {
    node: Semaphore,
    /// By namespace, while a snapshot of it has its turn or waits for one.
    namespaces: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Bytes that the snapshots under way need on the disk.
    needed: AtomicU64,
}

/// Bytes of the disk that snapshots need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needed {
    /// This one.
    pub(crate) own: u64,
    /// All that have their turn. What the others have written already counts twice: here, and as used.
    pub(crate) all: u64,
}

/// Turn of one snapshot. It ends when it is dropped.
pub(crate) struct Turn<'a> {
    _node: Option<SemaphorePermit<'a>>,
    _namespace: OwnedMutexGuard<()>,
    needed: &'a AtomicU64,
    own: u64,
}

impl Default for Turns {
    fn default() -> Turns {
        let (namespaces, needed) = (Mutex::default(), AtomicU64::new(0));
        Turns { node: Semaphore::new(AT_ONCE), namespaces, needed }
    }
}

impl Turns {
    /// Waits for the turn of a snapshot of this namespace.
    pub(crate) async fn wait(&self, namespace: &str) -> Turn<'_> {
        // First that of the namespace: one that waits for another of its own keeps none of the node's.
        let _namespace = self.of(namespace).lock_owned().await;
        // The semaphore is never closed.
        let _node = self.node.acquire().await.ok();
        Turn { _node, _namespace, needed: &self.needed, own: 0 }
    }

    fn of(&self, namespace: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, lock| Arc::strong_count(lock) > 1);
        all.entry(namespace.to_owned()).or_default().clone()
    }
}

impl Turn<'_> {
    /// Reserves bytes of the disk until the end of the turn.
    pub(crate) fn reserve(&mut self, own: u64) -> Needed {
        self.release();
        self.own = own;
        Needed { own, all: self.needed.fetch_add(own, Ordering::SeqCst).saturating_add(own) }
    }

    fn release(&mut self) {
        self.needed.fetch_sub(std::mem::take(&mut self.own), Ordering::SeqCst);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn snapshot_of_a_namespace_that_lasts_lets_only_its_own_wait() {
        let turns = Turns::default();
        let lasting = turns.wait("a").await;
        assert!(turns.wait("a").now_or_never().is_none());
        let others: Vec<_> =
            ["b", "c", "d"].iter().map(|namespace| turns.wait(namespace).now_or_never().unwrap()).collect();
        assert!(turns.wait("e").now_or_never().is_none(), "more than {AT_ONCE} at once");
        drop(others);
        drop(lasting);
        assert!(turns.wait("a").now_or_never().is_some());
        assert!(turns.namespaces.lock().unwrap().len() <= 1);
    }

    #[tokio::test]
    async fn snapshots_at_once_do_not_promise_the_same_bytes_of_the_disk() {
        let turns = Turns::default();
        let (mut one, mut other) = (turns.wait("a").await, turns.wait("b").await);
        assert_eq!(one.reserve(30), Needed { own: 30, all: 30 });
        assert_eq!(other.reserve(10), Needed { own: 10, all: 40 });
        assert_eq!(other.reserve(20), Needed { own: 20, all: 50 });
        drop(one);
        assert_eq!(other.reserve(20), Needed { own: 20, all: 20 });
    }
}
