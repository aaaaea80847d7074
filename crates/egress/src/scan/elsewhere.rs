//! Scans on other threads than those that serve connections.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

/// Maximum scans of a sandbox that have a thread at once. The threads are those of all sandboxes, and a scan can wait for
/// another one of its conversation.
const SCANS: usize = 8;

/// Threads of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Places {
        Places(Arc::new(Semaphore::new(SCANS)))
    }
}

impl Places {
    /// Runs a scan on another thread, when there is a place.
    pub(super) fn run<T: Send + 'static>(&self, scan: impl FnOnce() -> T + Send + 'static) -> Elsewhere<T> {
        let places = self.0.clone();
        Elsewhere(tokio::spawn(async move {
            let place = places.acquire_owned().await;
            let scan = move || {
                // A scan that is given up ends nevertheless, and keeps its place until then.
                let _place = place;
                scan()
            };
            spawn_blocking(scan).await
        }))
    }
}

/// Result of a scan on another thread. One that is given up before it has a thread is not run.
pub(super) struct Elsewhere<T>(JoinHandle<Result<T, JoinError>>);

impl<T> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for Elsewhere<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.0).poll(context)).and_then(|scanned| scanned))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Scans that waited for another one held as many threads as there were requests, also of requests that had ended.
    #[tokio::test]
    async fn scans_of_a_sandbox_have_some_threads_and_those_that_are_given_up_none() {
        let (places, begun) = (Places::default(), Arc::new(AtomicUsize::new(0)));
        let may_end = Arc::new(AtomicBool::new(false));
        let scan = || {
            let (begun, may_end) = (begun.clone(), may_end.clone());
            places.run(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                while !may_end.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        };
        let mut scans: Vec<_> = (0..SCANS * 3).map(|_| scan()).collect();
        while begun.load(Ordering::Relaxed) < SCANS {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        // The last third is given up.
        scans.truncate(SCANS * 2);
        may_end.store(true, Ordering::Relaxed);
        for scan in scans {
            scan.await.unwrap();
        }
        assert_eq!(begun.load(Ordering::Relaxed), SCANS * 2);
    }
}
