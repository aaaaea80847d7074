//! Bounds on the requests of one caller that are in progress: watches, streams of Pods (exec, attach, port-forward, log),
//! and others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::failure::Failure;
use crate::identity::Identity;

/// Parts of the connections of the listener, so that one caller leaves half of them to others. A stream takes up to three
/// descriptors besides its connection.
const WATCHES_PART: usize = 4;
const STREAMS_PART: usize = 8;
const REQUESTS_PART: usize = 8;

/// Requests of each caller that are in progress.
#[derive(Debug)]
pub(crate) struct Bound {
    subject: &'static str,
    most: usize,
    open: Mutex<HashMap<String, usize>>,
}

/// One request in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    bound: Arc<Bound>,
    caller: String,
}

impl Bound {
    pub(crate) fn of_watches() -> Arc<Bound> {
        Bound::new("watches", connections() / WATCHES_PART)
    }

    pub(crate) fn of_streams() -> Arc<Bound> {
        Bound::new("streams of pods", connections() / STREAMS_PART)
    }

    pub(crate) fn of_requests() -> Arc<Bound> {
        Bound::new("requests", connections() / REQUESTS_PART)
    }

    fn new(subject: &'static str, most: usize) -> Arc<Bound> {
        Arc::new(Bound { subject, most, open: Mutex::default() })
    }

    /// A place for one more request, or the refusal.
    pub(crate) fn take(self: &Arc<Bound>, caller: &Identity) -> Result<Place, Failure> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(caller.name.clone()).or_default();
        if *count >= self.most {
            let Bound { subject, most, .. } = &**self;
            let message = format!("{:?} has {most} {subject} open, the maximum of one user", caller.name);
            return Err(Failure::too_many_requests(message));
        }
        *count += 1;
        Ok(Place { bound: self.clone(), caller: caller.name.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.bound.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.caller);
            }
        }
    }
}

fn connections() -> usize {
    hutch_serve::connection_limit(hutch_serve::CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_cannot_take_the_places_of_another() {
        let bound = Bound::new("watches", 2);
        let [noisy, quiet] = ["noisy", "quiet"].map(|name| Identity::new(name, &[]));
        let first = bound.take(&noisy).unwrap();
        let _second = bound.take(&noisy).unwrap();
        let refusal = bound.take(&noisy).unwrap_err();
        assert_eq!((refusal.code.as_u16(), &*refusal.reason), (429, "TooManyRequests"));
        assert_eq!(refusal.message, "\"noisy\" has 2 watches open, the maximum of one user");
        assert_eq!(refusal.status()["details"]["retryAfterSeconds"], 1);
        drop(bound.take(&quiet).unwrap());
        drop(first);
        bound.take(&noisy).unwrap();
        assert_eq!(bound.open.lock().unwrap().len(), 1, "callers without requests are forgotten");
    }
}
