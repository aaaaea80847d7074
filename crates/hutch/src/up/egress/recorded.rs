//! Answers of the audit log about what sandboxes may do only once it is written.

use hutch_egress::control::Order;

use super::{Change, Supervisor};
use crate::audit_log::Answered;

/// Answer about a record.
pub(in crate::up) struct Recorded {
    /// Number of the process that waits: numbers of records mean nothing to the next one.
    pub(super) process: u64,
    pub(super) order: Order,
}

impl Supervisor {
    /// Returns what passes the answer about a record on to the process, if it waits for one.
    pub(super) fn answered(&self, sandbox: u64, wait: Option<u64>) -> Option<Answered> {
        let (process, changes) = (self.process, self.changes.clone());
        wait.map(|wait| -> Answered {
            Box::new(move |written| {
                let order = Order::Recorded { sandbox, wait, written };
                if let Some(changes) = changes.upgrade() {
                    let _ = changes.send(Change::Recorded(Recorded { process, order }));
                }
            })
        })
    }
}
