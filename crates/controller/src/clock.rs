//! Waiting for a time of day with timers that know only durations.

use std::time::Duration;

use jiff::Timestamp;

/// Longest wait before the clock is read again: somebody may set it, and timers stand still while a machine sleeps.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Shortest wait, so that a look that comes a little early does not spin.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// How long to wait for `end`, or for the next look at the clock on the way there.
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
