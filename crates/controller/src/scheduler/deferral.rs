//! Times since which the writes of one sort are deferred.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::key::Key;

/// Time at which the write about each object was first deferred.
#[derive(Default)]
pub(crate) struct Deferrals(Mutex<HashMap<Key, Instant>>);

impl Deferrals {
    /// Returns the time for which the write may still be deferred, or `None` when it is due.
    pub(crate) fn left(&self, key: &Key, longest: Duration, now: Instant) -> Option<Duration> {
        if longest.is_zero() {
            return None;
        }
        let since = *self.since().entry(key.clone()).or_insert(now);
        longest.checked_sub(now.saturating_duration_since(since)).filter(|left| !left.is_zero())
    }

    /// Returns the number of deferred writes.
    pub(crate) fn count(&self) -> usize {
        self.since().len()
    }

    /// Ends the deferral of the write about the object.
    pub(crate) fn clear(&self, key: &Key) {
        self.since().remove(key);
    }

    fn since(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferral_counts_from_the_first_time() {
        let (deferrals, key, start) = (Deferrals::default(), Key::new("d", "s"), Instant::now());
        let (window, step) = (Duration::from_millis(100), Duration::from_millis(60));
        assert_eq!(deferrals.left(&key, window, start), Some(window));
        assert_eq!(deferrals.left(&key, window, start + step), Some(Duration::from_millis(40)));
        assert_eq!(deferrals.left(&key, window, start + step + step), None);
        assert_eq!(deferrals.left(&key, window, start + step + step), None, "due until it is cleared");
        assert_eq!(deferrals.count(), 1);
        deferrals.clear(&key);
        assert_eq!(deferrals.left(&key, window, start + step + step), Some(window));
        assert_eq!(deferrals.left(&Key::new("d", "other"), Duration::ZERO, start), None);
    }
}
