//! Requests for a claim's Sandbox that the server has not answered. Their outcome is unknown, so each is repeated until
//! it is answered, and no other request is sent: the claim could get two Sandboxes. Lost with the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hutch_api::{Sandbox, SandboxClaim};
use kube::ResourceExt;

use crate::error::Error;
use crate::key::Key;

/// Request of a claim for its Sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    /// Adopts this Sandbox in this version, which can succeed only once.
    Adopt(Arc<Sandbox>),
    /// Creates a Sandbox of the claim's name, which can exist only once.
    Create,
}

/// Requests by claim, with the claim's uid.
#[derive(Default)]
pub(crate) struct Pending(Mutex<HashMap<Key, (String, Request)>>);

impl Pending {
    /// Returns the request that must be repeated for the claim.
    pub(crate) fn of(&self, claim: &SandboxClaim) -> Option<Request> {
        let known = self.known();
        let (uid, request) = known.get(&Key::of(claim))?;
        (*uid == claim.uid().unwrap_or_default()).then(|| request.clone())
    }

    /// Records the result of a request. A refused request may have succeeded earlier.
    pub(crate) fn note<T>(&self, claim: &SandboxClaim, request: &Request, result: &Result<T, Error>) {
        match result {
            Err(error) if error.settles_earlier() => self.forget(&Key::of(claim)),
            Err(error) if error.is_refusal() => {}
            Err(_) => {
                self.known().insert(Key::of(claim), (claim.uid().unwrap_or_default(), request.clone()));
            }
            Ok(_) => self.forget(&Key::of(claim)),
        }
    }

    /// Forgets the request of a claim that has its Sandbox or is gone.
    pub(crate) fn forget(&self, claim: &Key) {
        self.known().remove(claim);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, (String, Request)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn too_many_requests_leaves_an_earlier_request_pending() {
        let pending = Pending::default();
        let mut claim = SandboxClaim::new("c", Default::default());
        claim.metadata.uid = Some("1".into());
        let ended = |source| -> Result<(), Error> {
            Err(Error::Create { kind: "Sandbox".into(), name: "c".into(), source })
        };
        let refused = |code, reason: &str| {
            let status = Status { code, reason: reason.into(), ..Status::default() };
            ended(kube::Error::Api(Box::new(status)))
        };
        let lost = || ended(kube::Error::Service("the connection broke".into()));
        let busy = || refused(429, "TooManyRequests");
        let note = |result| pending.note(&claim, &Request::Create, &result);

        note(busy());
        assert_eq!(pending.of(&claim), None, "refused at once: not done");
        for settled in [Ok(()), refused(409, "AlreadyExists"), refused(404, "NotFound")] {
            note(lost());
            note(busy());
            note(refused(403, "Forbidden"));
            assert_eq!(pending.of(&claim), Some(Request::Create));
            note(settled);
            assert_eq!(pending.of(&claim), None);
        }
    }
}
