//! Runs blocking work on files, on a few threads beside the serving one, with a bounded
//! queue.

use tokio::sync::Semaphore;

use crate::files::FileError;

/// Threads for work on files.
pub const THREADS: usize = 4;
/// Maximum tasks that run or wait for a thread; further callers wait for a permit.
const WAITING_LIMIT: usize = 64;

static PLACES: Semaphore = Semaphore::const_new(WAITING_LIMIT);

/// Runs `work` on one of the threads.
///
/// # Errors
/// Errors of the work.
pub(crate) async fn on_files<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    // The semaphore is never closed; without a permit the work runs all the same.
    let _place = PLACES.acquire().await;
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(FileError::System { path: std::path::PathBuf::new(), source: std::io::Error::other(error) })
    })
}
