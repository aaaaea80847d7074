//! How many Sandboxes a pool may create now: what is kept of the pool from one reconcile to the next. It is in memory
//! alone; a process that starts anew may create the next Sandbox a little earlier.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jiff::SignedDuration;
use tokio::time::Instant;

use crate::config::Config;

/// Longest wait for the next member; longer ones are cut, since nobody waits for them.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Shortest wait for it: the resolution of timers. A token of which a billionth is missing is not there after no time.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Members after the last look.
    members: usize,
    /// No member is made before.
    held_until: Option<Instant>,
    bucket: Option<Bucket>,
    /// Names of members whose creation the server has not answered: they may be there.
    pub(crate) unanswered: Vec<String>,
    /// When this process made each member that was not Ready at the last look, by name.
    made: HashMap<String, Instant>,
    /// Whether an event has called the pool not progressing.
    pub(crate) stuck: bool,
}

/// How many members may be made now, and when to ask for the rest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) create: usize,
    pub(crate) again: Option<Duration>,
}

impl Memory {
    /// `members` are there and `wanted` more are to be made.
    pub(crate) fn grant(&mut self, wanted: usize, members: usize, config: &Config, now: Instant) -> Grant {
        if members < self.members && !config.replenish_delay.is_zero() {
            self.held_until = now.checked_add(config.replenish_delay.min(LONGEST_WAIT));
        }
        self.members = members;
        if wanted == 0 {
            return Grant { create: 0, again: None };
        }
        if let Some(until) = self.held_until.filter(|until| *until > now) {
            return Grant { create: 0, again: Some(until - now) };
        }
        self.held_until = None;
        if config.refill_rate <= 0.0 {
            return Grant { create: wanted, again: None };
        }
        let bucket = self.bucket.get_or_insert_with(|| Bucket::full(config.refill_rate, now));
        let create = bucket.take(wanted, config.refill_rate, now);
        let again = (create < wanted).then(|| bucket.next(config.refill_rate));
        Grant { create, again }
    }

    /// A member of that name is asked for. Whether it was before, and that was not answered.
    pub(crate) fn ask(&mut self, name: &str) -> bool {
        let again = self.unanswered.iter().any(|known| known == name);
        if !again {
            self.unanswered.push(name.to_owned());
        }
        again
    }

    /// A member of that name was made just now.
    pub(crate) fn made(&mut self, name: &str, now: Instant) {
        self.made.insert(name.to_owned(), now);
    }

    /// How long ago each of those members was made that were made here. Others are forgotten.
    pub(crate) fn ages(
        &mut self,
        waiting: &BTreeSet<String>,
        now: Instant,
    ) -> HashMap<String, SignedDuration> {
        self.made.retain(|name, _| waiting.contains(name));
        let age = |made: &Instant| SignedDuration::try_from(now.saturating_duration_since(*made));
        let ages =
            self.made.iter().map(|(name, made)| (name.clone(), age(made).unwrap_or(SignedDuration::MAX)));
        ages.collect()
    }

    /// It is known what became of the member of that name.
    pub(crate) fn settle(&mut self, name: &str) {
        self.unanswered.retain(|known| known != name);
    }

    /// The look is over, with that many members.
    pub(crate) fn leave(&mut self, members: usize) {
        self.members = members;
    }
}

