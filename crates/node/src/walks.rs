//! Walks through the volumes of Pods that `fsGroup` requires: how many run at a time, and when they end.
//!
//! A volume may have a million files. So each is walked once for a Pod, also if its start is tried again, and a walk ends when
//! its Pod does. Until then the Pod keeps its claims.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hutch_serve::Shutdown;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Maximum walks at a time on this node.
pub(crate) const MAX_WALKS: usize = 4;

/// Reason why a volume cannot be walked, by its folder; `Ok` for a volume that was walked.
type Outcomes = Arc<Mutex<HashMap<PathBuf, Result<(), String>>>>;

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

    /// Waits until it is the turn of this Pod. What blocks meanwhile holds the result until it has ended.
    pub(crate) async fn begin(&self, permits: &Arc<Semaphore>) -> io::Result<Walk> {
        let turn = async {
            let running = self.running.clone().lock_owned().await;
            let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
            let (ending, outcomes) = (self.ending.clone(), self.outcomes.clone());
            Ok(Walk { ending, outcomes, _running: running, _permit: permit })
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
    _permit: OwnedSemaphorePermit,
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
        Walks::default().begin(&Arc::new(Semaphore::new(1))).now_or_never().unwrap().unwrap()
    }

    #[tokio::test]
    async fn walks_of_a_node_are_bounded() {
        let permits = Arc::new(Semaphore::new(2));
        let pods: Vec<Walks> = (0..3).map(|_| Walks::default()).collect();
        let first = pods[0].begin(&permits).await.unwrap();
        let _second = pods[1].begin(&permits).await.unwrap();
        let mut third = std::pin::pin!(pods[2].begin(&permits));
        assert!(poll!(third.as_mut()).is_pending());
        drop(first);
        assert!(poll!(third).is_ready());
    }

    #[tokio::test]
    async fn walk_that_waits_ends_with_its_pod() {
        let (permits, walks) = (Arc::new(Semaphore::new(0)), Walks::default());
        let mut waiting = std::pin::pin!(walks.begin(&permits));
        assert!(poll!(waiting.as_mut()).is_pending());
        walks.cancel();
        assert_eq!(waiting.await.err().unwrap().kind(), io::ErrorKind::Interrupted);
    }

    #[tokio::test]
    async fn pod_waits_for_its_walk_when_the_task_that_began_it_is_dropped() {
        let (permits, walks) = (Arc::new(Semaphore::new(1)), Walks::default());
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let walk = walks.begin(&permits).await.unwrap();
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
        let (permits, walks) = (Arc::new(Semaphore::new(1)), Walks::default());
        let walk = || walks.begin(&permits).now_or_never().unwrap().unwrap();
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
