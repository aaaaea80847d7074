//! Write scheduler: decides when the controllers send a write.
//!
//! A write that a client waits for is sent at once, and never comes here. Every other write is deferred while more
//! urgent work is under way, so that writes about one object coalesce into one request:
//!
//! | Write | Deferred | At most |
//! |---|---|---|
//! | [`Write::SandboxProgress`] | always | `progress_delay`, 4 times that in a burst of starts |
//! | [`Write::PodName`] | in a burst of starts | 4 times `progress_delay` |
//! | [`Write::PodMetadata`] | always, longer in a burst of claims | `write_behind` (1 s), then `give_way` |
//! | [`Write::ClaimAnnotations`] | in a burst of claims | `give_way` |
//! | [`Write::PoolRefill`] | in a burst of claims | `give_way` |
//! | events | in a burst of claims | until half of their queue is full |
//! | creates of a pool | after a loss; beyond a rate | `replenish_delay`; `refill_rate` ([`refill`]) |
//!
//! A reconciler calls [`Scheduler::delay`]. `Some` means: requeue after that time, `None`: send now. It calls
//! [`Scheduler::clear`] when the write was sent or has become unnecessary. All of this is in memory. After a restart
//! a write is deferred once more, and a pool may create its next Sandbox a little earlier.

mod burst;
mod deferral;
mod refill;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use burst::{Adoption, ClaimBurst};
pub(crate) use refill::Grant;

use burst::StartBurst;
use deferral::Deferrals;
use refill::{Pace, Refill};

use crate::config::Config;
use crate::key::Key;

/// Interval at which a write that is deferred by a burst of claims is checked again.
const RECHECK: Duration = Duration::from_millis(100);
/// Maximum of `write_behind`, whatever is configured.
const MAX_WRITE_BEHIND: Duration = Duration::from_secs(1);
/// Factor on `progress_delay` in a burst of starts.
const BURST_FACTOR: u32 = 4;

/// Writes that no client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// Status of a Sandbox that is one step closer to Ready; the next step replaces it.
    SandboxProgress,
    /// Labels and annotations of a Pod that its Sandbox owns already.
    PodMetadata,
    /// Annotation of a Sandbox that its Pod has the Sandbox's own name, which is also the default.
    PodName,
    /// Annotations of a bound claim.
    ClaimAnnotations,
    /// Reconcile of a pool.
    PoolRefill,
}

/// Number of variants of [`Write`].
const WRITES: usize = 5;

/// Decides when writes are sent.
pub(crate) struct Scheduler {
    progress_delay: Duration,
    write_behind: Duration,
    give_way: Duration,
    pace: Pace,
    deferrals: [Deferrals; WRITES],
    claims: ClaimBurst,
    starts: StartBurst,
    refills: Mutex<HashMap<Key, Refill>>,
}

impl Scheduler {
    pub(crate) fn new(config: &Config) -> Self {
        Scheduler {
            progress_delay: config.progress_delay,
            write_behind: config.write_behind.min(MAX_WRITE_BEHIND),
            give_way: config.give_way,
            pace: Pace { replenish_delay: config.replenish_delay, refill_rate: config.refill_rate },
            deferrals: Default::default(),
            claims: ClaimBurst::default(),
            starts: StartBurst::default(),
            refills: Mutex::default(),
        }
    }

    /// Returns the time until the write is reconsidered, or `None` when it is due.
    pub(crate) fn delay(&self, write: Write, key: &Key) -> Option<Duration> {
        let (deferrals, now) = (self.deferrals(write), Instant::now());
        match write {
            Write::SandboxProgress => {
                let burst = self.is_start_burst(now);
                deferrals.left(key, if burst { self.burst_delay() } else { self.progress_delay }, now)
            }
            Write::PodName if self.is_start_burst(now) => deferrals.left(key, self.burst_delay(), now),
            Write::PodName => None,
            Write::PodMetadata => {
                let left = deferrals.left(key, self.write_behind, now);
                left.or_else(|| self.behind_claims(deferrals, key, now))
            }
            Write::ClaimAnnotations | Write::PoolRefill => self.behind_claims(deferrals, key, now),
        }
    }

    /// Ends the deferral: the write was sent, or is not needed any more.
    pub(crate) fn clear(&self, write: Write, key: &Key) {
        self.deferrals(write).clear(key);
    }

    /// Marks a claim as about to adopt a pooled Sandbox, until the returned guard is dropped.
    pub(crate) fn adopting(&self) -> Adoption {
        self.claims.begin()
    }

    /// Returns the burst of claims, during which events are deferred.
    pub(crate) fn claim_burst(&self) -> &ClaimBurst {
        &self.claims
    }

    /// Grants a pool with `members` pooled Sandboxes some of the `wanted` creates.
    pub(crate) fn refill(&self, pool: &Key, wanted: usize, members: usize) -> Grant {
        let mut refills = self.refills();
        refills.entry(pool.clone()).or_default().grant(wanted, members, &self.pace, Instant::now())
    }

    /// Records the number of pooled Sandboxes after a reconcile of the pool.
    pub(crate) fn refilled(&self, pool: &Key, members: usize) {
        self.refills().entry(pool.clone()).or_default().refilled(members);
    }

    /// Forgets a deleted pool.
    pub(crate) fn forget_pool(&self, pool: &Key) {
        self.refills().remove(pool);
        self.clear(Write::PoolRefill, pool);
    }

    fn behind_claims(&self, deferrals: &Deferrals, key: &Key, now: Instant) -> Option<Duration> {
        let left = self.claims.is_on().then(|| deferrals.left(key, self.give_way, now));
        left.flatten().map(|left| left.min(RECHECK))
    }

    /// Returns whether many Sandboxes start at once, or did so a moment ago.
    fn is_start_burst(&self, now: Instant) -> bool {
        let starting = self.deferrals(Write::SandboxProgress).count();
        self.starts.is_on(starting, self.burst_delay(), now)
    }

    fn burst_delay(&self) -> Duration {
        self.progress_delay * BURST_FACTOR
    }

    fn deferrals(&self, write: Write) -> &Deferrals {
        &self.deferrals[write as usize]
    }

    fn refills(&self) -> MutexGuard<'_, HashMap<Key, Refill>> {
        self.refills.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_behind_claims_wait_for_a_burst_of_claims() {
        let scheduler = Scheduler::new(&Config { progress_delay: Duration::ZERO, ..Config::default() });
        let key = Key::new("d", "x");
        let delays = || {
            use Write::{ClaimAnnotations, PodMetadata, PodName, PoolRefill, SandboxProgress};
            [SandboxProgress, PodName, PodMetadata, ClaimAnnotations, PoolRefill]
                .map(|write| scheduler.delay(write, &key))
        };
        assert_eq!(delays(), [None; WRITES]);
        let burst = [scheduler.adopting(), scheduler.adopting()];
        assert_eq!(delays(), [None, None, Some(RECHECK), Some(RECHECK), Some(RECHECK)]);
        drop(burst);
        assert_eq!(delays(), [None; WRITES]);
    }
}