/// A token bucket that holds what one second brings, and one token at least.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: f64, now: Instant) -> Self {
        Bucket { tokens: rate.max(1.0), at: now }
    }

    /// Takes whole tokens, as many as there are, at most `wanted`.
    fn take(&mut self, wanted: usize, rate: f64, now: Instant) -> usize {
        let brought = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        self.tokens = (self.tokens + brought).min(rate.max(1.0));
        self.at = now;
        // A float becomes the nearest integer that there is, also where it is larger than all of them.
        let taken = wanted.min(self.tokens as usize);
        self.tokens -= taken as f64;
        taken
    }

    /// Time until the next whole token.
    fn next(&self, rate: f64) -> Duration {
        let missing = (1.0 - self.tokens.fract()) / rate;
        Duration::try_from_secs_f64(missing).unwrap_or(LONGEST_WAIT).clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(delay: u64, rate: f64) -> Config {
        Config { replenish_delay: Duration::from_secs(delay), refill_rate: rate, ..Config::default() }
    }

    fn grant(create: usize, again_ms: u64) -> Grant {
        Grant { create, again: (again_ms > 0).then(|| Duration::from_millis(again_ms)) }
    }

    #[test]
    fn without_limits_all_at_once() {
        let mut memory = Memory::default();
        assert_eq!(memory.grant(7, 0, &config(0, 0.0), Instant::now()), grant(7, 0));
    }

    #[test]
    fn a_loss_holds_the_refill_and_another_one_holds_it_anew() {
        let (mut memory, config, start) = (Memory::default(), config(10, 0.0), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(memory.grant(3, 0, &config, at(0)), grant(3, 0), "a new pool has lost nothing");
        memory.leave(3);
        assert_eq!(memory.grant(1, 2, &config, at(1)), grant(0, 10_000));
        assert_eq!(memory.grant(1, 2, &config, at(4)), grant(0, 7_000), "nothing lost since");
        assert_eq!(memory.grant(2, 1, &config, at(5)), grant(0, 10_000));
        assert_eq!(memory.grant(2, 1, &config, at(14)), grant(0, 1_000));
        assert_eq!(memory.grant(2, 1, &config, at(15)), grant(2, 0));
    }

    #[test]
    fn the_rate_is_kept_in_whole_members() {
        let (mut memory, config, start) = (Memory::default(), config(0, 2.0), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(memory.grant(5, 0, &config, at(0)), grant(2, 500), "starts full");
        assert_eq!(memory.grant(3, 2, &config, at(250)), grant(0, 250));
        assert_eq!(memory.grant(3, 2, &config, at(500)), grant(1, 500));
        assert_eq!(memory.grant(2, 3, &config, at(60_000)), grant(2, 0), "never more than a second's worth");
        assert_eq!(memory.grant(2, 5, &config, at(60_000)), grant(0, 500));
    }

    #[test]
    fn a_token_that_is_almost_there_is_waited_for() {
        let now = Instant::now();
        let mut bucket = Bucket { tokens: 1.0 - f64::EPSILON, at: now };
        assert_eq!(bucket.take(1, 3.0, now), 0);
        assert_eq!(bucket.next(3.0), SHORTEST_WAIT);
        assert_eq!(bucket.take(1, 3.0, now + SHORTEST_WAIT), 1);
    }

    #[test]
    fn the_age_of_what_was_made_here_needs_no_clock() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        memory.made("a", now);
        memory.made("b", now + Duration::from_secs(2));
        let waiting = BTreeSet::from(["a".to_owned(), "of-another-process".to_owned()]);
        let ages = memory.ages(&waiting, now + Duration::from_secs(3));
        assert_eq!(ages, HashMap::from([("a".to_owned(), SignedDuration::from_secs(3))]));
        assert!(memory.ages(&BTreeSet::new(), now).is_empty() && memory.made.is_empty());
    }

    #[test]
    fn rates_of_all_sizes() {
        let now = Instant::now();
        for (rate, first) in [(f64::MIN_POSITIVE, 1), (1e-9, 1), (0.5, 1), (1e300, 1000), (f64::MAX, 1000)] {
            let mut memory = Memory::default();
            let granted = memory.grant(1000, 0, &config(0, rate), now);
            assert_eq!(granted.create, first, "{rate}");
            assert!(granted.again.is_none_or(|again| again <= LONGEST_WAIT));
        }
        let mut memory = Memory::default();
        memory.leave(1);
        let forever = Config { replenish_delay: Duration::MAX, ..Config::default() };
        assert_eq!(memory.grant(1, 0, &forever, now).create, 0);
    }
}
