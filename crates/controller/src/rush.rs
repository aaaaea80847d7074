//! Whether claims are being met at the moment. The refill of pools then waits a little, so that a server with much to do does
//! first what somebody waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Pause between two looks whether the rush is over.
pub(crate) const RECHECK: Duration = Duration::from_millis(20);

/// Counts the claims that are about to get a Sandbox of a pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rush(Arc<AtomicUsize>);

/// One that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Meeting(Arc<AtomicUsize>);

impl Rush {
    pub(crate) fn meet(&self) -> Meeting {
        self.0.fetch_add(1, Ordering::Relaxed);
        Meeting(self.0.clone())
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
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

    #[test]
    fn it_is_on_while_one_claim_is_being_met() {
        let rush = Rush::default();
        let (one, other) = (rush.meet(), rush.meet());
        drop(one);
        assert!(rush.is_on());
        drop(other);
        assert!(!rush.is_on());
    }
}
