//! Number of Sandboxes that a pool may create now.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum wait for the next create; longer ones are cut to this.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Minimum wait for the next create: the resolution of timers. A token of which a billionth is missing is not there
/// after no time.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Configured limits on the creates of each pool.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) replenish_delay: Duration,
    pub(crate) refill_rate: f64,
}

/// State of one pool between reconciles.
#[derive(Debug, Default)]
pub(crate) struct Refill {
    /// Number of pooled Sandboxes after the last reconcile.
    members: usize,
    /// Time before which no Sandbox is created.
    held_until: Option<Instant>,
    bucket: Option<Bucket>,
}

/// Number of creates that are allowed now, and when to request the rest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) create: usize,
    pub(crate) again: Option<Duration>,
}

impl Refill {
    /// Grants some of the `wanted` creates to a pool that has `members` Sandboxes.
    pub(crate) fn grant(&mut self, wanted: usize, members: usize, pace: &Pace, now: Instant) -> Grant {
        if members < self.members && !pace.replenish_delay.is_zero() {
            self.held_until = now.checked_add(pace.replenish_delay.min(LONGEST_WAIT));
        }
        self.members = members;
        if wanted == 0 {
            return Grant { create: 0, again: None };
        }
        if let Some(until) = self.held_until.filter(|until| *until > now) {
            return Grant { create: 0, again: Some(until - now) };
        }
        self.held_until = None;
        if pace.refill_rate <= 0.0 {
            return Grant { create: wanted, again: None };
        }
        let bucket = self.bucket.get_or_insert_with(|| Bucket::full(pace.refill_rate, now));
        let create = bucket.take(wanted, pace.refill_rate, now);
        let again = (create < wanted).then(|| bucket.next(pace.refill_rate));
        Grant { create, again }
    }

    /// Records the number of pooled Sandboxes after a reconcile.
    pub(crate) fn refilled(&mut self, members: usize) {
        self.members = members;
    }
}

/// Token bucket that holds the tokens of one second, and at least one.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: f64, now: Instant) -> Self {
        Bucket { tokens: rate.max(1.0), at: now }
    }

    /// Takes at most `wanted` whole tokens.
    fn take(&mut self, wanted: usize, rate: f64, now: Instant) -> usize {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        self.tokens = (self.tokens + earned).min(rate.max(1.0));
        self.at = now;
        // The cast saturates, so a float above every integer becomes the largest one.
        let taken = wanted.min(self.tokens as usize);
        self.tokens -= taken as f64;
        taken
    }

    /// Returns the time until the next whole token.
    fn next(&self, rate: f64) -> Duration {
        let missing = (1.0 - self.tokens.fract()) / rate;
        Duration::try_from_secs_f64(missing).unwrap_or(LONGEST_WAIT).clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(delay: u64, rate: f64) -> Pace {
        Pace { replenish_delay: Duration::from_secs(delay), refill_rate: rate }
    }

    fn grant(create: usize, again_ms: u64) -> Grant {
        Grant { create, again: (again_ms > 0).then(|| Duration::from_millis(again_ms)) }
    }

    #[test]
    fn unlimited_pool_creates_all_at_once() {
        let mut refill = Refill::default();
        assert_eq!(refill.grant(7, 0, &pace(0, 0.0), Instant::now()), grant(7, 0));
    }

    #[test]
    fn each_loss_holds_the_refill() {
        let (mut refill, pace, start) = (Refill::default(), pace(10, 0.0), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(refill.grant(3, 0, &pace, at(0)), grant(3, 0), "a new pool has lost nothing");
        refill.refilled(3);
        assert_eq!(refill.grant(1, 2, &pace, at(1)), grant(0, 10_000));
        assert_eq!(refill.grant(1, 2, &pace, at(4)), grant(0, 7_000), "nothing lost since");
        assert_eq!(refill.grant(2, 1, &pace, at(5)), grant(0, 10_000));
        assert_eq!(refill.grant(2, 1, &pace, at(14)), grant(0, 1_000));
        assert_eq!(refill.grant(2, 1, &pace, at(15)), grant(2, 0));
    }

    #[test]
    fn rate_grants_whole_sandboxes() {
        let (mut refill, pace, start) = (Refill::default(), pace(0, 2.0), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(refill.grant(5, 0, &pace, at(0)), grant(2, 500), "starts full");
        assert_eq!(refill.grant(3, 2, &pace, at(250)), grant(0, 250));
        assert_eq!(refill.grant(3, 2, &pace, at(500)), grant(1, 500));
        assert_eq!(refill.grant(2, 3, &pace, at(60_000)), grant(2, 0), "never more than a second's worth");
        assert_eq!(refill.grant(2, 5, &pace, at(60_000)), grant(0, 500));
    }

    #[test]
    fn incomplete_token_is_not_granted() {
        let now = Instant::now();
        let mut bucket = Bucket { tokens: 1.0 - f64::EPSILON, at: now };
        assert_eq!(bucket.take(1, 3.0, now), 0);
        assert_eq!(bucket.next(3.0), SHORTEST_WAIT);
        assert_eq!(bucket.take(1, 3.0, now + SHORTEST_WAIT), 1);
    }

    #[test]
    fn extreme_rates_stay_bounded() {
        let now = Instant::now();
        for (rate, first) in [(f64::MIN_POSITIVE, 1), (1e-9, 1), (0.5, 1), (1e300, 1000), (f64::MAX, 1000)] {
            let mut refill = Refill::default();
            let granted = refill.grant(1000, 0, &pace(0, rate), now);
            assert_eq!(granted.create, first, "{rate}");
            assert!(granted.again.is_none_or(|again| again <= LONGEST_WAIT));
        }
        let mut refill = Refill::default();
        refill.refilled(1);
        let forever = Pace { replenish_delay: Duration::MAX, refill_rate: 0.0 };
        assert_eq!(refill.grant(1, 0, &forever, now).create, 0);
    }
}
