//! Chance that is the same for the same seed. Each part of a simulation has its own, so that one part's turns do not
//! change another's.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[derive(Clone)]
pub(crate) struct Dice(Arc<Mutex<StdRng>>);

impl Dice {
    pub(crate) fn new(seed: u64, part: &str) -> Self {
        let seed = part.bytes().fold(seed ^ FNV_START, fnv);
        Dice(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.lock().unwrap().random()
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        self.0.lock().unwrap().random_range(0..end)
    }

    /// True so many times in a thousand.
    pub(crate) fn chance(&self, in_a_thousand: u64) -> bool {
        self.below(1000) < in_a_thousand
    }

    pub(crate) fn pick<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { all.get(self.below(all.len() as u64) as usize) }
    }

    pub(crate) fn ms(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.0.lock().unwrap().random_range(range))
    }
}

/// Start of [`fnv`].
pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// One step of the hash FNV-1a.
pub(crate) fn fnv(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}
