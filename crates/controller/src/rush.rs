//! Whether several claims are being met at the moment. What nobody waits for is then put off a little: the refill of pools,
//! events, and what is noted on claims and Pods that are bound already.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Pause between two looks whether the rush is over, of those who cannot wait for its end.
pub(crate) const RECHECK: Duration = Duration::from_millis(100);

/// So many claims at a time are a rush. One alone is none: what is to be noted about it need not wait for itself.
const SEVERAL: usize = 2;

/// Counts the claims that are about to get a Sandbox of a pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rush(Arc<watch::Sender<usize>>);

/// One that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Meeting(Rush);

impl Rush {
    pub(crate) fn meet(&self) -> Meeting {
        self.0.send_modify(|claims| *claims += 1);
        Meeting(self.clone())
    }

    pub(crate) fn is_on(&self) -> bool {
        *self.0.borrow() >= SEVERAL
    }

    /// Until it is over.
    pub(crate) async fn over(&self) {
        // The sender is here, so there is no error.
        let _ = self.0.subscribe().wait_for(|claims| *claims < SEVERAL).await;
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.0.0.send_modify(|claims| *claims -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_on_while_several_claims_are_being_met() {
        let rush = Rush::default();
        let one = rush.meet();
        assert!(!rush.is_on(), "one alone");
        rush.over().await;
        let (second, third) = (rush.meet(), rush.meet());
        drop(one);
        assert!(rush.is_on());
        let waiting = rush.over();
        drop(second);
        waiting.await;
        assert!(!rush.is_on());
        drop(third);
    }
}
