//! Writes that wait a little, because a better one may follow at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::key::Key;

/// When the write about each object was first put off. Lost with the process: it then waits once more.
#[derive(Default)]
pub(crate) struct Deferrals(Mutex<HashMap<Key, Instant>>);

impl Deferrals {
    /// For how long the write may still wait; nothing when it is due.
    pub(crate) fn left(&self, key: &Key, longest: Duration, now: Instant) -> Option<Duration> {
        if longest.is_zero() {
            return None;
        }
        let since = *self.known().entry(key.clone()).or_insert(now);
        longest.checked_sub(now.saturating_duration_since(since)).filter(|left| !left.is_zero())
    }

    /// How many writes are put off.
    pub(crate) fn count(&self) -> usize {
        self.known().len()
    }

    /// Nothing waits any more.
    pub(crate) fn forget(&self, key: &Key) {
        self.known().remove(key);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_counts_from_the_first_time() {
        let (deferrals, key, start) = (Deferrals::default(), Key::new("d", "s"), Instant::now());
        let (window, step) = (Duration::from_millis(100), Duration::from_millis(60));
        assert_eq!(deferrals.left(&key, window, start), Some(window));
        assert_eq!(deferrals.left(&key, window, start + step), Some(Duration::from_millis(40)));
        assert_eq!(deferrals.left(&key, window, start + step + step), None);
        assert_eq!(deferrals.left(&key, window, start + step + step), None, "due until it was done");
        assert_eq!(deferrals.count(), 1);
        deferrals.forget(&key);
        assert_eq!(deferrals.left(&key, window, start + step + step), Some(window));
        assert_eq!(deferrals.left(&Key::new("d", "other"), Duration::ZERO, start), None);
    }
}
