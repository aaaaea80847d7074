//! Servers keep in memory what they use of their program, and not what they used once.

use std::time::Duration;

/// Pause between two times. What is still used costs some hundred page faults then, a millisecond in all.
const EVERY: Duration = Duration::from_secs(10);

/// From now on, lets go of the program's pages every [`EVERY`]. Those that are used come back at once, from the page cache.
pub(crate) fn stay() {
    tokio::spawn(async {
        let mut every = tokio::time::interval(EVERY);
        loop {
            every.tick().await;
            if let Err(error) = hutch_jail::forget_program() {
                tracing::debug!(%error, "the program's pages stay in memory");
                return;
            }
        }
    });
}
