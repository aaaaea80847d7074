//! Walks through the volumes of Pods that `fsGroup` requires: how many run at a time, and when they end.
//!
//! A volume may have a million files. So each is walked once for a Pod, also if its start is tried again, and a walk ends when
//! its Pod does. Until then the Pod keeps its claims.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hutch_serve::Shutdown;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Maximum walks at a time on this node.
const MAX_WALKS: usize = 4;
/// Maximum walks at a time for Pods of one namespace.
const MAX_OF_NAMESPACE: usize = 2;

/// Reason why a volume cannot be walked, by its folder; `Ok` for a volume that was walked.
type Outcomes = Arc<Mutex<HashMap<PathBuf, Result<(), String>>>>;

/// Permits of this node for walks.
pub(crate) struct Permits {
    all: Arc<Semaphore>,
    /// Those of a namespace while it has a walk, or waits for one.
    by_namespace: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Default for Permits {
    fn default() -> Permits {
        Permits::new(MAX_WALKS)
    }
}

impl Permits {
    fn new(all: usize) -> Permits {
        Permits { all: Arc::new(Semaphore::new(all)), by_namespace: Mutex::default() }
    }

    /// Waits for the permit of a namespace, and then for that of the node.
    async fn acquire(&self, namespace: &str) -> io::Result<[OwnedSemaphorePermit; 2]> {
        let own = self.of(namespace).acquire_owned().await.map_err(io::Error::other)?;
        let any = self.all.clone().acquire_owned().await.map_err(io::Error::other)?;
        Ok([own, any])
    }

    fn of(&self, namespace: &str) -> Arc<Semaphore> {
        let mut known = self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, permits| permits.strong_count() > 0);
        if let Some(permits) = known.get(namespace).and_then(Weak::upgrade) {
            return permits;
        }
        let permits = Arc::new(Semaphore::new(MAX_OF_NAMESPACE));
        known.insert(namespace.to_owned(), Arc::downgrade(&permits));
        permits
    }
}

/// Walks of one Pod.
#[derive(Default)]
pub(crate) struct Walks {
    /// Triggered when the Pod is to end.
    ending: Shutdown,
    /// Held by the walk in progress.
    running: Arc<tokio::sync::Mutex<()>>,
    outcomes: Outcomes,
}

impl Walks {
    /// Walks of a Pod that ends with `ending` at the latest.
    pub(crate) fn new(ending: Shutdown) -> Walks {
        Walks { ending, ..Walks::default() }
    }

    /// Ends the walk in progress, and allows no other.
    pub(crate) fn cancel(&self) {
        self.ending.trigger();
    }

    /// Returns true if no walk is allowed any longer.
    pub(crate) fn are_over(&self) -> bool {
        self.ending.is_triggered()
    }

    /// Waits until it is the turn of this Pod, which is in this namespace. What blocks meanwhile holds the result until it has
    /// ended. A volume for which `is_new` returns true is empty, and needs no permit.
    pub(crate) async fn begin(
        &self,
        permits: &Permits,
        namespace: &str,
        is_new: impl FnOnce() -> bool,
    ) -> io::Result<Walk> {
        let turn = async {
            let running = self.running.clone().lock_owned().await;
            let permits = if is_new() { None } else { Some(permits.acquire(namespace).await?) };
            let (ending, outcomes) = (self.ending.clone(), self.outcomes.clone());
            Ok(Walk { ending, outcomes, _running: running, _permits: permits })
        };
        tokio::select! {
            biased;
            () = self.ending.wait() => Err(cancelled()),
            walk = turn => walk,
        }
    }

    /// Resolves when no walk is in progress.
    pub(crate) async fn ended(&self) {
        drop(self.running.lock().await);
    }
}

/// Right to walk through a volume.
pub(crate) struct Walk {
    ending: Shutdown,
    outcomes: Outcomes,
    _running: OwnedMutexGuard<()>,
    _permits: Option<[OwnedSemaphorePermit; 2]>,
}

impl Walk {
    /// Fails once the Pod is to end.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.ending.is_triggered() { Err(cancelled()) } else { Ok(()) }
    }

    /// Walks through a volume, unless that was done for this Pod or is refused. Other failures may be tried again.
    pub(crate) fn once(&self, volume: &Path, walk: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let outcomes = || self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = outcomes().get(volume) {
            return outcome.clone().map_err(io::Error::other);
        }
        let outcome = walk();
        let kept = match &outcome {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Err(error.to_string()),
            Err(_) => return outcome,
        };
        outcomes().insert(volume.to_owned(), kept);
        outcome
    }
}

