//! Descriptors whose readiness tokio reports.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor. Needs a tokio runtime.
#[expect(
    deprecated,
    reason = "its successor is unsafe for types that may close their descriptor early; OwnedFd does not"
)]
pub(crate) fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}
