//! Descriptors of the process, which all sandboxes share.
//!
//! Whatever opens one takes a place before. So no call fails for want of a descriptor: a connection that finds no place is
//! refused, and those that are open are not disturbed.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places that are left to what takes none: the runtime, the channel and what arrives on it, metrics, and connections that
/// are being refused.
const RESERVE: usize = 96;
/// Maximum places.
const MOST: usize = 1 << 20;
/// Places of a connection of a client: for itself and for its server.
pub(crate) const CONNECTION: u32 = 2;
/// Places of a name that is being resolved: files and sockets of the resolver.
pub(crate) const LOOKUP: u32 = 4;
/// Places of a pipe.
pub(crate) const PIPE: u32 = 2;
/// Places of the listeners of a sandbox.
pub(crate) const LISTENERS: u32 = 4;

/// Places for descriptors.
#[derive(Debug)]
pub(crate) struct Descriptors(Arc<Semaphore>);

impl Default for Descriptors {
    /// Returns the places that the limit of this process leaves.
    fn default() -> Descriptors {
        Descriptors::of(getrlimit(Resource::Nofile).current)
    }
}

impl Descriptors {
    pub(crate) fn of(limit: Option<u64>) -> Descriptors {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(MOST).min(MOST);
        Descriptors(Arc::new(Semaphore::new(limit - RESERVE.min(limit / 2))))
    }

    /// Takes places; `None` if there are too few.
    pub(crate) fn take(&self, places: u32) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_many_owned(places).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_limit_without_a_reserve() {
        for (limit, places) in [(Some(1024), 928), (Some(100), 50), (Some(0), 0), (None, MOST - RESERVE)] {
            assert_eq!(Descriptors::of(limit).0.available_permits(), places, "{limit:?}");
        }
        let descriptors = Descriptors::of(Some(8));
        let held = descriptors.take(LISTENERS).unwrap();
        assert!(descriptors.take(CONNECTION).is_none());
        drop(held);
        assert!(descriptors.take(CONNECTION).is_some());
    }
}
