//! Parts of a request that were read beside its head.

use hutch_policy::Call;
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use crate::body::Lending;

/// Parts of a body that were read.
#[derive(Default)]
pub(super) struct Seen {
    /// Id of a single call.
    pub(super) id: Option<serde_json::Value>,
    pub(super) calls: Vec<Call>,
    /// Held while the arguments of the calls are, if they take much memory.
    pub(super) turn: Option<OwnedSemaphorePermit>,
    /// A body that is not read yet.
    pub(super) unread: Option<Incoming>,
    /// One that is being sent on.
    pub(super) lent: Lending,
}

impl Seen {
    /// Forgets the arguments of the calls.
    pub(super) fn forget(&mut self) {
        self.calls.iter_mut().for_each(Call::forget);
        self.turn = None;
    }
}
