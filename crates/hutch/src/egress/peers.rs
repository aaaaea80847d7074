//! Decisions about connections between Sandboxes, as the process of the proxy reads them.

use hutch_attach::PeerRefusal;
use hutch_egress::{Ground, Reason};

/// Returns what decides about a connection.
pub(crate) fn ground(by: hutch_attach::Ground) -> Ground {
    Ground { level: by.policy.unwrap_or_default(), rule: by.rule }
}

/// Returns the reason of a refusal.
pub(crate) fn reason(refusal: PeerRefusal) -> Reason {
    match refusal {
        PeerRefusal::Denied { why, by } => Reason::Closed(why, ground(by)),
        PeerRefusal::Unreachable(why) => Reason::Unreachable(why),
    }
}
