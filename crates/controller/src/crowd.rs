//! Whether many Sandboxes start at once. What tells nobody anything new then waits longer: each write makes all of them later.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// So many that start at a time are no crowd yet.
const FEW: usize = 16;

/// Remembers when there was a crowd last: those who make many Sandboxes do it in waves.
#[derive(Debug, Default)]
pub(crate) struct Crowd(Mutex<Option<Instant>>);

impl Crowd {
    /// Whether there is one, with so many Sandboxes that start now, or was one less than `lasts` ago.
    pub(crate) fn is_on(&self, starting: usize, lasts: Duration, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if starting > FEW {
            *last = Some(now);
        }
        last.is_some_and(|last| now.saturating_duration_since(last) < lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_a_while_after_there_were_many() {
        let (crowd, start, lasts) = (Crowd::default(), Instant::now(), Duration::from_secs(2));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(!crowd.is_on(FEW, lasts, start));
        assert!(crowd.is_on(FEW + 1, lasts, after(1)));
        assert!(crowd.is_on(0, lasts, after(2)));
        assert!(!crowd.is_on(FEW, lasts, after(3)));
        assert!(!crowd.is_on(FEW + 1, Duration::ZERO, after(4)), "nothing waits");
    }
}
