//! Network namespaces for Pods, created by the warden before they are needed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{NetworkPlan, configure, current, failed, route, unshare};
use crate::error::Error;

/// Number of namespaces in stock. Each takes some 200 KiB of kernel memory.
const SIZE: usize = 4;

/// A few empty namespaces, and the way back to the own one. Only for a single-threaded program.
pub(crate) struct Stock {
    home: OwnedFd,
    empty: Vec<OwnedFd>,
    /// `true` after a failed creation, so that none is created before it is needed.
    paused: bool,
}

impl Stock {
    pub(crate) fn new() -> Result<Stock, Error> {
        Ok(Stock { home: current()?, empty: Vec::new(), paused: false })
    }

    /// Returns `true` when there is nothing to create ahead.
    pub(crate) fn is_full(&self) -> bool {
        self.paused || self.empty.len() >= SIZE
    }

    /// Adds one ahead. After a failure none is, until one that was needed could be created.
    pub(crate) fn refill(&mut self) {
        self.paused = self.add().is_err();
    }

    fn add(&mut self) -> Result<(), Error> {
        let namespace = self.away(|| {
            unshare()?;
            route::up()?;
            current()
        })?;
        self.empty.push(namespace);
        Ok(())
    }

    /// Creates the namespace of a plan, from one in stock if there is one. Returns its descriptor and the listeners.
    pub(crate) fn take(&mut self, plan: &NetworkPlan) -> Result<(OwnedFd, Vec<OwnedFd>), Error> {
        if self.empty.is_empty() {
            self.add()?;
            self.paused = false;
        }
        let namespace = self.empty.pop().ok_or_else(|| Error::Message("no network namespace".into()))?;
        let listeners = self.away(|| {
            enter(namespace.as_fd())?;
            configure(plan)
        })?;
        Ok((namespace, listeners))
    }

    /// Runs `work`, which may enter another namespace, and returns to the own one.
    fn away<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let done = work();
        if let Err(error) = enter(self.home.as_fd()) {
            // A warden in a sandbox's namespace would create the next jails there.
            eprintln!("hutch-warden: failed to return to the own network namespace: {error}");
            std::process::abort();
        }
        done
    }
}

fn enter(namespace: BorrowedFd<'_>) -> Result<(), Error> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
        .map_err(failed("enter the namespace"))
}
