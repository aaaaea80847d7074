//! Waiting for what will be so in a moment, on a machine that may be busy.

use std::time::{Duration, Instant};

/// Longest wait. It only passes in a test that fails.
pub const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Bounds of the pause between two checks.
const PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// Returns the pause after a check that began then: four times as long, so that a test that waits leaves the processors to the
/// others. `kubectl` alone takes a tenth of a second of them.
#[must_use]
pub fn pause(began: Instant) -> Duration {
    (began.elapsed() * 4).clamp(PAUSE[0], PAUSE[1])
}

/// Looks until it is so.
///
/// # Panics
/// When it does not become so within [`WAIT_LIMIT`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    loop {
        let check = Instant::now();
        if holds() {
            return;
        }
        assert!(began.elapsed() < WAIT_LIMIT, "never: {what}");
        std::thread::sleep(pause(check));
    }
}

/// Asks until there is an answer.
///
/// # Panics
/// If none comes within [`WAIT_LIMIT`].
#[cfg(feature = "async")]
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, ask: impl FnMut() -> F) -> T {
    eventually_or(|| what.to_owned(), ask).await
}

/// The same; the text of the failure is only built when it is needed.
///
/// # Panics
/// When there is no answer within [`WAIT_LIMIT`].
#[cfg(feature = "async")]
pub async fn eventually_or<T, F: Future<Output = Option<T>>>(
    what: impl Fn() -> String,
    mut ask: impl FnMut() -> F,
) -> T {
    let began = Instant::now();
    loop {
        let check = Instant::now();
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(began.elapsed() < WAIT_LIMIT, "never: {}", what());
        tokio::time::sleep(pause(check)).await;
    }
}
