//! Result of one reconcile.

use std::time::Duration;

/// Result of one reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes.
    Settled,
    /// Reconcile again after this time, or when something changes.
    Again(Duration),
    /// Failed: reconcile again after a backoff.
    Failed,
}
