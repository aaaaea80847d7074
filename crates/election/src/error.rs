use std::time::Duration;

/// Errors of an election.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Times with which two could lead at once, or none for long.
    #[error(
        "lease {lease:?}, renew deadline {renew:?}, retry {retry:?}: the lease must be whole seconds and longer than the \
         deadline, and the deadline longer than 1.2 times the retry"
    )]
    Timing {
        /// How long the Lease lasts.
        lease: Duration,
        /// How long a leader tries to renew it.
        renew: Duration,
        /// Pause between two tries.
        retry: Duration,
    },
    /// A name that the Lease cannot have.
    #[error("{field} of the lease must not be empty")]
    Empty {
        /// Which of `namespace`, `name`, `identity`.
        field: &'static str,
    },
    /// A change was held back because this process does not lead.
    #[error("not sent: this process does not lead, or cannot be sure of it any more")]
    NotLeader,
}
