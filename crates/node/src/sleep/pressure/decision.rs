//! Which Pod is brought down next while memory is short: a pure function of Pods, figures and time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use hutch_api::sleep::IdleTimes;

use crate::config::Handler;

/// Idle time after which a Pod can be brought down, if that of its annotation is not shorter.
pub(super) const LEAST_IDLE: Duration = Duration::from_secs(10);
/// Time in which [`MOST_BEGUN`] Pods are brought down, and a Pod once.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// Maximum Pods that are brought down in that time: each costs writes to a disk.
pub(super) const MOST_BEGUN: usize = 10;

/// Kind of sleep that frees memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    /// Frozen, and its memory written to swap.
    PagedOut,
    /// Suspended with its memory.
    Suspended,
}

/// Pod that can be brought down, because its annotations allow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) uid: String,
    /// Time since its last use; `None` while it is in use.
    pub(super) idle: Option<Duration>,
    pub(super) tier: Tier,
    /// Idle time of the annotation after which it would begin to sleep by itself.
    pub(super) after: Duration,
}

impl Candidate {
    /// Idle time after which it can be brought down.
    pub(super) fn least_idle(&self) -> Duration {
        LEAST_IDLE.min(self.after)
    }
}

/// Returns the kind of sleep that the annotations of a Pod allow and that frees its memory, with the idle time before the Pod
/// begins to sleep by itself.
pub(super) fn tier(times: &IdleTimes, handler: Handler, has_sandbox: bool) -> Option<(Tier, Duration)> {
    match handler {
        Handler::Native => times.page_out_after.and(times.freeze_after).map(|after| (Tier::PagedOut, after)),
        // Whether a suspend keeps its memory is in the Sandbox.
        Handler::Gvisor => times.suspend_after.filter(|_| has_sandbox).map(|after| (Tier::Suspended, after)),
    }
}

/// Pods that were brought down lately.
#[derive(Debug, Default)]
pub(super) struct Decision {
    begun: VecDeque<Instant>,
    tried: BTreeMap<String, Attempt>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    at: Instant,
    /// It was brought down, as far as that was possible.
    is_down: bool,
}

impl Decision {
    /// Returns the Pod to bring down now: the one that is idle the longest. Pods can be written to swap only if it has room.
    pub(super) fn next<'a>(
        &mut self,
        now: Instant,
        (is_short, swap_has_room): (bool, bool),
        pods: &'a [Candidate],
    ) -> Option<&'a Candidate> {
        let since = |at: Instant| now.saturating_duration_since(at);
        let was_used = |uid: &str, at| {
            let same = pods.iter().find(|pod| pod.uid == uid);
            same.is_none_or(|pod| pod.idle.is_none_or(|idle| idle < since(at)))
        };
        self.begun.retain(|at| since(*at) < WINDOW);
        self.tried
            .retain(|uid, Attempt { at, is_down }| since(*at) < WINDOW || (*is_down && !was_used(uid, *at)));
        if !is_short || self.begun.len() >= MOST_BEGUN {
            return None;
        }
        let may = pods.iter().filter(|pod| {
            pod.idle.is_some_and(|idle| idle >= pod.least_idle())
                && (pod.tier != Tier::PagedOut || swap_has_room)
                && !self.tried.contains_key(&pod.uid)
        });
        may.max_by_key(|pod| pod.idle)
    }

    /// Records that a Pod was tried. It is not tried again for a while, however that ended.
    pub(super) fn tried(&mut self, uid: &str, now: Instant) {
        self.tried.insert(uid.to_owned(), Attempt { at: now, is_down: false });
    }

    /// Records that a Pod was brought down. It is not tried again before it was used.
    pub(super) fn is_down(&mut self, uid: &str, now: Instant) {
        self.tried.insert(uid.to_owned(), Attempt { at: now, is_down: true });
        self.begun.push_back(now);
    }
}

#[cfg(test)]
mod tests;
