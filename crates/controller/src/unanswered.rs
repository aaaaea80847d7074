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
    pub(crate) fn of(&self, claim: &SandboxClaim) -> Option<Asked> {
        let known = self.known();
        let (uid, asked) = known.get(&Key::of(claim))?;
        (*uid == claim.uid().unwrap_or_default()).then(|| asked.clone())
    }

    /// Takes note of how a request ended. One that is refused may have been asked before and done then.
    pub(crate) fn note<T>(&self, claim: &SandboxClaim, asked: &Asked, result: &Result<T, Error>) {
        match result {
            Err(error) if error.settles_earlier() => self.forget(&Key::of(claim)),
            Err(error) if error.is_refusal() => {}
            Err(_) => {
                self.known().insert(Key::of(claim), (claim.uid().unwrap_or_default(), asked.clone()));
            }
            Ok(_) => self.forget(&Key::of(claim)),
        }
    }

    /// The claim has its Sandbox, or is gone.
    pub(crate) fn forget(&self, claim: &Key) {
        self.known().remove(claim);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, (String, Asked)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn a_busy_server_does_not_settle_what_it_has_not_answered() {
        let unanswered = Unanswered::default();
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
        let note = |result| unanswered.note(&claim, &Asked::Make, &result);

        note(busy());
        assert_eq!(unanswered.of(&claim), None, "refused at once: not done");
        for settled in [Ok(()), refused(409, "AlreadyExists"), refused(404, "NotFound")] {
            note(lost());
            note(busy());
            note(refused(403, "Forbidden"));
            assert_eq!(unanswered.of(&claim), Some(Asked::Make));
            note(settled);
            assert_eq!(unanswered.of(&claim), None);
        }
    }
}
