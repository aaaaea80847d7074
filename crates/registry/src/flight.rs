//! Work that all who need it at the same time share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::watch;

use crate::Error;

/// Outcome of shared work.
type Outcome<T> = BoxFuture<'static, Result<T, Error>>;

/// Work in progress, and the bytes that are there.
type Running<T> = (WeakShared<Outcome<T>>, watch::Receiver<u64>);

/// Work in progress, by key. It ends when all who wait for it are gone.
pub(crate) struct Flights<T: Clone> {
    running: Mutex<HashMap<String, Running<T>>>,
}

/// Shared work.
pub(crate) struct Flight<T: Clone> {
    pub(crate) outcome: Shared<Outcome<T>>,
    /// Bytes that are there.
    pub(crate) progress: watch::Receiver<u64>,
}

impl<T: Clone> Default for Flights<T> {
    fn default() -> Self {
        Flights { running: Mutex::default() }
    }
}

impl<T: Clone> Flights<T> {
    /// Joins the work of the key, or starts it.
    pub(crate) fn join(
        &self,
        key: String,
        start: impl FnOnce(watch::Sender<u64>) -> Outcome<T>,
    ) -> Flight<T> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|_, (work, _)| work.upgrade().is_some_and(|work| work.peek().is_none()));
        if let Some((work, progress)) = running.get(&key)
            && let Some(outcome) = work.upgrade()
        {
            return Flight { outcome, progress: progress.clone() };
        }
        let (sender, progress) = watch::channel(0);
        let outcome = start(sender).shared();
        if let Some(work) = outcome.downgrade() {
            running.insert(key, (work, progress.clone()));
        }
        Flight { outcome, progress }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn concurrent_work_is_done_once_and_later_work_again() {
        let flights = Flights::<usize>::default();
        let count = Arc::new(AtomicUsize::new(0));
        let join = || {
            let count = count.clone();
            flights.join("key".into(), |_| {
                async move {
                    tokio::task::yield_now().await;
                    Ok(count.fetch_add(1, Ordering::SeqCst))
                }
                .boxed()
            })
        };
        let (a, b) = (join(), join());
        assert_eq!((a.outcome.await.unwrap(), b.outcome.await.unwrap()), (0, 0));
        assert_eq!(join().outcome.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn work_outlives_the_one_who_started_it() {
        let flights = Flights::<u8>::default();
        let start = || flights.join("key".into(), |_| async { Ok(7) }.boxed());
        let first = start();
        let second = start();
        drop(first);
        assert_eq!(second.outcome.await.unwrap(), 7);
    }
}
