//! Whether claims are being met at the moment. What no claim waits for then waits a little, so that a server with much to do
//! does first what somebody waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Pause between two looks whether the rush is over.
pub(crate) const RECHECK: Duration = Duration::from_millis(20);

/// Counts the claims that are about to get a Sandbox of a pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rush {
    met: Arc<AtomicUsize>,
    waiting: Arc<AtomicUsize>,
}

/// One that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Meeting(Arc<AtomicUsize>);

impl Rush {
    pub(crate) fn meet(&self) -> Meeting {
        Meeting::new(&self.met)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.met.load(Ordering::Relaxed) > 0
    }

    /// Waits until it is over, at most so long, and not at all when so many wait already: they keep workers from claims.
    pub(crate) async fn pass(&self, longest: Duration, most: usize) {
        if self.waiting.load(Ordering::Relaxed) >= most {
            return;
        }
        let _waits = Meeting::new(&self.waiting);
        let over = async {
            while self.is_on() {
                tokio::time::sleep(RECHECK).await;
            }
        };
        // Then it goes on all the same.
        let _ = tokio::time::timeout(longest, over).await;
    }
}

impl Meeting {
    fn new(count: &Arc<AtomicUsize>) -> Meeting {
        count.fetch_add(1, Ordering::Relaxed);
        Meeting(count.clone())
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_on_while_one_claim_is_being_met_and_nobody_waits_longer_than_the_limit() {
        let rush = Rush::default();
        let (one, other) = (rush.meet(), rush.meet());
        drop(one);
        assert!(rush.is_on());
        let began = tokio::time::Instant::now();
        rush.pass(Duration::from_secs(1), 0).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "too many wait");
        rush.pass(Duration::from_secs(1), 1).await;
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        drop(other);
        rush.pass(Duration::from_secs(1), 1).await;
        assert_eq!(began.elapsed(), Duration::from_secs(1), "nothing to wait for");
    }
}
