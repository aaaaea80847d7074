//! Keeps the only thread of a proxy awake for a moment after something has arrived.
//!
//! To wake a thread on another processor takes longer than the proxy needs for a small message, and each round trip wakes it
//! twice. A program that talks with a server nearby sends the next message within that time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::record::Counters;

/// Maximum time without bytes for which the thread stays awake.
const MOMENT: Duration = Duration::from_micros(100);
/// Maximum doublings of the number of wake-ups that have no such moment, because nothing came within the last one.
const DOUBLINGS: u32 = 7;

/// The thread of a runtime with one thread.
#[derive(Default)]
pub struct Awake {
    woken: Notify,
    /// Moments in a row within which nothing came, up to [`DOUBLINGS`].
    useless: AtomicU32,
}

impl Awake {
    /// Notes that the thread was asleep and is awake now. To be called by the runtime.
    pub fn woken(&self) {
        self.woken.notify_one();
    }

    /// Keeps the thread awake, for moments, as long as bytes pass. Servers that are far away are left alone: after a moment
    /// within which nothing came, the next is after twice as many wake-ups, at most 128. Never returns.
    pub(crate) async fn keep(&self, counters: &Counters) {
        loop {
            for _ in 0..1 << self.useless.load(Ordering::Relaxed) {
                self.woken.notified().await;
            }
            let was_useful = self.stay(counters).await;
            let useless = self.useless.load(Ordering::Relaxed);
            let useless = if was_useful { 0 } else { DOUBLINGS.min(useless + 1) };
            self.useless.store(useless, Ordering::Relaxed);
        }
    }

    /// Stays awake until nothing has come for a moment. Returns true if something came at all.
    async fn stay(&self, counters: &Counters) -> bool {
        let (mut passed, mut since, mut useful) = (counters.passed(), Instant::now(), 0_u32);
        while since.elapsed() < MOMENT {
            // The runtime then takes what has arrived, without sleeping, and runs other tasks first.
            tokio::task::yield_now().await;
            let now = counters.passed();
            if now != passed {
                (passed, since, useful) = (now, Instant::now(), useful.saturating_add(1));
            }
        }
        // The first is what has woken the thread.
        useful > 1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::advance;

    use super::*;

    /// Lets the other task run.
    async fn others() {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn thread_stays_awake_while_bytes_pass_and_rarely_for_far_servers() {
        let (awake, counters) = (Arc::new(Awake::default()), Arc::new(Counters::default()));
        let (of_task, seen) = (awake.clone(), counters.clone());
        tokio::spawn(async move { of_task.keep(&seen).await });
        let useless = || awake.useless.load(Ordering::Relaxed);
        others().await;
        for moments in 1..=DOUBLINGS + 2 {
            for _ in 0..1 << useless() {
                awake.woken();
                others().await;
            }
            counters.sent(1);
            others().await;
            advance(MOMENT).await;
            others().await;
            assert_eq!(useless(), moments.min(DOUBLINGS), "one message, and no answer within a moment");
        }
        for _ in 0..1 << DOUBLINGS {
            awake.woken();
            others().await;
        }
        for _ in 0..10 {
            counters.received(1);
            others().await;
            advance(MOMENT / 2).await;
        }
        assert_eq!(useless(), DOUBLINGS, "the moment lasts as long as bytes pass");
        advance(MOMENT).await;
        others().await;
        assert_eq!(useless(), 0, "answers came within it");
    }
}
