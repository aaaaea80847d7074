//! Processes that were killed because the memory of their container ran out.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of processes of a container that were killed because memory ran out, as far as reported.
#[derive(Debug, Default)]
pub(crate) struct Reported(AtomicU64);

impl Reported {
    /// Takes the present number. Returns true if it has grown.
    pub(crate) fn grows_to(&self, kills: u64) -> bool {
        self.0.fetch_max(kills, Ordering::Relaxed) < kills
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_is_reported_once() {
        let reported = Reported::default();
        assert!(!reported.grows_to(0));
        assert!(reported.grows_to(2));
        assert!(!reported.grows_to(2));
        assert!(reported.grows_to(3));
    }
}
