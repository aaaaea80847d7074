//! News for the process that has started this one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hutch_egress::control::{News, Reporter};
use hutch_privsep::Channel;
use tokio::sync::mpsc;

/// Maximum refusals that wait to be sent.
const REFUSALS: usize = 64;
/// Decisions that wait to be sent, and those that wait for their record. One that cannot wait is refused after its time.
const DECISIONS: usize = 1024;
const RECORDED: usize = 8192;
/// Maximum refused connections and requests of one sandbox that are sent in a second: a Pod shows 20 events in all.
const SHARE: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);

/// Returns a reporter that sends all news. Refusals are dropped when many wait to be sent, and so are decisions; these and
/// refused names are counted. Allowed names are not dropped, and each sandbox has a bounded number of them.
pub(super) fn to_starter(channel: Arc<Channel>) -> Reporter {
    let (names, mut named) = mpsc::unbounded_channel();
    let (records, mut recorded) = mpsc::channel(RECORDED);
    let (refusals, mut refused) = mpsc::channel(REFUSALS);
    let (decisions, mut decided) = mpsc::channel(DECISIONS);
    let (lost, shares) = (Arc::new(AtomicU64::new(0)), Shares::default());
    let counted = lost.clone();
    tokio::spawn(async move {
        loop {
            // Neither many refusals nor many decisions keep the others.
            let other = async {
                tokio::select! {
                    news = refused.recv() => news,
                    news = decided.recv() => news,
                }
            };
            let news: Option<News> = tokio::select! {
                biased;
                news = named.recv() => news,
                news = recorded.recv() => news,
                news = other => news,
            };
            let Some(news) = news else { return };
            // A closed channel is the end of this process.
            let _ = channel.send(&news, &[]).await;
            let count = counted.swap(0, Ordering::Relaxed);
            if count > 0 {
                let _ = channel.send(&News::Lost { count }, &[]).await;
            }
        }
    });
    Arc::new(move |news| {
        let _ = match news {
            // Each sandbox has a bounded number of connections too.
            News::Named { .. } | News::Dial { .. } | News::Unserved { .. } => names.send(news).is_ok(),
            News::Decided { wait: Some(_), .. }
            | News::Used { wait: Some(_), .. }
            | News::Resolved { wait: Some(_), .. } => records.try_send(news).is_ok(),
            // A name has no other record, and those of one sandbox leave room for the refused connections of others.
            News::Refused { ref refusal, .. } if refusal.reason.is_about_a_name() => {
                let sent = refusals.capacity() > REFUSALS / 2 && refusals.try_send(news).is_ok();
                lost.fetch_add(u64::from(!sent), Ordering::Relaxed);
                sent
            }
            News::Refused { sandbox, .. } => {
                shares.take(sandbox, Instant::now()) && refusals.try_send(news).is_ok()
            }
            News::Unidentified { .. } => refusals.try_send(news).is_ok(),
            News::Decided { .. } | News::Used { .. } | News::Resolved { .. } | News::Ended { .. } => {
                let sent = decisions.try_send(news).is_ok();
                lost.fetch_add(u64::from(!sent), Ordering::Relaxed);
                sent
            }
            News::Lost { .. } => false,
        };
    })
}

/// Refusals of each sandbox in its present second, so that one leaves room for those of others.
#[derive(Default)]
struct Shares(Mutex<HashMap<u64, (Instant, u32)>>);

impl Shares {
    /// Returns true if the sandbox has not had its share.
    fn take(&self, sandbox: u64, now: Instant) -> bool {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |since: &Instant| now.duration_since(*since) >= SECOND;
        if !shares.contains_key(&sandbox) {
            shares.retain(|_, (since, _)| !is_over(since));
        }
        let (since, count) = shares.entry(sandbox).or_insert((now, 0));
        if is_over(since) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count <= SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The refusals of one took all places of a queue for all.
    #[test]
    fn refusals_of_one_sandbox_leave_room_for_others() {
        let (shares, now) = (Shares::default(), Instant::now());
        let taken = (0..1000).filter(|_| shares.take(1, now)).count();
        assert_eq!(taken, SHARE as usize);
        assert!(shares.take(2, now) && !shares.take(1, now));
        assert!(shares.take(1, now + SECOND));
        assert!(shares.take(3, now + 3 * SECOND));
        assert_eq!(shares.0.lock().unwrap().len(), 1, "those of the past are forgotten");
    }
}
