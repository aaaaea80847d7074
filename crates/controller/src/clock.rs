//! Waits for a time of day with timers that count durations.

use std::time::Duration;

use jiff::Timestamp;

/// Maximum wait before the clock is read again: it may be set, and timers do not run while a machine is suspended.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Minimum wait, so that a reconcile that comes a little early does not spin.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Returns how long to wait for `end`, or until the clock is read again before it.
pub(crate) fn wait_until(end: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    left.clamp(SHORTEST_WAIT, LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded_on_both_sides() {
        let now = Timestamp::UNIX_EPOCH;
        let after = |seconds| Timestamp::from_second(seconds).unwrap();
        assert_eq!(wait_until(after(5), now), Duration::from_secs(5));
        assert_eq!(wait_until(after(3600), now), LONGEST_WAIT);
        assert_eq!(wait_until(after(-3600), now), SHORTEST_WAIT);
        assert_eq!(wait_until(Timestamp::MAX, Timestamp::MIN), LONGEST_WAIT);
        assert_eq!(wait_until(Timestamp::MIN, Timestamp::MAX), SHORTEST_WAIT);
    }
}
