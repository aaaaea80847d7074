use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;

/// Until when this process leads. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Term(Arc<AtomicU64>);

impl Term {
    /// Returns true if this process leads at this moment.
    pub fn leads(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long it does so without another renewal; zero when it does not lead.
    pub fn remaining(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Acquire)).saturating_sub(clock::now())
    }

    /// Leads until then, counted as [`clock::now`] counts.
    pub(crate) fn lasts_until(&self, end: Duration) {
        self.0.store(u64::try_from(end.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_ends_by_time_and_by_word() {
        let term = Term::default();
        assert!(!term.leads(), "no process leads before an election");
        term.lasts_until(clock::now() + Duration::from_secs(60));
        assert!(term.clone().leads());
        term.end();
        assert!(!term.leads());
        term.lasts_until(clock::now().saturating_sub(Duration::from_nanos(1)));
        assert!(!term.leads());
    }
}
