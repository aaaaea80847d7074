//! Descriptors of the process, which all sandboxes share.
//!
//! Whatever opens one takes a place before. So no call fails for want of a descriptor: a connection that finds no place is
//! refused, and those that are open are not disturbed.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::Reason;

/// Places that are left to what takes none: the runtime, the channel and what arrives on it, metrics, and connections that
/// are being refused.
pub(crate) const RESERVE: usize = 96;
/// Maximum places.
const MOST: usize = 1 << 20;
/// Maximum places of a sandbox: with its listeners it has at most 1,100 descriptors.
const OF_SANDBOX: usize = 1_096;
/// Places of a connection of a client: for itself and for its server.
pub(crate) const CONNECTION: u32 = 2;
/// Places of a name that is being resolved: files and sockets of the resolver.
pub(crate) const LOOKUP: u32 = 4;
/// Places of a pipe.
pub(crate) const PIPE: u32 = 2;
/// Places of the listeners of a sandbox.
pub(crate) const LISTENERS: u32 = 4;

/// Places for descriptors: those of the process, and those of one sandbox if it is for one.
#[derive(Debug, Clone)]
pub(crate) struct Descriptors {
    all: Arc<Semaphore>,
    own: Option<Arc<Semaphore>>,
}

/// Places that were taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Places {
    _all: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

/// Owner of the places that are too few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The sandbox.
    Own,
    /// The process.
    All,
}

impl From<Shortage> for Reason {
    fn from(shortage: Shortage) -> Reason {
        match shortage {
            Shortage::Own => Reason::TooMany,
            Shortage::All => Reason::Full,
        }
    }
}

impl Default for Descriptors {
    /// Returns the places that the limit of this process leaves.
    fn default() -> Descriptors {
        Descriptors::of(getrlimit(Resource::Nofile).current)
    }
}

impl Descriptors {
    pub(crate) fn of(limit: Option<u64>) -> Descriptors {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(MOST).min(MOST);
        Descriptors { all: Arc::new(Semaphore::new(limit - RESERVE.min(limit / 2))), own: None }
    }

    /// Returns the places of one sandbox among these.
    pub(crate) fn of_sandbox(&self) -> Descriptors {
        Descriptors { all: self.all.clone(), own: Some(Arc::new(Semaphore::new(OF_SANDBOX))) }
    }

    /// Takes places.
    ///
    /// # Errors
    /// There are too few.
    pub(crate) fn take(&self, places: u32) -> Result<Places, Shortage> {
        let taken = |of: &Arc<Semaphore>| of.clone().try_acquire_many_owned(places).ok();
        let own = self.own.as_ref().map(|own| taken(own).ok_or(Shortage::Own)).transpose()?;
        Ok(Places { _all: taken(&self.all).ok_or(Shortage::All)?, _own: own })
    }

    /// Takes places of the process as soon as there are so many.
    pub(crate) async fn wait(self, places: u32) -> Option<Places> {
        let taken = self.all.acquire_many_owned(places).await.ok()?;
        Some(Places { _all: taken, _own: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_limit_without_a_reserve() {
        for (limit, places) in [(Some(1024), 928), (Some(100), 50), (Some(0), 0), (None, MOST - RESERVE)] {
            assert_eq!(Descriptors::of(limit).all.available_permits(), places, "{limit:?}");
        }
        let descriptors = Descriptors::of(Some(8));
        let held = descriptors.take(LISTENERS).unwrap();
        assert_eq!(descriptors.take(CONNECTION).unwrap_err(), Shortage::All);
        drop(held);
        assert!(descriptors.take(CONNECTION).is_ok());
    }

    #[test]
    fn sandbox_takes_no_more_than_its_own_places() {
        let all = Descriptors::default();
        let (one, other) = (all.of_sandbox(), all.of_sandbox());
        let free = all.all.available_permits();
        let held: Vec<Places> = std::iter::from_fn(|| one.take(CONNECTION).ok()).collect();
        assert_eq!(held.len(), OF_SANDBOX / 2);
        assert_eq!(one.take(1).unwrap_err(), Shortage::Own);
        assert!(other.take(OF_SANDBOX as u32).is_ok());
        drop(held);
        assert!(one.take(CONNECTION).is_ok());
        assert_eq!(all.all.available_permits(), free);
    }
}
