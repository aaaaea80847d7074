//! Measures Pods and claims that have limits, at most a part of the time.
//!
//! A measurement reads all folders of a volume. Each Pod and each claim is measured every ten seconds, but a measurement that
//! takes long is followed by a wait that is twenty times as long, and only some are made at once. So a volume with a million
//! files costs a twentieth of one processor and does not delay others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::{limits, over_capacity};
use crate::live::Live;
use crate::persistent::ClaimInUse;
use crate::shared::Shared;
use crate::usage::measure;
use crate::volumes;

/// Shortest time between two measurements, as a kubelet has it.
const EVERY: Duration = Duration::from_secs(10);
/// Wait after a measurement, in times of its duration.
const REST: u32 = 20;
/// Maximum measurements at once.
const AT_ONCE: usize = 2;

/// Pod or claim to be measured.
enum Subject {
    Pod(Arc<Live>),
    Claim(ClaimInUse),
}

/// Time of the next measurement of each Pod and claim, by uid.
pub(super) struct Measuring {
    due: HashMap<String, Instant>,
    /// Claims that were written since they were measured.
    written: HashMap<String, ClaimInUse>,
    turns: Arc<Semaphore>,
    report: mpsc::UnboundedSender<Done>,
    reports: mpsc::UnboundedReceiver<Done>,
}

/// A measurement that is done: uid and duration.
type Done = (String, Duration);

impl Default for Measuring {
    fn default() -> Measuring {
        let (report, reports) = mpsc::unbounded_channel();
        Measuring {
            due: HashMap::new(),
            written: HashMap::new(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            report,
            reports,
        }
    }
}

/// A measurement in progress. Dropped, it says how long it took.
struct Turn {
    uid: String,
    began: Instant,
    done: mpsc::UnboundedSender<Done>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The receiver ends only with the node.
        let _ = self.done.send((std::mem::take(&mut self.uid), self.began.elapsed()));
    }
}

/// Wait after a measurement of this duration.
fn rest(took: Duration) -> Duration {
    took.saturating_mul(REST).max(EVERY)
}

impl Measuring {
    /// Begins the measurements that are due, as far as there are turns.
    pub(super) fn begin_due(&mut self, node: &Arc<Shared>) {
        let now = Instant::now();
        while let Ok((uid, took)) = self.reports.try_recv() {
            self.due.insert(uid, now + rest(took));
        }
        let mut pods: Vec<Arc<Live>> = node.all();
        let mut present = HashSet::new();
        // The size of a volume in memory is hard.
        let measured = |claim: &ClaimInUse| claim.writes && !claim.in_memory;
        for claim in pods.iter().flat_map(|live| live.claims()).filter(measured) {
            present.insert(claim.uid.clone());
            self.written.insert(claim.uid.clone(), claim);
        }
        pods.retain(|live| live.pod().spec.as_ref().is_some_and(limits::has_limits));
        let pods = pods.into_iter().map(|live| (live.id.uid.clone(), Subject::Pod(live)));
        let claims = self.written.iter().map(|(uid, claim)| (uid.clone(), Subject::Claim(claim.clone())));
        let mut all: Vec<_> = pods.chain(claims).collect();
        let uids: HashSet<&String> = all.iter().map(|(uid, _)| uid).collect();
        self.due.retain(|uid, _| uids.contains(uid));
        // The one that has waited for the longest time comes first, so that none is left out.
        all.sort_by_key(|(uid, _)| self.due.get(uid).copied().unwrap_or(now));
        for (uid, subject) in all {
            let Some(turn) = self.turn(&uid, now) else { continue };
            // A claim is measured once more after its last writer has gone.
            if !present.contains(&uid) {
                self.written.remove(&uid);
            }
            let node = node.clone();
            tokio::spawn(async move {
                match subject {
                    Subject::Pod(live) => enforce(&node, &live, turn).await,
                    Subject::Claim(claim) => check_claim(&node, &claim, turn).await,
                }
            });
        }
    }

    /// Returns a turn for what is due. What is new is measured after one interval.
    fn turn(&mut self, uid: &str, now: Instant) -> Option<Turn> {
        let due = *self.due.entry(uid.to_owned()).or_insert(now + EVERY);
        if due > now {
            return None;
        }
        let permit = self.turns.clone().try_acquire_owned().ok()?;
        // Until it is done. A turn that is lost is no reason to measure never again.
        self.due.insert(uid.to_owned(), now + Duration::from_secs(24 * 3600));
        let done = self.report.clone();
        Some(Turn { uid: uid.to_owned(), began: now, done, _permit: permit })
    }
}

/// Evicts a Pod that uses more than it may.
async fn enforce(node: &Shared, live: &Live, turn: Turn) {
    let Some(spec) = live.pod().spec.clone() else { return };
    let places = node.places.pod(&live.uid);
    let allocatable = node.capacity.total().memory_bytes;
    // Only one that can be read has started.
    let most = volumes::memory_bytes(&spec, &node.config.defaults, allocatable).unwrap_or(u64::MAX);
    let exceeded = tokio::task::spawn_blocking(move || {
        let exceeded = limits::memory_exceeded(&spec, &places, most);
        exceeded.or_else(|| limits::exceeded(&spec, &places))
    });
    // A later measurement finds it again.
    if let Ok(Some(message)) = exceeded.await
        && !live.is_saving()
    {
        live.evict(message);
    }
    drop(turn);
}

async fn check_claim(node: &Shared, claim: &ClaimInUse, turn: Turn) {
    let Some(folder) = claim.folder(&node.places.volumes) else { return };
    let Ok(usage) = tokio::task::spawn_blocking(move || measure(&folder)).await else { return };
    drop(turn);
    over_capacity::report(node, claim, usage.bytes).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_measurement_is_followed_by_a_wait_of_twenty_times_its_duration() {
        assert_eq!(rest(Duration::from_millis(3)), EVERY);
        assert_eq!(rest(Duration::from_secs(2)), Duration::from_secs(40));
        assert_eq!(rest(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn measurements_wait_for_their_time_and_for_a_turn() {
        let mut measuring = Measuring::default();
        let begin = Instant::now();
        for uid in ["a", "b", "c"] {
            assert!(measuring.turn(uid, begin).is_none(), "{uid} is new");
        }
        let later = begin + EVERY;
        let (one, two) = (measuring.turn("a", later).unwrap(), measuring.turn("b", later));
        assert!(two.is_some());
        assert!(measuring.turn("a", later).is_none(), "it is measured now");
        assert!(measuring.turn("c", later).is_none(), "two at once");
        drop(one);
        assert_eq!(measuring.reports.try_recv().unwrap().0, "a");
        assert!(measuring.turn("c", later).is_some());
    }
}
