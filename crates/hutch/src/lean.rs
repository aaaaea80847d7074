//! Releases the memory of unused pages of the program in servers.

use std::time::Duration;

/// Interval. Pages in use cost some hundred page faults after a release, a millisecond in all.
const EVERY: Duration = Duration::from_secs(10);

/// Starts to release the program's pages every [`EVERY`]. Those in use return at once, from the page cache.
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
