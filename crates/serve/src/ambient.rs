use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

type Source<T> = Arc<dyn Fn() -> T + Send + Sync>;

/// The time of day and chance, as a parameter: a service that takes both from here can be run again exactly as before.
/// Clones share their sources.
#[derive(Clone)]
pub struct Ambient {
    now: Source<Timestamp>,
    chance: Source<u64>,
}

impl Default for Ambient {
    /// The system's clock and the thread's generator of random numbers.
    fn default() -> Self {
        Ambient::new(Timestamp::now, rand::random)
    }
}

impl Ambient {
    /// With these sources; `chance` gives evenly distributed numbers.
    pub fn new(
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
        chance: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Ambient { now: Arc::new(now), chance: Arc::new(chance) }
    }

    /// The time of day.
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Any number.
    pub fn number(&self) -> u64 {
        (self.chance)()
    }

    /// A number below `end`; zero when that is zero. Good for small ends: some numbers come more often by one part in
    /// 2^64 / `end`.
    pub fn below(&self, end: usize) -> usize {
        let end = (end as u64).max(1);
        usize::try_from(self.number() % end).unwrap_or_default()
    }

    /// A number of [0, 1).
    pub fn fraction(&self) -> f64 {
        /// Distinct values of a float in that range.
        const STEPS: u64 = 1 << 53;
        (self.number() % STEPS) as f64 / STEPS as f64
    }

    /// A random UUID (version 4).
    pub fn uuid(&self) -> uuid::Uuid {
        let bits = u128::from(self.number()) << 64 | u128::from(self.number());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }
}

impl fmt::Debug for Ambient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ambient")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_sources_give_the_same() {
        let fixed = |number| Ambient::new(|| Timestamp::UNIX_EPOCH, move || number);
        assert_eq!(fixed(7).uuid(), fixed(7).uuid());
        assert_eq!(fixed(7).uuid().get_version_num(), 4);
        assert_eq!((fixed(7).below(5), fixed(7).below(0)), (2, 0));
        assert!((0.0..1.0).contains(&fixed(u64::MAX).fraction()));
        assert_eq!(fixed(7).now(), Timestamp::UNIX_EPOCH);
        assert_ne!(Ambient::default().uuid(), Ambient::default().uuid());
    }
}
