//! Snapshots of Sandboxes: takes the images that SandboxSnapshots request, removes those of deleted ones, and gives them to
//! Pods that start from one.
//!
//! An image is complete and durable before its object says so, and before the Pod of a suspend ends. What a killed node
//! left half made is removed at its next start.

mod facts;
mod follow;
mod restore;
mod take;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use hutch_snapshot::Images;

use facts::Facts;

pub(crate) use follow::run;
pub(crate) use restore::{RESTORE_FAILED, Restoring, find};

/// Images of this node.
pub(crate) struct Snapshots {
    images: Images,
    /// UIDs of Pods whose memory is on disk: they are not started again.
    ended: Mutex<BTreeSet<String>>,
}

impl Snapshots {
    /// Reads which images there are. Blocks.
    pub(crate) fn new(images: Images) -> Snapshots {
        let found = images.list().unwrap_or_default();
        let facts = found.iter().filter_map(|id| Facts::of(&images.find(id).ok()??).ok());
        let ended = facts.filter(|facts| facts.ends_pod).map(|facts| facts.pod_uid).collect();
        Snapshots { images, ended: Mutex::new(ended) }
    }

    /// Returns true if the memory of this Pod was written to disk for a suspend: it may only be deleted.
    pub(crate) fn has_ended(&self, pod: &str) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).contains(pod)
    }

    fn set_ended(&self, pod: &str, ended: bool) {
        let mut all = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended {
            all.insert(pod.to_owned());
        } else {
            all.remove(pod);
        }
    }
}