/// Error of a walk that is refused, now and later.
pub(crate) fn too_large(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

fn cancelled() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "the pod is ending")
}

#[cfg(test)]
pub(crate) mod tests {
    use futures::{FutureExt, poll};

    use super::*;

    /// Right to one walk.
    pub(crate) fn walk() -> Walk {
        Walks::default().begin(&Permits::new(1), "a", || false).now_or_never().unwrap().unwrap()
    }

    #[tokio::test]
    async fn walks_of_a_node_are_bounded() {
        let permits = Permits::new(2);
        let pods: Vec<Walks> = (0..4).map(|_| Walks::default()).collect();
        let first = pods[0].begin(&permits, "a", || false).await.unwrap();
        let _second = pods[1].begin(&permits, "b", || false).await.unwrap();
        let mut third = std::pin::pin!(pods[2].begin(&permits, "c", || false));
        assert!(poll!(third.as_mut()).is_pending());
        let new = pods[3].begin(&permits, "d", || true).now_or_never();
        assert!(new.is_some_and(|walk| walk.is_ok()), "a new volume does not wait");
        drop(first);
        assert!(poll!(third).is_ready());
    }

    #[tokio::test]
    async fn namespace_does_not_hold_up_another_one() {
        let permits = Permits::default();
        let pods: Vec<Walks> = (0..4).map(|_| Walks::default()).collect();
        let first = pods[0].begin(&permits, "a", || false).await.unwrap();
        let second = pods[1].begin(&permits, "a", || false).await.unwrap();
        {
            let mut third = std::pin::pin!(pods[2].begin(&permits, "a", || false));
            assert!(poll!(third.as_mut()).is_pending());
            assert!(pods[3].begin(&permits, "b", || false).now_or_never().is_some_and(|walk| walk.is_ok()));
            drop(first);
            assert!(poll!(third).is_ready());
        }
        let known = || permits.by_namespace.lock().unwrap().keys().cloned().collect::<Vec<_>>();
        let _other = permits.of("b");
        assert_eq!(known().len(), 2);
        drop(second);
        let _other = permits.of("b");
        assert_eq!(known(), ["b"], "a namespace without walks is forgotten");
    }

    #[tokio::test]
    async fn walk_that_waits_ends_with_its_pod() {
        let (permits, walks) = (Permits::new(0), Walks::default());
        let mut waiting = std::pin::pin!(walks.begin(&permits, "a", || false));
        assert!(poll!(waiting.as_mut()).is_pending());
        walks.cancel();
        assert_eq!(waiting.await.err().unwrap().kind(), io::ErrorKind::Interrupted);
    }

    #[tokio::test]
    async fn pod_waits_for_its_walk_when_the_task_that_began_it_is_dropped() {
        let (permits, walks) = (Permits::new(1), Walks::default());
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let walk = walks.begin(&permits, "a", || false).await.unwrap();
        let blocking = tokio::task::spawn_blocking(move || {
            let _ = receiver.recv();
            walk.check()
        });
        let mut ended = std::pin::pin!(walks.ended());
        assert!(poll!(ended.as_mut()).is_pending());
        walks.cancel();
        assert!(poll!(ended.as_mut()).is_pending(), "it has not noticed");
        sender.send(()).unwrap();
        ended.await;
        assert!(blocking.await.unwrap().is_err());
    }

    #[test]
    fn volume_is_walked_once_for_a_pod_unless_the_walk_failed() {
        let (permits, walks) = (Permits::new(1), Walks::default());
        let walk = || walks.begin(&permits, "a", || false).now_or_never().unwrap().unwrap();
        for (path, error, expected) in [
            ("a", None, 1),
            ("b", Some(too_large("too many files".into())), 1),
            ("c", Some(io::ErrorKind::StorageFull.into()), 2),
        ] {
            let mut count = 0;
            let text = error.as_ref().map(ToString::to_string);
            for _ in 0..2 {
                let outcome = walk().once(Path::new(path), || {
                    count += 1;
                    error
                        .as_ref()
                        .map_or(Ok(()), |error| Err(io::Error::new(error.kind(), error.to_string())))
                });
                assert_eq!(outcome.err().map(|error| error.to_string()), text, "{path}");
            }
            assert_eq!(count, expected, "{path}");
        }
    }
}
