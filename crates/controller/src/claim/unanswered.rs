//! Requests for a claim's Sandbox that the server has not answered. They may have been done, or be done yet: until one is
//! answered it is asked again and nothing else is, or the claim could get two Sandboxes. Lost with the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hutch_api::{Sandbox, SandboxClaim};
use kube::ResourceExt;

use crate::error::Error;
use crate::key::Key;

/// What was asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Asked {
    /// This Sandbox, in this version: the same request can be done only once.
    Take(Arc<Sandbox>),
    /// One under the claim's name, which can be there only once.
    Make,
}

/// By claim, with the claim's uid.
#[derive(Default)]
pub(crate) struct Unanswered(Mutex<HashMap<Key, (String, Asked)>>);

impl Unanswered {
    /// What has to be asked again for the claim.
    pub(super) fn of(&self, claim: &SandboxClaim) -> Option<Asked> {
        let known = self.known();
        let (uid, asked) = known.get(&Key::of(claim))?;
        (*uid == claim.uid().unwrap_or_default()).then(|| asked.clone())
    }

    /// Takes note of how a request ended.
    pub(super) fn note<T>(&self, claim: &SandboxClaim, asked: &Asked, result: &Result<T, Error>) {
        if result.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.known().insert(Key::of(claim), (claim.uid().unwrap_or_default(), asked.clone()));
        } else {
            self.forget(&Key::of(claim));
        }
    }

    /// The claim has its Sandbox, or is gone.
    pub(super) fn forget(&self, claim: &Key) {
        self.known().remove(claim);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, (String, Asked)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
