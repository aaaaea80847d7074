//! Bursts during which less urgent writes are deferred, because each write delays all others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Number of concurrent adoptions that are a burst. The writes about a single claim need not wait for that claim.
const CLAIMS: usize = 2;
/// Maximum number of Sandboxes that start at a time without being a burst.
const STARTS: usize = 16;

/// Counts the claims that are about to adopt a pooled Sandbox.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClaimBurst(Arc<watch::Sender<usize>>);

/// Claim that is counted until this guard is dropped.
#[derive(Debug)]
pub(crate) struct Adoption(ClaimBurst);

impl ClaimBurst {
    pub(crate) fn begin(&self) -> Adoption {
        self.0.send_modify(|claims| *claims += 1);
        Adoption(self.clone())
    }

    pub(crate) fn is_on(&self) -> bool {
        *self.0.borrow() >= CLAIMS
    }

    /// Waits for the end of the burst.
    pub(crate) async fn over(&self) {
        // The sender is here, so there is no error.
        let _ = self.0.subscribe().wait_for(|claims| *claims < CLAIMS).await;
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        self.0.0.send_modify(|claims| *claims -= 1);
    }
}

/// Remembers the last burst of starting Sandboxes: clients that create many do so in waves.
#[derive(Debug, Default)]
pub(crate) struct StartBurst(Mutex<Option<Instant>>);

impl StartBurst {
    /// Returns whether there is a burst, with that many Sandboxes starting now, or was one less than `lasts` ago.
    pub(crate) fn is_on(&self, starting: usize, lasts: Duration, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if starting > STARTS {
            *last = Some(now);
        }
        last.is_some_and(|last| now.saturating_duration_since(last) < lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn several_adoptions_are_a_burst_of_claims() {
        let burst = ClaimBurst::default();
        let one = burst.begin();
        assert!(!burst.is_on(), "a single claim");
        burst.over().await;
        let (second, third) = (burst.begin(), burst.begin());
        drop(one);
        assert!(burst.is_on());
        let waiting = burst.over();
        drop(second);
        waiting.await;
        assert!(!burst.is_on());
        drop(third);
    }

    #[test]
    fn burst_of_starts_lasts_after_the_last_wave() {
        let (burst, start, lasts) = (StartBurst::default(), Instant::now(), Duration::from_secs(2));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(!burst.is_on(STARTS, lasts, start));
        assert!(burst.is_on(STARTS + 1, lasts, after(1)));
        assert!(burst.is_on(0, lasts, after(2)));
        assert!(!burst.is_on(STARTS, lasts, after(3)));
        assert!(!burst.is_on(STARTS + 1, Duration::ZERO, after(4)), "without a delay there is no burst");
    }
}
