//! Waiting for what will be so in a moment, on a machine that may be busy.

use std::time::{Duration, Instant};

/// Longest wait. It only passes in a test that fails.
pub const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until it is so.
///
/// # Panics
/// When it does not become so within [`WAIT_LIMIT`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WAIT_LIMIT, "never: {what}");
        std::thread::sleep(PAUSE);
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
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(began.elapsed() < WAIT_LIMIT, "never: {}", what());
        tokio::time::sleep(PAUSE).await;
    }
}
